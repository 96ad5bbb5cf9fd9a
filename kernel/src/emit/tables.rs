//! Keyed tables: rows that name an id instead of the price they had before.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use pyo3::prelude::*;
use pyo3::types::{PyFloat, PyString};

use super::arguments::utf8;
use super::engine::Engine;
use super::layouts;
use super::levels::Levels;
use super::text::Text;
use crate::hashing::Seeded;
use crate::json::{Odd, Token, Walker};
use crate::times::Printed;

/// The price of each id, as it is printed.
type Known = HashMap<Box<[u8]>, Text, Seeded>;

/// What a table remembers; Python reads and writes it as well.
#[pyclass(frozen, module = "tardis_machine_kernel")]
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

/// As Python's dict has it: 1 and 1.0 are one id, "1" is another.
fn id_of(id: &Bound<PyAny>) -> PyResult<Box<[u8]>> {
    if let Ok(text) = id.cast::<PyString>() {
        return Ok(format!("\"{}", text.to_str()?).into_bytes().into());
    }
    if let Ok(number) = id.cast::<PyFloat>() {
        if number.value().fract() == 0.0 {
            let whole = number.call_method0("__int__")?;
            return Ok(whole.str()?.to_str()?.as_bytes().into());
        }
    }
    Ok(id.str()?.to_str()?.as_bytes().into())
}

#[pymethods]
impl Prices {
    fn get<'py>(&self, id: &Bound<'py, PyAny>) -> PyResult<Option<Bound<'py, PyString>>> {
        let known = self.lock();
        let Some(price) = known.get(&id_of(id)?) else { return Ok(None) };
        Ok(Some(PyString::new(id.py(), utf8(price.as_bytes())?)))
    }

    fn pop(&self, id: &Bound<PyAny>, _default: Option<Py<PyAny>>) -> PyResult<()> {
        let id = id_of(id)?;
        self.lock().remove(&id);
        Ok(())
    }

    fn __setitem__(&self, id: &Bound<PyAny>, price: &Bound<PyAny>) -> PyResult<()> {
        let id = id_of(id)?;
        let text = price.str()?;
        self.lock().insert(id, Text::new(text.to_str()?.as_bytes()));
        Ok(())
    }
}

/// A keyed table: what its messages look like, and the price of each id.
pub struct Table {
    names: Names,
    pub prices: Prices,
}

/// The attributes of `emit.levels.Keyed`.
struct Names {
    rows: String,
    action: String,
    snapshot: String,
    removal: String,
    selection: String,
    symbol: String,
    id: String,
    side: String,
    price: String,
    amount: String,
    timestamp: String,
    bid: String,
}

/// A row as it stands in a message.
#[derive(Default, Clone, Copy)]
struct Row<'a> {
    symbol: Option<&'a [u8]>,
    id: Option<&'a [u8]>,
    is_bid: bool,
    amount: Option<Token<'a>>,
    price: Option<Token<'a>>,
    timestamp: Option<&'a [u8]>,
}

/// A message whose rows have been read.
#[derive(Default)]
struct Message<'a> {
    action: Option<&'a [u8]>,
    rows: Vec<Row<'a>>,
    selected: Option<&'a [u8]>,
}

/// A change of one symbol, ready to be made.
struct Change<'a> {
    symbol: &'a [u8],
    bids: Levels,
    asks: Levels,
    time: Printed,
}

/// A millisecond's text: what is longer is cut by Python.
const TIME_LENGTH: usize = 24;
const MAX_ID_LENGTH: usize = 18;

impl Table {
    pub fn of(layout: &Bound<PyAny>) -> PyResult<Self> {
        let name = |name: &str| layout.getattr(name)?.extract::<String>();
        let names = Names {
            rows: name("rows")?,
            action: name("action")?,
            snapshot: name("snapshot")?,
            removal: name("removal")?,
            selection: name("selection")?,
            symbol: name("symbol")?,
            id: name("id")?,
            side: name("side")?,
            price: name("price")?,
            amount: name("amount")?,
            timestamp: name("timestamp")?,
            bid: name("bid")?,
        };
        Ok(Self { names, prices: Prices::default() })
    }

    /// Make the change that a message tells; if it is odd, nothing has changed.
    pub fn change(&self, json: &[u8], engine: &mut Engine) -> Result<(), Odd> {
        let message = self.read(json)?;
        let is_snapshot = message.action == Some(self.names.snapshot.as_bytes());
        let mut known = self.prices.lock();
        let changes = if is_snapshot {
            self.snapshot(&message, &known, engine)?
        } else {
            let first = message.rows.first().ok_or(Odd)?;
            let change = self.gather(first.symbol, message.rows.iter(), &known, engine)?;
            let is_empty = change.bids.items.is_empty() && change.asks.items.is_empty();
            if is_empty { Vec::new() } else { vec![change] }
        };
        let [first, rest @ ..] = &changes[..] else {
            self.learn(&message, &mut known);
            return Ok(());
        };
        // What may be refused is tried before anything has changed; only times far away are.
        if !rest.is_empty() && engine.is_timed() {
            return Err(Odd);
        }
        for change in std::iter::once(first).chain(rest) {
            let name = std::str::from_utf8(change.symbol).map_err(|_| Odd)?;
            let symbol = engine.symbol(name);
            if engine.symbols[symbol].allowed {
                engine
                    .change(symbol, is_snapshot, &change.bids, &change.asks, &change.time)
                    .map_err(|_| Odd)?;
            }
        }
        self.learn(&message, &mut known);
        Ok(())
    }

    fn learn(&self, message: &Message, known: &mut Known) {
        let removes = message.action == Some(self.names.removal.as_bytes());
        for row in &message.rows {
            let Some(id) = row.id else { continue };
            if removes {
                known.remove(id);
            } else if let Some(price) = row.price {
                let text = Text::new(price.text());
                match known.get_mut(id) {
                    Some(known) => *known = text,
                    None => {
                        known.insert(id.into(), text);
                    }
                }
            }
        }
    }

    /// A snapshot may have several symbols, or no rows at all.
    fn snapshot<'a>(
        &self,
        message: &Message<'a>,
        known: &Known,
        engine: &mut Engine,
    ) -> Result<Vec<Change<'a>>, Odd> {
        let mut symbols: Vec<Option<&[u8]>> = Vec::new();
        for row in &message.rows {
            if symbols.last() != Some(&row.symbol) && !symbols.contains(&row.symbol) {
                symbols.push(row.symbol);
            }
        }
        if symbols.is_empty() && message.selected.is_some() {
            symbols.push(message.selected);
        }
        let mut changes = Vec::new();
        for symbol in symbols {
            let rows = message.rows.iter().filter(|row| row.symbol == symbol);
            changes.push(self.gather(symbol, rows, known, engine)?);
        }
        Ok(changes)
    }

    /// Part rows into bids and asks, with the latest of their times.
    fn gather<'a, 'b>(
        &self,
        symbol: Option<&'a [u8]>,
        rows: impl Iterator<Item = &'b Row<'a>>,
        known: &Known,
        engine: &mut Engine,
    ) -> Result<Change<'a>, Odd>
    where
        'a: 'b,
    {
        let symbol = symbol.ok_or(Odd)?;
        let needs = engine.needs();
        let (mut bids, mut asks) = (Levels::default(), Levels::default());
        let mut latest: Option<&[u8]> = None;
        let (mut with_price, mut without) = (false, false);
        for row in rows {
            latest = latest.max(row.timestamp);
            let price = match row.price {
                Some(price) => {
                    with_price = true;
                    price
                }
                None => {
                    without = true;
                    match known.get(row.id.ok_or(Odd)?) {
                        Some(price) => Token::of_number(price.as_bytes())?,
                        None => continue,
                    }
                }
            };
            let amount = row.amount.unwrap_or(Token::ZERO);
            let levels = if row.is_bid { &mut bids } else { &mut asks };
            let needs = needs.ok_or(Odd)?;
            layouts::add(levels, needs, price, amount)?;
        }
        // Prices of a message count for its later rows: Python sees to that.
        if with_price && without {
            return Err(Odd);
        }
        let time = match latest {
            Some(text) => {
                let time = engine.times.read(text).ok_or(Odd)?;
                Printed::of_text(text, &time)
            }
            None => engine.local_time().map_err(|_| Odd)?,
        };
        Ok(Change { symbol, bids, asks, time })
    }

    fn read<'a>(&self, json: &'a [u8]) -> Result<Message<'a>, Odd> {
        let names = &self.names;
        let mut message = Message::default();
        let mut seen = 0;
        let mut at = Walker::new(json);
        at.blanks();
        at.object(|at, name| {
            if name == names.action.as_bytes() {
                seen = once(seen, 1)?;
                message.action = Some(at.string()?);
            } else if name == names.rows.as_bytes() {
                seen = once(seen, 2)?;
                at.expect(b"[")?;
                at.blanks();
                if at.skip(b"]") {
                    return Ok(());
                }
                loop {
                    at.blanks();
                    message.rows.push(self.read_row(at)?);
                    at.blanks();
                    if !at.skip(b",") {
                        return at.expect(b"]");
                    }
                }
            } else if name == names.selection.as_bytes() {
                seen = once(seen, 4)?;
                let mut seen = 0;
                at.object(|at, name| {
                    if name != names.symbol.as_bytes() {
                        return at.value();
                    }
                    seen = once(seen, 1)?;
                    message.selected = Some(at.string()?);
                    Ok(())
                })?;
            } else {
                at.value()?;
            }
            Ok(())
        })?;
        at.blanks();
        if at.is_at_end() && seen & 2 != 0 { Ok(message) } else { Err(Odd) }
    }

    #[inline]
    fn read_row<'a>(&self, at: &mut Walker<'a>) -> Result<Row<'a>, Odd> {
        let names = &self.names;
        let mut row = Row::default();
        let mut seen = 0;
        at.object(|at, name| {
            if name == names.symbol.as_bytes() {
                seen = once(seen, 1)?;
                row.symbol = Some(at.string()?);
            } else if name == names.id.as_bytes() {
                seen = once(seen, 2)?;
                match at.token()? {
                    Token::Number(text, form) if form.is_short_whole(MAX_ID_LENGTH) => row.id = Some(text),
                    _ => return Err(Odd),
                }
            } else if name == names.side.as_bytes() {
                seen = once(seen, 4)?;
                row.is_bid = at.string()? == names.bid.as_bytes();
            } else if name == names.amount.as_bytes() {
                seen = once(seen, 8)?;
                row.amount = match at.token()? {
                    number @ Token::Number(..) => Some(number),
                    _ => return Err(Odd),
                };
            } else if name == names.price.as_bytes() {
                seen = once(seen, 16)?;
                row.price = match at.token()? {
                    number @ Token::Number(..) => Some(number),
                    _ => return Err(Odd),
                };
            } else if name == names.timestamp.as_bytes() {
                seen = once(seen, 32)?;
                let text = at.string()?;
                if text.len() != TIME_LENGTH {
                    return Err(Odd);
                }
                row.timestamp = Some(text);
            } else {
                at.value()?;
            }
            Ok(())
        })?;
        if row.id.is_none() { Err(Odd) } else { Ok(row) }
    }
}

/// Of a name that comes twice the last counts: Python sees to that.
fn once(seen: u32, bit: u32) -> Result<u32, Odd> {
    if seen & bit == 0 { Ok(seen | bit) } else { Err(Odd) }
}
