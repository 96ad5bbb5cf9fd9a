//! Levels on their way from a message into the output and into a book.

use crate::numbers::{self, Form, NotANumber, Number, Short};

/// What is computed stays finite up to here, however many levels or trades are added up.
pub const LARGEST: f64 = 1e150;

/// Why a call changes nothing.
#[derive(Debug)]
pub struct Refused(pub String);

impl From<NotANumber> for Refused {
    fn from(_: NotANumber) -> Self {
        Self("not a finite number".to_owned())
    }
}

/// Read a number's canonical text; refused if sums and products of such numbers might overflow.
pub fn computable(text: &[u8]) -> Result<f64, Refused> {
    let number = numbers::value(text)?;
    if number.abs() <= LARGEST {
        Ok(number)
    } else {
        Err(Refused(format!("too large to compute with: {}", String::from_utf8_lossy(text))))
    }
}

/// One level: its place in the text of its side, and what books need of it.
#[derive(Debug, Clone, Copy)]
pub struct Level {
    start: u32,
    end: u32,
    amount: u32,
    /// The price.
    pub price: f64,
    /// The amount, where groups are made of it.
    pub size: f64,
}

/// The levels of one side of a change, in the JSON that clients get.
#[derive(Debug, Default)]
pub struct Levels {
    pub text: Vec<u8>,
    pub items: Vec<Level>,
}

/// Which numbers of levels are computed with.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Needs {
    Text,
    Prices,
    Sizes,
}

const HEAD: &[u8] = b"{\"price\":";
const MIDDLE: &[u8] = b",\"amount\":";

impl Levels {
    pub fn clear(&mut self) {
        self.text.clear();
        self.items.clear();
    }

    /// Add a level whose numbers are written by `price` and `amount`.
    #[inline]
    pub fn add<E: From<Refused>>(
        &mut self,
        needs: Needs,
        price: impl FnOnce(&mut Vec<u8>) -> Result<(), E>,
        amount: impl FnOnce(&mut Vec<u8>) -> Result<(), E>,
    ) -> Result<(), E> {
        let printed = |out: &mut Vec<u8>| {
            let start = out.len();
            price(out)?;
            Ok(if needs == Needs::Text { 0.0 } else { computable(&out[start..])? })
        };
        self.add_valued(needs, printed, amount)
    }

    /// The same where `price` also gives what it is, if that is needed.
    #[inline]
    pub fn add_valued<E: From<Refused>>(
        &mut self,
        needs: Needs,
        price: impl FnOnce(&mut Vec<u8>) -> Result<f64, E>,
        amount: impl FnOnce(&mut Vec<u8>) -> Result<(), E>,
    ) -> Result<(), E> {
        if !self.items.is_empty() {
            self.text.push(b',');
        }
        let start = self.text.len();
        self.text.extend_from_slice(HEAD);
        let price = price(&mut self.text)?;
        self.text.extend_from_slice(MIDDLE);
        let amount_start = self.text.len();
        amount(&mut self.text)?;
        let mut size = 0.0;
        if needs == Needs::Sizes {
            size = computable(&self.text[amount_start..])?;
        }
        self.text.push(b'}');
        let end = u32::try_from(self.text.len()).map_err(|_| Refused("levels of 4 GiB".to_owned()))?;
        self.items.push(Level { start: start as u32, end, amount: amount_start as u32, price, size });
        Ok(())
    }

    /// Add a level of two JSON numbers.
    #[inline]
    pub fn add_scanned(
        &mut self,
        needs: Needs,
        price: (&[u8], Form),
        amount: (&[u8], Form),
    ) -> Result<(), Refused> {
        self.add(
            needs,
            |out| Ok(numbers::write_scanned(price.0, &price.1, out)?),
            |out| Ok(numbers::write_scanned(amount.0, &amount.1, out)?),
        )
    }

    /// The same where what follows the numbers is known.
    #[inline]
    pub fn add_numbers(&mut self, needs: Needs, price: Number, amount: Number) -> Result<(), Refused> {
        self.add(needs, |out| Ok(price.write(out)?), |out| Ok(amount.write(out)?))
    }

    /// Add a level of two short numbers.
    #[inline]
    pub fn add_short(&mut self, needs: Needs, price: Short, amount: Short) -> Result<(), Refused> {
        self.add(needs, |out| Ok(price.write(out)?), |out| Ok(amount.write(out)?))
    }

    /// The JSON of a level.
    #[inline]
    pub fn json(&self, level: &Level) -> &[u8] {
        &self.text[level.start as usize..level.end as usize]
    }

    /// Tell whether a level's amount is 0, which removes it.
    #[inline]
    pub fn is_removal(&self, level: &Level) -> bool {
        self.text[level.amount as usize..level.end as usize] == *b"0}"
    }
}
