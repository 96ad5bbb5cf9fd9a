//! Keyed tables: rows that name an id instead of the price they had before.

use std::collections::{HashMap, HashSet};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use pyo3::prelude::*;
use pyo3::types::{PyFloat, PyString};

use super::arguments::utf8;
use super::engine::Engine;
use super::levels::{LARGEST, Levels, Needs, Refused};
use super::text::Text;
use crate::hashing::Seeded;
use crate::json::{Odd, Walker, equal};
use crate::keys::Keys;
use crate::numbers::{self, Number};
use crate::times::Printed;

/// A price as it is printed, and what it is. There are thousands, which are to stay in the processor's cache.
struct Price {
    text: Text<14>,
    /// Not a number if the text is none.
    value: f64,
}

impl Price {
    /// The price that has been printed.
    #[inline]
    fn printed(text: &[u8]) -> Self {
        Self { text: Text::new(text), value: numbers::value(text).unwrap_or(f64::NAN) }
    }

    /// A price that somebody else has set.
    fn of(text: &[u8]) -> Self {
        let mut printed = Vec::new();
        match numbers::write_text(text, &mut printed) {
            Ok(()) => Self::printed(&printed),
            Err(_) => Self { text: Text::new(text), value: f64::NAN },
        }
    }
}

/// The price of each id, as it is printed.
#[derive(Default)]
struct Known {
    /// Those of whole numbers, which ids nearly always are.
    numbers: HashMap<u64, Price, Seeded>,
    others: HashMap<Box<[u8]>, Price, Seeded>,
}

/// An id as Python's dict has it: 1 and 1.0 are one, "1" is another.
enum Id {
    Number(u64),
    Other(Box<[u8]>),
}

impl Known {
    fn get(&self, id: &Id) -> Option<&Price> {
        match id {
            Id::Number(number) => self.numbers.get(number),
            Id::Other(text) => self.others.get(text),
        }
    }

    fn set(&mut self, id: Id, price: &[u8]) {
        match id {
            Id::Number(number) => self.numbers.insert(number, Price::of(price)),
            Id::Other(text) => self.others.insert(text, Price::of(price)),
        };
    }

    fn remove(&mut self, id: &Id) {
        match id {
            Id::Number(number) => self.numbers.remove(number),
            Id::Other(text) => self.others.remove(text),
        };
    }
}

/// What a table remembers; Python reads and writes it as well.
#[pyclass(frozen, module = "tardis_machine._kernel")]
#[derive(Clone, Default)]
pub struct Prices {
    known: Arc<Mutex<Known>>,
}

impl Prices {
    fn lock(&self) -> MutexGuard<'_, Known> {
        // Nothing panics while it holds the lock, and a text is written whole or not at all.
        self.known.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Id {
    fn of(id: &Bound<PyAny>) -> PyResult<Self> {
        if let Ok(text) = id.cast::<PyString>() {
            return Ok(Self::Other(format!("\"{}", text.to_str()?).into_bytes().into()));
        }
        let whole = match id.cast::<PyFloat>() {
            Ok(number) if number.value().fract() == 0.0 => number.call_method0("__int__")?,
            _ => id.clone(),
        };
        if let Ok(number) = whole.extract::<u64>() {
            return Ok(Self::Number(number));
        }
        Ok(Self::Other(whole.str()?.to_str()?.as_bytes().into()))
    }
}

#[pymethods]
impl Prices {
    fn get<'py>(&self, id: &Bound<'py, PyAny>) -> PyResult<Option<Bound<'py, PyString>>> {
        let id_of = Id::of(id)?;
        let known = self.lock();
        let Some(price) = known.get(&id_of) else { return Ok(None) };
        Ok(Some(PyString::new(id.py(), utf8(price.text.as_bytes())?)))
    }

    fn pop(&self, id: &Bound<PyAny>, _default: Option<Py<PyAny>>) -> PyResult<()> {
        let id = Id::of(id)?;
        self.lock().remove(&id);
        Ok(())
    }

    fn __setitem__(&self, id: &Bound<PyAny>, price: &Bound<PyAny>) -> PyResult<()> {
        let id = Id::of(id)?;
        let text = price.str()?;
        self.lock().set(id, text.to_str()?.as_bytes());
        Ok(())
    }
}

/// A keyed table: what its messages look like, and the price of each id.
pub struct Table {
    names: Names,
    pub prices: Prices,
    bids: Levels,
    asks: Levels,
    price: Vec<u8>,
}

/// The attributes of `emit.levels.Keyed`.
struct Names {
    /// Action, rows, selection.
    message: Keys,
    /// The symbol.
    selection: Keys,
    /// Symbol, id, side, amount, price, timestamp.
    row: Keys,
    snapshot: Box<[u8]>,
    removal: Box<[u8]>,
    bid: Box<[u8]>,
}

const ACTION: usize = 0;
const ROWS: usize = 1;
const SELECTION: usize = 2;

const SYMBOL: usize = 0;
const ID: usize = 1;
const SIDE: usize = 2;
const AMOUNT: usize = 3;
const PRICE: usize = 4;
const TIMESTAMP: usize = 5;

/// A row as it stands in a message.
#[derive(Default, Clone, Copy)]
struct Row<'a> {
    symbol: Option<&'a [u8]>,
    id: u64,
    is_bid: bool,
    amount: Option<Number<'a>>,
    price: Option<Number<'a>>,
    timestamp: Option<&'a [u8]>,
}

/// A message whose rows have been read; most have one.
#[derive(Default)]
struct Message<'a> {
    action: Option<&'a [u8]>,
    first: Option<Row<'a>>,
    rest: Vec<Row<'a>>,
    selected: Option<&'a [u8]>,
}

impl<'a> Message<'a> {
    fn rows(&self) -> impl Iterator<Item = &Row<'a>> {
        self.first.iter().chain(&self.rest)
    }

    fn names_an_id_twice(&self) -> bool {
        let mut ids: HashSet<u64, Seeded> = HashSet::default();
        !self.rest.is_empty() && !self.rows().all(|row| ids.insert(row.id))
    }

    /// A snapshot's rows by their symbol; one without rows may tell its symbol otherwise.
    fn by_symbol(&self) -> Vec<(Option<&'a [u8]>, Vec<&Row<'a>>)> {
        let mut places: HashMap<Option<&[u8]>, usize, Seeded> = HashMap::default();
        let mut groups: Vec<(Option<&[u8]>, Vec<&Row>)> = Vec::new();
        for row in self.rows() {
            let place = match groups.last() {
                Some((symbol, _)) if *symbol == row.symbol => groups.len() - 1,
                _ => *places.entry(row.symbol).or_insert_with(|| {
                    groups.push((row.symbol, Vec::new()));
                    groups.len() - 1
                }),
            };
            groups[place].1.push(row);
        }
        if groups.is_empty() && self.selected.is_some() {
            groups.push((self.selected, Vec::new()));
        }
        groups
    }
}

/// A millisecond's text: what is longer is cut by Python.
const TIME_LENGTH: usize = 24;
const MAX_ID_LENGTH: u32 = 18;

impl Table {
    pub fn of(layout: &Bound<PyAny>) -> PyResult<Self> {
        let text = |name: &str| -> PyResult<Box<[u8]>> {
            Ok(layout.getattr(name)?.extract::<String>()?.into_bytes().into())
        };
        let keys = |names: &[&str]| -> PyResult<Keys> {
            let named = |name: &&str| layout.getattr(*name)?.extract::<String>();
            let names: Vec<String> = names.iter().map(named).collect::<PyResult<_>>()?;
            Ok(Keys::new(names.iter().map(String::as_str)))
        };
        let names = Names {
            message: keys(&["action", "rows", "selection"])?,
            selection: keys(&["symbol"])?,
            row: keys(&["symbol", "id", "side", "amount", "price", "timestamp"])?,
            snapshot: text("snapshot")?,
            removal: text("removal")?,
            bid: text("bid")?,
        };
        let (bids, asks) = (Levels::default(), Levels::default());
        Ok(Self { names, prices: Prices::default(), bids, asks, price: Vec::new() })
    }

    /// Make the change that a message tells; if it is odd, nothing has changed.
    pub fn change(&mut self, json: &[u8], engine: &mut Engine) -> Result<(), Odd> {
        let message = self.read(json)?;
        let Self { names, prices, bids, asks, price: printed } = self;
        let first = message.first.as_ref();
        let acts = |action: &[u8]| message.action.is_some_and(|told| equal(told, action));
        let removes = acts(&names.removal);
        // One of the rows counts: Python sees to that.
        if removes && message.names_an_id_twice() {
            return Err(Odd);
        }
        let mut known = prices.lock();
        if acts(&names.snapshot) {
            let groups = message.by_symbol();
            // None may fail after another was made: with several symbols all are tried before.
            if groups.len() > 1 {
                if engine.is_extreme() {
                    return Err(Odd);
                }
                for (symbol, rows) in &groups {
                    symbol.ok_or(Odd)?;
                    gather(rows.iter().copied(), &known, engine, bids, asks)?;
                }
            }
            for (symbol, rows) in groups {
                let time = gather(rows.into_iter(), &known, engine, bids, asks)?;
                emit(symbol, true, bids, asks, &time, engine)?;
            }
        } else {
            let symbol = first.ok_or(Odd)?.symbol;
            let time = gather(message.rows(), &known, engine, bids, asks)?;
            if !(bids.items.is_empty() && asks.items.is_empty()) {
                emit(symbol, false, bids, asks, &time, engine)?;
            }
        }
        for row in message.rows() {
            if removes {
                known.numbers.remove(&row.id);
            } else if let Some(price) = row.price {
                printed.clear();
                if price.write(printed).is_ok() {
                    known.numbers.insert(row.id, Price::printed(printed));
                }
            }
        }
        Ok(())
    }

    fn read<'a>(&self, json: &'a [u8]) -> Result<Message<'a>, Odd> {
        let mut message = Message::default();
        let mut seen = 0;
        let mut at = Walker::new(json);
        at.blanks();
        self.names.message.object(&mut at, |at, place| {
            if let Some(place) = place {
                seen = once(seen, 1 << place)?;
            }
            match place {
                Some(ACTION) => message.action = Some(at.string()?),
                Some(ROWS) => self.read_rows(at, &mut message)?,
                Some(SELECTION) => message.selected = self.read_selection(at)?,
                _ => at.value()?,
            }
            Ok(())
        })?;
        at.blanks();
        if at.is_at_end() && seen & 1 << ROWS != 0 { Ok(message) } else { Err(Odd) }
    }

    fn read_rows<'a>(&self, at: &mut Walker<'a>, message: &mut Message<'a>) -> Result<(), Odd> {
        at.expect(b"[")?;
        at.blanks();
        if at.skip(b"]") {
            return Ok(());
        }
        loop {
            at.blanks();
            let row = if message.first.is_none() {
                message.first.insert(Row::default())
            } else {
                message.rest.push(Row::default());
                message.rest.last_mut().ok_or(Odd)?
            };
            self.read_row(at, row)?;
            at.blanks();
            if !at.skip(b",") {
                return at.expect(b"]");
            }
        }
    }

    fn read_selection<'a>(&self, at: &mut Walker<'a>) -> Result<Option<&'a [u8]>, Odd> {
        let mut symbol = None;
        self.names.selection.object(at, |at, place| {
            if place.is_none() {
                return at.value();
            }
            if symbol.replace(at.string()?).is_some() {
                return Err(Odd);
            }
            Ok(())
        })?;
        Ok(symbol)
    }

    #[inline]
    fn read_row<'a>(&self, at: &mut Walker<'a>, row: &mut Row<'a>) -> Result<(), Odd> {
        let names = &self.names;
        let mut seen = 0;
        names.row.object(at, |at, place| {
            if let Some(place) = place {
                seen = once(seen, 1 << place)?;
            }
            match place {
                Some(SYMBOL) => row.symbol = Some(at.string()?),
                Some(ID) => {
                    let id = at.bare_number()?;
                    if !id.form.is_short_whole(MAX_ID_LENGTH) {
                        return Err(Odd);
                    }
                    row.id = numbers::whole(id.text());
                }
                Some(SIDE) => row.is_bid = equal(at.string()?, &names.bid),
                Some(AMOUNT) => row.amount = Some(at.bare_number()?),
                Some(PRICE) => row.price = Some(at.bare_number()?),
                Some(TIMESTAMP) => {
                    let text = at.string()?;
                    if text.len() != TIME_LENGTH {
                        return Err(Odd);
                    }
                    row.timestamp = Some(text);
                }
                _ => at.value()?,
            }
            Ok(())
        })?;
        if seen & 1 << ID == 0 { Err(Odd) } else { Ok(()) }
    }
}

/// Part rows into bids and asks, with the latest of their times.
fn gather<'a, 'b: 'a>(
    rows: impl Iterator<Item = &'a Row<'b>>,
    known: &Known,
    engine: &mut Engine,
    bids: &mut Levels,
    asks: &mut Levels,
) -> Result<Printed, Odd> {
    let needs = engine.needs().ok_or(Odd)?;
    bids.clear();
    asks.clear();
    let mut latest: Option<&[u8]> = None;
    let (mut with_price, mut without) = (false, false);
    for row in rows {
        latest = latest.max(row.timestamp);
        let levels = if row.is_bid { &mut *bids } else { &mut *asks };
        let amount = row.amount.unwrap_or(Number::ZERO);
        match row.price {
            Some(price) => {
                with_price = true;
                levels.add_numbers(needs, price, amount).map_err(|_| Odd)?;
            }
            None => {
                without = true;
                if let Some(price) = known.numbers.get(&row.id) {
                    add_known(levels, needs, price, amount)?;
                }
            }
        }
    }
    // Prices of a message count for its later rows: Python sees to that.
    if with_price && without {
        return Err(Odd);
    }
    match latest {
        Some(text) => {
            let time = engine.times.read(text).ok_or(Odd)?;
            Ok(Printed::of_text(text, &time))
        }
        None => engine.local_time().map_err(|_| Odd),
    }
}

fn emit(
    symbol: Option<&[u8]>,
    is_snapshot: bool,
    bids: &Levels,
    asks: &Levels,
    time: &Printed,
    engine: &mut Engine,
) -> Result<(), Odd> {
    let symbol = engine.symbol(symbol.ok_or(Odd)?).ok_or(Odd)?;
    if engine.symbols[symbol].allowed {
        engine.change(symbol, is_snapshot, bids, asks, time).map_err(|_| Odd)?;
    }
    Ok(())
}

/// Add a level whose price was printed before.
#[inline]
fn add_known(levels: &mut Levels, needs: Needs, price: &Price, amount: Number) -> Result<(), Odd> {
    let is_usable = match needs {
        Needs::Text => !price.value.is_nan(),
        Needs::Prices | Needs::Sizes => price.value.abs() <= LARGEST,
    };
    if !is_usable {
        return Err(Odd);
    }
    let printed = |out: &mut Vec<u8>| {
        price.text.write(out);
        Ok::<_, Refused>(price.value)
    };
    levels.add_valued(needs, printed, |out| Ok(amount.write(out)?)).map_err(|_| Odd)
}

/// Of a name that comes twice the last counts: Python sees to that.
fn once(seen: u32, bit: u32) -> Result<u32, Odd> {
    if seen & bit == 0 { Ok(seen | bit) } else { Err(Odd) }
}
