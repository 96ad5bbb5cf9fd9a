//! Levels in raw JSON, read by a layout that says where price, amount and side stand.

use pyo3::prelude::*;
use pyo3::types::PyString;

use super::levels::{Levels, Needs};
use crate::json::{Odd, Token, Walker};
use crate::numbers::{self, Short};

/// A field's name, or its position in an array.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Key {
    Name(String),
    Position(usize),
}

/// How levels are written; each kind is described at its namesake in `emit/levels.py`.
#[derive(Debug, Clone)]
pub enum Layout {
    Pairs,
    Flat,
    /// Objects and Positions without an action.
    Picked {
        price: Key,
        amount: Key,
    },
    Acted {
        price: Key,
        amount: Key,
        action: Key,
        removed: Option<String>,
    },
    Sided {
        side: Key,
        price: Key,
        amount: Key,
        bid: String,
    },
    Signed {
        price: Key,
        amount: Key,
        count: Option<Key>,
    },
    /// One that only Python can read.
    Unknown,
}

impl Layout {
    /// Read a layout's attributes.
    pub fn of(layout: &Bound<PyAny>) -> PyResult<Self> {
        Ok(Self::known(layout)?.unwrap_or(Self::Unknown))
    }

    fn known(layout: &Bound<PyAny>) -> PyResult<Option<Self>> {
        let name = layout.get_type().name()?;
        match name.to_str()? {
            "Pairs" => return Ok(Some(Self::Pairs)),
            "Flat" => return Ok(Some(Self::Flat)),
            "Objects" | "Positions" | "Sided" | "Signed" => {}
            _ => return Ok(None),
        }
        let (Some(price), Some(amount)) = (key(layout, "price")?, key(layout, "amount")?) else {
            return Ok(None);
        };
        Ok(match name.to_str()? {
            "Sided" => {
                let bid = layout.getattr("bid")?.extract()?;
                key(layout, "side")?.map(|side| Self::Sided { side, price, amount, bid })
            }
            "Signed" => {
                let count = key(layout, "count")?;
                let known = count.is_some() || layout.getattr("count")?.is_none();
                known.then_some(Self::Signed { price, amount, count })
            }
            "Positions" if !layout.getattr("action")?.is_none() => {
                let removed = layout.getattr("removed")?.extract()?;
                key(layout, "action")?.map(|action| Self::Acted { price, amount, action, removed })
            }
            _ => Some(Self::Picked { price, amount }),
        })
    }
}

/// None for a position from the end, and for what is no key.
pub fn key(layout: &Bound<PyAny>, name: &str) -> PyResult<Option<Key>> {
    let value = layout.getattr(name)?;
    if let Ok(text) = value.cast::<PyString>() {
        return Ok(Some(Key::Name(text.to_str()?.to_owned())));
    }
    Ok(value.extract::<usize>().ok().map(Key::Position))
}

/// Read the levels of one side.
pub fn read(json: &[u8], layout: &Layout, needs: Needs, levels: &mut Levels) -> Result<(), Odd> {
    let mut at = Walker::new(json);
    at.blanks();
    if !at.skip(b"null") {
        read_at(&mut at, layout, needs, levels)?;
    }
    at.blanks();
    if at.is_at_end() { Ok(()) } else { Err(Odd) }
}

/// Read an array of levels, behind which there may be more.
pub fn read_at(at: &mut Walker, layout: &Layout, needs: Needs, levels: &mut Levels) -> Result<(), Odd> {
    at.expect(b"[")?;
    at.blanks();
    if !at.skip(b"]") {
        match layout {
            Layout::Flat => read_flat(at, needs, levels)?,
            Layout::Pairs => rows(at, |at| match short_pair(at) {
                Some((price, amount)) => levels.add_short(needs, price, amount).map_err(|_| Odd),
                None => read_pair(at, needs, levels),
            })?,
            Layout::Picked { price, amount } => rows(at, |at| {
                let [price, amount] = pick(at, [price, amount])?;
                add(levels, needs, price, amount)
            })?,
            Layout::Acted { price, amount, action, removed } => rows(at, |at| {
                let [price, amount, action] = pick(at, [price, amount, action])?;
                let amount = if action.is_text(removed.as_deref()) { Token::ZERO } else { amount };
                add(levels, needs, price, amount)
            })?,
            _ => return Err(Odd),
        }
    }
    Ok(())
}

/// Read an array of levels with a time each, in seconds; gives the latest.
pub fn read_timed_at(
    at: &mut Walker,
    layout: &Layout,
    seconds: usize,
    needs: Needs,
    levels: &mut Levels,
) -> Result<f64, Odd> {
    let Layout::Picked { price: Key::Position(price), amount: Key::Position(amount) } = layout else {
        return Err(Odd);
    };
    let mut latest: f64 = 0.0;
    at.expect(b"[")?;
    at.blanks();
    rows(at, |at| {
        let level = plain_items(at)?;
        let item = |place: usize| level.get(place).copied().flatten().ok_or(Odd);
        latest = latest.max(numbers::parse(item(seconds)?.number()?.0).map_err(|_| Odd)?);
        add(levels, needs, item(*price)?, item(*amount)?)
    })?;
    Ok(latest)
}

/// Read an array of a few texts and numbers.
fn plain_items<'a>(at: &mut Walker<'a>) -> Result<[Option<Token<'a>>; 4], Odd> {
    let mut items = [None; 4];
    at.expect(b"[")?;
    for item in &mut items {
        at.blanks();
        let token = at.token()?;
        if !matches!(token, Token::Text(_) | Token::Number(..)) {
            return Err(Odd);
        }
        *item = Some(token);
        at.blanks();
        if !at.skip(b",") {
            break;
        }
    }
    at.expect(b"]")?;
    Ok(items)
}

/// Read rows that tell their side.
pub fn split(
    json: &[u8],
    layout: &Layout,
    needs: Needs,
    bids: &mut Levels,
    asks: &mut Levels,
) -> Result<(), Odd> {
    let mut at = Walker::new(json);
    at.blanks();
    split_at(&mut at, layout, needs, bids, asks)?;
    at.blanks();
    if at.is_at_end() { Ok(()) } else { Err(Odd) }
}

/// Read an array of rows that tell their side, behind which there may be more.
pub fn split_at(
    at: &mut Walker,
    layout: &Layout,
    needs: Needs,
    bids: &mut Levels,
    asks: &mut Levels,
) -> Result<(), Odd> {
    at.expect(b"[")?;
    at.blanks();
    if at.skip(b"]") {
        return if matches!(layout, Layout::Sided { .. } | Layout::Signed { .. }) {
            Ok(())
        } else {
            Err(Odd)
        };
    }
    rows(at, |at| split_row(at, layout, needs, bids, asks))
}

/// Read one row that tells its side.
#[inline]
pub fn split_row(
    at: &mut Walker,
    layout: &Layout,
    needs: Needs,
    bids: &mut Levels,
    asks: &mut Levels,
) -> Result<(), Odd> {
    match layout {
        Layout::Sided { side, price, amount, bid } => {
            let [side, price, amount] = pick(at, [side, price, amount])?;
            let levels = if side.is_text(Some(bid)) { bids } else { asks };
            add(levels, needs, price, amount)
        }
        Layout::Signed { price, amount, count } => {
            let (price, amount, gone) = match count {
                None => {
                    let [price, amount] = pick(at, [price, amount])?;
                    (price, amount, false)
                }
                Some(count) => {
                    let [price, amount, count] = pick(at, [price, amount, count])?;
                    (price, amount, is_zero(count)?)
                }
            };
            let (negative, unsigned) = unsigned(amount)?;
            let levels = if negative { &mut *asks } else { bids };
            add(levels, needs, price, if gone { Token::ZERO } else { unsigned })?;
            // An amount without a sign removes the level from both sides.
            if !gone && !negative && is_zero(amount)? { add(asks, needs, price, unsigned) } else { Ok(()) }
        }
        _ => Err(Odd),
    }
}

/// Read row after row up to the bracket that ends them.
fn rows<'a>(at: &mut Walker<'a>, mut row: impl FnMut(&mut Walker<'a>) -> Result<(), Odd>) -> Result<(), Odd> {
    loop {
        at.blanks();
        row(at)?;
        at.blanks();
        if !at.skip(b",") {
            return at.expect(b"]");
        }
    }
}

fn read_flat(at: &mut Walker, needs: Needs, levels: &mut Levels) -> Result<(), Odd> {
    loop {
        at.blanks();
        let price = at.number()?;
        at.blanks();
        at.expect(b",")?;
        at.blanks();
        let amount = at.number()?;
        levels.add_scanned(needs, price, amount).map_err(|_| Odd)?;
        at.blanks();
        if !at.skip(b",") {
            return at.expect(b"]");
        }
    }
}

/// Read a pair of two short numbers, both in quotes, and nothing else; most are.
#[inline]
fn short_pair<'a>(at: &mut Walker<'a>) -> Option<(Short<'a>, Short<'a>)> {
    let mut ahead = *at;
    if !ahead.skip(b"[\"") {
        return None;
    }
    let price = ahead.short()?;
    if !ahead.skip(b"\",\"") {
        return None;
    }
    let amount = ahead.short()?;
    if !ahead.skip(b"\"]") {
        return None;
    }
    *at = ahead;
    Some((price, amount))
}

#[inline]
fn read_pair(at: &mut Walker, needs: Needs, levels: &mut Levels) -> Result<(), Odd> {
    at.expect(b"[")?;
    at.blanks();
    let price = at.number()?;
    at.blanks();
    at.expect(b",")?;
    at.blanks();
    let amount = at.number()?;
    levels.add_scanned(needs, price, amount).map_err(|_| Odd)?;
    at.blanks();
    while at.skip(b",") {
        at.blanks();
        at.value()?;
        at.blanks();
    }
    at.expect(b"]")
}

#[inline]
pub fn add(levels: &mut Levels, needs: Needs, price: Token, amount: Token) -> Result<(), Odd> {
    levels.add_scanned(needs, price.number()?, amount.number()?).map_err(|_| Odd)
}

/// Read an array or object and give what stands at these keys.
pub fn pick<'a, const N: usize>(at: &mut Walker<'a>, keys: [&Key; N]) -> Result<[Token<'a>; N], Odd> {
    let mut found = [None; N];
    if at.skip(b"[") {
        at.blanks();
        let mut position = 0;
        if !at.skip(b"]") {
            loop {
                let mut wanted = false;
                for (place, key) in keys.iter().enumerate() {
                    if **key == Key::Position(position) {
                        if !wanted {
                            found[place] = Some(at.token()?);
                            wanted = true;
                        } else {
                            return Err(Odd);
                        }
                    }
                }
                if !wanted {
                    at.value()?;
                }
                position += 1;
                at.blanks();
                if !at.skip(b",") {
                    at.expect(b"]")?;
                    break;
                }
                at.blanks();
            }
        }
    } else {
        at.object(|at, name| {
            for (place, key) in keys.iter().enumerate() {
                if matches!(key, Key::Name(key) if key.as_bytes() == name) {
                    if found[place].replace(at.token()?).is_some() {
                        return Err(Odd);
                    }
                    return Ok(());
                }
            }
            at.value()
        })?;
    }
    let mut tokens = [Token::ZERO; N];
    for (token, found) in tokens.iter_mut().zip(found) {
        *token = found.ok_or(Odd)?;
    }
    Ok(tokens)
}

fn is_zero(token: Token) -> Result<bool, Odd> {
    let (text, form) = token.number()?;
    // Only what is long or has an exponent may be 0 without looking like it.
    let plain = text.len() < 300 && !text.iter().any(|byte| matches!(byte, b'e' | b'E'));
    if plain && text.iter().any(|byte| matches!(byte, b'1'..=b'9')) {
        return Ok(false);
    }
    let mut printed = Vec::new();
    numbers::write_scanned(text, &form, &mut printed).map_err(|_| Odd)?;
    Ok(printed == b"0")
}

/// Tell whether a number is below 0, and give it without its sign.
fn unsigned(token: Token) -> Result<(bool, Token), Odd> {
    let (text, _) = token.number()?;
    let Some(rest) = text.strip_prefix(b"-") else { return Ok((false, token)) };
    // -0 prints without its sign, hence belongs to the bids.
    let negative = !is_zero(token)?;
    Ok((negative, Token::of_number(rest)?))
}
