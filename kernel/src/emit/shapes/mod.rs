//! Shapes of raw messages, as exchanges describe them, and the lines that have one.

mod described;
mod memory;
mod reading;

use std::collections::HashMap;

use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;

use super::engine::{BOOK_TICKER, Engine};
use super::levels::{Levels, Needs, Refused, computable};
use super::out::Sink;
use super::tables::Table;
use crate::hashing::Seeded;
use crate::json::{Odd, Walker, same};
use described::{Content, Emits, Place, Shape};
use memory::Known;
pub use memory::{LatestTimes, Memory, UpdateGate, UpdateGates};
use reading::{LevelOf, Reading, Row, Rows, printed};

const MAX_HEADS: usize = 100_000;

/// How the head of a line is found, which tells its channel.
enum Heads {
    None,
    /// Behind a constant prefix, up to the next quote.
    Prefixed(Box<[u8]>),
    /// Behind the first such key within so many bytes, up to the next quote.
    Keyed(Box<[u8]>, usize),
    /// So many texts at the end of an array.
    Ending(usize),
}

/// A channel whose lines have a shape.
struct Channel {
    shape: usize,
    memory: Memory,
}

/// All shapes that mappers have described.
pub struct Shapes {
    heads: Heads,
    shapes: Vec<(Py<PyAny>, Shape)>,
    channels: Vec<Channel>,
    places: HashMap<Box<[u8]>, usize, Seeded>,
    /// Neighbours often are of the same channel.
    last_head: Vec<u8>,
    last_place: usize,
    text: Vec<u8>,
    bids: Levels,
    asks: Levels,
    upper: Vec<u8>,
}

impl Default for Shapes {
    fn default() -> Self {
        Self {
            heads: Heads::None,
            shapes: Vec::new(),
            channels: Vec::new(),
            places: HashMap::default(),
            last_head: Vec::new(),
            last_place: 0,
            text: Vec::new(),
            bids: Levels::default(),
            asks: Levels::default(),
            upper: Vec::new(),
        }
    }
}

impl Shapes {
    /// Forget which channels have which shape.
    pub fn forget(&mut self) {
        self.heads = Heads::None;
        self.forget_channels();
        self.shapes.clear();
    }

    fn forget_channels(&mut self) {
        self.channels.clear();
        self.places.clear();
        self.last_head.clear();
    }

    pub fn is_empty(&self) -> bool {
        self.channels.is_empty()
    }

    pub fn prefixed(&mut self, prefix: &[u8]) {
        self.last_head.clear();
        self.heads = Heads::Prefixed(prefix.into());
    }

    pub fn keyed(&mut self, key: &[u8], within: usize) {
        self.last_head.clear();
        self.heads = Heads::Keyed(key.into(), within);
    }

    pub fn ending(&mut self, texts: usize) {
        self.last_head.clear();
        self.heads = Heads::Ending(texts);
    }

    /// Lines with this head have this shape. `table` gives the place of a keyed table.
    pub fn describe(
        &mut self,
        head: &[u8],
        shape: &Bound<PyAny>,
        memory: Memory,
        table: impl FnOnce(&Bound<PyAny>) -> PyResult<usize>,
    ) -> PyResult<()> {
        let place = match self.shapes.iter().position(|(known, _)| known.is(shape)) {
            Some(place) => place,
            None => {
                let emits = shape.getattr("emits")?;
                let made = match emits.extract::<&str>()? {
                    "book_table" => Shape::Table(table(&shape.getattr("layout")?)?),
                    name => {
                        let filled = shape.getattr("filled")?.extract()?;
                        let emits = match name {
                            "trade" => Emits::Trade,
                            "book_change" => Emits::Book { is_snapshot: false, filled },
                            "book_snapshot" => Emits::Book { is_snapshot: true, filled },
                            "book_ticker" => Emits::BookTicker,
                            _ => return Err(PyValueError::new_err(format!("no shape emits {name}"))),
                        };
                        Shape::Fields { emits, content: Content::of(&shape.getattr("fields")?)? }
                    }
                };
                self.shapes.push((shape.clone().unbind(), made));
                self.shapes.len() - 1
            }
        };
        if self.channels.len() >= MAX_HEADS {
            self.forget_channels();
        }
        let channel = Channel { shape: place, memory };
        match self.places.get(head) {
            Some(known) => self.channels[*known] = channel,
            None => {
                self.places.insert(head.into(), self.channels.len());
                self.channels.push(channel);
            }
        }
        Ok(())
    }

    /// Find the channel that the head of a message tells.
    #[inline]
    fn place_of(&mut self, message: &[u8]) -> Result<usize, Odd> {
        let head = match &self.heads {
            Heads::None => return Err(Odd),
            Heads::Prefixed(prefix) => {
                // Behind the prefix there is no quote in a head.
                if begins(message, &self.last_head) {
                    return Ok(self.last_place);
                }
                if !message.starts_with(prefix) {
                    return Err(Odd);
                }
                let length = memchr::memchr(b'"', &message[prefix.len()..]).ok_or(Odd)?;
                &message[..prefix.len() + length]
            }
            Heads::Keyed(key, within) => {
                let start = memchr::memmem::find(&message[..message.len().min(*within)], key).ok_or(Odd)?;
                let rest = &message[start + key.len()..];
                &rest[..memchr::memchr(b'"', rest).ok_or(Odd)?]
            }
            Heads::Ending(texts) => {
                if !message.ends_with(b"\"]") {
                    return Err(Odd);
                }
                let mut start = message.len();
                for _ in 0..*texts {
                    start = memchr::memmem::rfind(&message[..start], b",\"").ok_or(Odd)?;
                }
                &message[start..]
            }
        };
        if !head.is_empty() && *head == *self.last_head {
            return Ok(self.last_place);
        }
        let place = *self.places.get(head).ok_or(Odd)?;
        self.last_head.clear();
        self.last_head.extend_from_slice(head);
        self.last_place = place;
        Ok(place)
    }

    /// Emit a message if it has its channel's shape; if it is odd, nothing has changed.
    #[inline]
    pub fn emit(
        &mut self,
        local: &[u8],
        message: &[u8],
        engine: &mut Engine,
        tables: &mut [(Py<PyAny>, Table)],
    ) -> Result<(), Odd> {
        let place = self.place_of(message)?;
        let channel = &self.channels[place];
        // A gate of its own is asked first: nothing is read of what has to wait.
        if let Memory::UpdateGate(gate) = &channel.memory {
            gate.oldest().ok_or(Odd)?;
        }
        match &self.shapes[channel.shape].1 {
            Shape::Table(place) => {
                // Begins a local timestamp only if it comes to that: an odd line is begun by Python.
                engine.begin(local);
                tables.get_mut(*place).ok_or(Odd)?.1.change(message, engine)
            }
            Shape::Fields { emits, content } => {
                self.text.clear();
                self.bids.clear();
                self.asks.clear();
                let needs = engine.needs().unwrap_or(Needs::Text);
                let mut reading = Reading {
                    engine,
                    text: &mut self.text,
                    bids: &mut self.bids,
                    asks: &mut self.asks,
                    needs,
                    rows: Rows::default(),
                    latest: 0.0,
                };
                let mut at = Walker::new(message);
                at.blanks();
                let mut row = Row::default();
                reading.content(content, &mut at, &mut row)?;
                at.blanks();
                if !at.is_at_end() {
                    return Err(Odd);
                }
                let mut rows = reading.rows;
                rows.inherit(&row);
                let rows = rows.of(&row);
                let oldest = match rows.first() {
                    Some(first) => channel.memory.oldest(first.symbol)?,
                    None => i64::MIN,
                };
                match emits {
                    Emits::Trade => {
                        for row in rows {
                            check_trade(row, &self.text, engine)?;
                        }
                        engine.begin(local);
                        for row in rows {
                            emit_trade(row, &self.text, &mut self.upper, engine)?;
                        }
                    }
                    Emits::BookTicker => {
                        engine.begin(local);
                        engine.local_time().map_err(|_| Odd)?;
                        for row in rows {
                            emit_book_ticker(row, &self.text, &mut self.upper, engine)?;
                        }
                    }
                    Emits::Book { is_snapshot, filled } => {
                        let time = row.time.ok_or(Odd)?;
                        if let Some(side) = row.level {
                            let levels = if side == LevelOf::Bids { &mut self.bids } else { &mut self.asks };
                            add_level(&row, &self.text, needs, levels)?;
                        }
                        if *filled && self.bids.items.is_empty() && self.asks.items.is_empty() {
                            return Err(Odd);
                        }
                        engine.begin(local);
                        if row.last_id < oldest {
                            return Ok(());
                        }
                        let symbol = find(&row, &mut self.upper, engine)?;
                        if engine.symbols[symbol].allowed {
                            engine
                                .change(symbol, *is_snapshot, &self.bids, &self.asks, &time)
                                .map_err(|_| Odd)?;
                        }
                        if let Memory::LatestTimes(times) = &channel.memory {
                            times.tell(row.symbol, Known::Read(time));
                        }
                    }
                }
                Ok(())
            }
        }
    }
}

/// Tell whether a message begins with a head, which is not empty, and the quote behind it.
#[inline]
fn begins(message: &[u8], head: &[u8]) -> bool {
    !head.is_empty() && message.get(head.len()) == Some(&b'"') && same(&message[..head.len()], head)
}

/// Add the one level that a message tells by itself.
fn add_level(row: &Row, text: &[u8], needs: Needs, levels: &mut Levels) -> Result<(), Odd> {
    let (price, amount) = (printed(row.numbers[0], text)?, printed(row.numbers[1], text)?);
    if amount.starts_with(b"-") {
        return Err(Odd);
    }
    let write = |number: &[u8], out: &mut Vec<u8>| {
        out.extend_from_slice(number);
        Ok::<_, Refused>(())
    };
    levels.add(needs, |out| write(price, out), |out| write(amount, out)).map_err(|_| Odd)
}

#[inline]
fn find(row: &Row, upper: &mut Vec<u8>, engine: &mut Engine) -> Result<usize, Odd> {
    let name = row.symbol;
    if name.is_empty() {
        return Err(Odd);
    }
    if !row.upper || !name.iter().any(u8::is_ascii_lowercase) {
        return engine.symbol(name).ok_or(Odd);
    }
    upper.clear();
    upper.extend_from_slice(name);
    upper.make_ascii_uppercase();
    engine.symbol(upper).ok_or(Odd)
}

/// See that nothing of a trade can be refused, before any of its message's is emitted.
fn check_trade(row: &Row, text: &[u8], engine: &Engine) -> Result<(), Odd> {
    let (price, amount) = (printed(row.numbers[0], text)?, printed(row.numbers[1], text)?);
    row.time.ok_or(Odd)?;
    if row.side.is_empty() || row.symbol.is_empty() {
        return Err(Odd);
    }
    if engine.has_bars() {
        computable(price).and(computable(amount)).map_err(|_| Odd)?;
    }
    Ok(())
}

fn emit_trade(row: &Row, text: &[u8], upper: &mut Vec<u8>, engine: &mut Engine) -> Result<(), Odd> {
    let symbol = find(row, upper, engine)?;
    if !engine.symbols[symbol].allowed {
        return Ok(());
    }
    let (price, amount) = (printed(row.numbers[0], text)?, printed(row.numbers[1], text)?);
    let time = row.time.ok_or(Odd)?;
    let id = match row.id {
        Some(_) => printed(row.id, text)?,
        None => b"",
    };
    engine.trade(symbol, id, price, amount, row.side, &time).map_err(|_| Odd)
}

fn emit_book_ticker(row: &Row, text: &[u8], upper: &mut Vec<u8>, engine: &mut Engine) -> Result<(), Odd> {
    const KEYS: [&[u8]; 4] = [b",\"askAmount\":", b",\"askPrice\":", b",\"bidPrice\":", b",\"bidAmount\":"];
    const PLACES: [Place; 4] = [Place::AskAmount, Place::AskPrice, Place::Price, Place::Amount];
    let symbol = find(row, upper, engine)?;
    if !engine.symbols[symbol].allowed || !engine.sends(BOOK_TICKER) {
        return Ok(());
    }
    let time = match row.time {
        Some(time) => time,
        None => engine.local_time().map_err(|_| Odd)?,
    };
    engine.head(b"book_ticker", symbol);
    for place in engine.book_ticker_keys {
        if let Some((start, end)) = row.numbers[PLACES[place] as usize] {
            engine.output.data.extend_from_slice(KEYS[place]);
            engine.output.data.extend_from_slice(&text[start as usize..end as usize]);
        }
    }
    engine.tail(time.as_bytes());
    Ok(())
}
