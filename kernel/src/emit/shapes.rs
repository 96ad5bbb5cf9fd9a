//! Shapes of raw messages, as exchanges describe them, and the lines that have one.

use std::collections::HashMap;
use std::sync::atomic::{AtomicI64, Ordering};
use std::sync::{Arc, Mutex};

use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use pyo3::types::{PyBool, PyDict, PyString, PyTuple};

use super::engine::{BOOK_TICKER, Engine};
use super::layouts::{self, Key, Layout};
use super::levels::{Levels, Needs, Refused, computable};
use super::tables::Table;
use crate::hashing::Seeded;
use crate::json::{Odd, Token, Walker};
use crate::numbers;
use crate::times::Printed;

const MAX_HEADS: usize = 100_000;
const MAX_COUNT_LENGTH: usize = 18;
/// From here on a number is a time in microseconds.
const MICROSECONDS: i64 = 100_000_000_000_000;
const CLOSED: i64 = i64::MAX;

/// What a mapper lets pass: updates of its book from an id on, or none.
#[pyclass(frozen, module = "tardis_machine_kernel")]
#[derive(Clone)]
pub struct Gate {
    oldest: Arc<AtomicI64>,
}

impl Gate {
    pub fn new() -> Self {
        Self { oldest: Arc::new(AtomicI64::new(CLOSED)) }
    }

    /// The oldest id that may pass; none while it is closed.
    #[inline]
    fn oldest(&self) -> Option<i64> {
        Some(self.oldest.load(Ordering::Relaxed)).filter(|oldest| *oldest != CLOSED)
    }
}

#[pymethods]
impl Gate {
    /// Let updates pass whose last id is not below `oldest`.
    fn open(&self, oldest: &Bound<PyAny>) {
        self.oldest.store(oldest.extract().unwrap_or(CLOSED), Ordering::Relaxed);
    }

    fn close(&self) {
        self.oldest.store(CLOSED, Ordering::Relaxed);
    }
}

/// The gates of a channel that all symbols share.
#[pyclass(frozen, module = "tardis_machine_kernel")]
#[derive(Clone, Default)]
pub struct Gates {
    gates: Arc<Mutex<HashMap<Box<[u8]>, Gate, Seeded>>>,
}

impl Gates {
    #[inline]
    fn oldest(&self, symbol: &[u8]) -> Option<i64> {
        self.gates.lock().ok()?.get(symbol)?.oldest()
    }
}

#[pymethods]
impl Gates {
    /// Make the gate of a symbol anew, closed.
    fn of(&self, symbol: &str) -> Gate {
        let gate = Gate::new();
        if let Ok(mut gates) = self.gates.lock() {
            // Without its gate a symbol is its mapper's.
            if gates.len() >= MAX_HEADS {
                gates.clear();
            }
            gates.insert(symbol.as_bytes().into(), gate.clone());
        }
        gate
    }
}

/// A time as a mapper told it, or as it was read here.
enum Known {
    Told(Py<PyAny>),
    Read(Printed),
}

/// The latest time of each symbol's books, which mapper and kernel both know.
#[pyclass(frozen, module = "tardis_machine_kernel")]
#[derive(Clone, Default)]
pub struct Times {
    times: Arc<Mutex<HashMap<Box<[u8]>, Known, Seeded>>>,
}

impl Times {
    fn tell(&self, symbol: &[u8], time: Known) {
        let Ok(mut times) = self.times.lock() else { return };
        match times.get_mut(symbol) {
            Some(known) => *known = time,
            None => {
                if times.len() >= MAX_HEADS {
                    times.clear();
                }
                times.insert(symbol.into(), time);
            }
        }
    }
}

#[pymethods]
impl Times {
    fn get<'py>(&self, py: Python<'py>, symbol: &str) -> Option<Bound<'py, PyAny>> {
        match self.times.lock().ok()?.get(symbol.as_bytes())? {
            Known::Told(time) => Some(time.bind(py).clone()),
            Known::Read(time) => {
                let text = std::str::from_utf8(time.as_bytes()).ok()?;
                Some(PyString::new(py, text).into_any())
            }
        }
    }

    fn __setitem__(&self, symbol: &str, time: Py<PyAny>) {
        self.tell(symbol.as_bytes(), Known::Told(time));
    }
}

/// What a channel's mapper remembers, and lines here depend on or change.
pub enum Memory {
    None,
    Gate(Gate),
    Gates(Gates),
    Times(Times),
}

impl Memory {
    pub fn of(memory: Option<&Bound<PyAny>>) -> PyResult<Self> {
        let Some(memory) = memory else { return Ok(Self::None) };
        if let Ok(gates) = memory.cast::<Gates>() {
            return Ok(Self::Gates(gates.get().clone()));
        }
        if let Ok(times) = memory.cast::<Times>() {
            return Ok(Self::Times(times.get().clone()));
        }
        Ok(Self::Gate(memory.cast::<Gate>()?.get().clone()))
    }

    /// The oldest id of a symbol that may pass; odd where its mapper has to look at the line.
    #[inline]
    fn oldest(&self, symbol: &[u8]) -> Result<i64, Odd> {
        match self {
            Self::None | Self::Times(_) => Ok(i64::MIN),
            Self::Gate(gate) => gate.oldest().ok_or(Odd),
            Self::Gates(gates) => gates.oldest(symbol).ok_or(Odd),
        }
    }
}

/// A value that a field is compared with.
#[derive(Debug, Clone, PartialEq, Eq)]
enum Value {
    Text(Box<[u8]>),
    True,
    False,
}

impl Value {
    fn of(value: &Bound<PyAny>) -> PyResult<Self> {
        if let Ok(flag) = value.cast::<PyBool>() {
            return Ok(if flag.is_true() { Self::True } else { Self::False });
        }
        Ok(Self::Text(value.cast::<PyString>()?.to_str()?.as_bytes().into()))
    }

    fn several(values: &Bound<PyAny>) -> PyResult<Vec<Self>> {
        values.cast::<PyTuple>()?.iter().map(|value| Self::of(&value)).collect()
    }

    #[inline]
    fn is(&self, token: &Token) -> bool {
        match (self, token) {
            (Self::Text(text), Token::Text(found)) => **text == **found,
            (Self::True, Token::True) | (Self::False, Token::False) => true,
            _ => false,
        }
    }
}

/// What numbers a message has, by their place in it.
#[derive(Debug, Clone, Copy)]
enum Place {
    /// Also a bid's price and amount.
    Price = 0,
    Amount = 1,
    AskPrice = 2,
    AskAmount = 3,
}

/// What stands at a key; each kind is described at its namesake in `emit/shapes.py`.
enum Field {
    Content(Content),
    Single(Content),
    Rows(Content),
    Symbol { upper: bool, after: Box<[u8]>, until: Box<[u8]> },
    Id { optional: bool },
    NumberId,
    AnyId,
    Number { place: Place, text: Option<bool>, nonzero: bool },
    SignedAmount { text: Option<bool> },
    Side { buy: Value, sell: Value },
    Milliseconds { optional: bool, text: bool, cut: bool },
    Seconds { text: bool },
    Nanoseconds { text: bool, digits: usize },
    Iso { digits: usize },
    Levels { layout: Layout, bids: bool, priced: bool },
    BookRows { layout: Layout, symbol: Option<Key> },
    BookRow(Layout),
    LevelSide { bid: Value, ask: Value },
    LevelText { bid: Box<[u8]>, ask: Box<[u8]> },
    Plain,
    Is(Vec<Value>),
    Unless(Vec<Value>),
    Absent,
    Nonzero,
    Whole,
    LastId,
}

/// An object, or an array that has exactly these items.
enum Content {
    Object(Fields),
    Items(Vec<Field>),
}

impl Content {
    fn of(fields: &Bound<PyAny>) -> PyResult<Self> {
        Ok(match fields.cast::<PyTuple>() {
            Ok(items) => Self::Items(items.iter().map(|item| Field::of(&item)).collect::<PyResult<_>>()?),
            Err(_) => Self::Object(Fields::of(fields)?),
        })
    }
}

/// An object's keys.
struct Fields {
    /// Each name in quotes and with its colon, and what stands there.
    fields: Vec<(Box<[u8]>, Field)>,
    /// Those that must be there, a bit for each.
    required: u32,
}

impl Fields {
    fn of(fields: &Bound<PyAny>) -> PyResult<Self> {
        let mut found = Vec::new();
        let mut required = 0;
        for (place, (name, field)) in fields.cast::<PyDict>()?.iter().enumerate() {
            let name = format!("\"{}\":", name.cast::<PyString>()?.to_str()?).into_bytes().into();
            let field = Field::of(&field)?;
            if place >= 32 {
                return Err(PyValueError::new_err("a shape has at most 32 keys in an object"));
            }
            if !matches!(
                field,
                Field::Unless(_)
                    | Field::Absent
                    | Field::Whole
                    | Field::Plain
                    | Field::Id { optional: true }
                    | Field::Milliseconds { optional: true, .. }
            ) {
                required |= 1 << place;
            }
            found.push((name, field));
        }
        Ok(Self { fields: found, required })
    }
}

impl Field {
    fn of(field: &Bound<PyAny>) -> PyResult<Self> {
        let kind = field.get_type().name()?;
        let get = |name: &str| field.getattr(name);
        let number = |place| -> PyResult<Self> {
            Ok(Self::Number { place, text: get("text")?.extract()?, nonzero: get("nonzero")?.extract()? })
        };
        let flag = |name: &str| get(name)?.extract::<bool>();
        let text = |name: &str| Ok::<_, PyErr>(get(name)?.extract::<String>()?.into_bytes().into());
        let levels = |bids| -> PyResult<Self> {
            Ok(Self::Levels { layout: Layout::of(&get("layout")?)?, bids, priced: flag("priced")? })
        };
        Ok(match kind.to_str()? {
            "Object" | "Items" => Self::Content(Content::of(&get("fields")?)?),
            "Single" => Self::Single(Content::of(&get("fields")?)?),
            "Rows" => Self::Rows(Content::of(&get("fields")?)?),
            "Symbol" => Self::Symbol { upper: flag("upper")?, after: text("after")?, until: text("until")? },
            "TextId" => Self::Id { optional: get("optional")?.extract()? },
            "NumberId" => Self::NumberId,
            "AnyId" => Self::AnyId,
            "Price" | "BidPrice" => number(Place::Price)?,
            "Amount" | "BidAmount" => number(Place::Amount)?,
            "AskPrice" => number(Place::AskPrice)?,
            "AskAmount" => number(Place::AskAmount)?,
            "TakerSide" => Self::Side { buy: Value::of(&get("buy")?)?, sell: Value::of(&get("sell")?)? },
            "SignedAmount" => Self::SignedAmount { text: get("text")?.extract()? },
            "Milliseconds" => {
                Self::Milliseconds { optional: flag("optional")?, text: flag("text")?, cut: flag("cut")? }
            }
            "Seconds" => Self::Seconds { text: flag("text")? },
            "Nanoseconds" => Self::Nanoseconds { text: flag("text")?, digits: get("digits")?.extract()? },
            "Iso" => Self::Iso { digits: get("digits")?.extract()? },
            "Bids" => levels(true)?,
            "Asks" => levels(false)?,
            "BookRows" => {
                let symbol = layouts::key(field, "symbol")?;
                Self::BookRows { layout: Layout::of(&get("layout")?)?, symbol }
            }
            "BookRow" => Self::BookRow(Layout::of(&get("layout")?)?),
            "LevelSide" => Self::LevelSide { bid: Value::of(&get("bid")?)?, ask: Value::of(&get("ask")?)? },
            "LevelText" => Self::LevelText { bid: text("bid")?, ask: text("ask")? },
            "Plain" => Self::Plain,
            "Is" => Self::Is(Value::several(&get("values")?)?),
            "Unless" => Self::Unless(Value::several(&get("values")?)?),
            "Absent" => Self::Absent,
            "Nonzero" => Self::Nonzero,
            "Whole" => Self::Whole,
            "LastId" => Self::LastId,
            other => return Err(PyValueError::new_err(format!("no such field of a shape: {other}"))),
        })
    }
}

/// What a line of a shape becomes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Emits {
    Trade,
    /// Where `filled`, lines without levels are left to the mapper.
    Book {
        is_snapshot: bool,
        filled: bool,
    },
    BookTicker,
}

/// A described message.
enum Shape {
    Fields {
        emits: Emits,
        content: Content,
    },
    /// A keyed table, whose layout is description enough.
    Table(usize),
}

/// A number of a row: where its canonical text is, and nothing where it is left out.
type Printing = Option<(u32, u32)>;

/// What a row says.
#[derive(Default, Clone, Copy)]
struct Row<'a> {
    symbol: &'a [u8],
    upper: bool,
    /// The id with its key.
    id: Printing,
    side: &'static [u8],
    numbers: [Printing; 4],
    time: Option<Printed>,
    last_id: i64,
    /// Whether the numbers are a level of a book, and of which side.
    level: Option<LevelOf>,
}

impl<'a> Row<'a> {
    /// Take over what the message says for all its rows.
    fn inherit(&mut self, message: &Row<'a>) {
        if self.symbol.is_empty() {
            (self.symbol, self.upper) = (message.symbol, message.upper);
        }
        self.time = self.time.or(message.time);
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum LevelOf {
    Bids,
    Asks,
}

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
    channels: HashMap<Box<[u8]>, Channel, Seeded>,
    text: Vec<u8>,
    bids: Levels,
    asks: Levels,
    upper: String,
}

impl Default for Shapes {
    fn default() -> Self {
        Self {
            heads: Heads::None,
            shapes: Vec::new(),
            channels: HashMap::default(),
            text: Vec::new(),
            bids: Levels::default(),
            asks: Levels::default(),
            upper: String::new(),
        }
    }
}

impl Shapes {
    /// Forget which channels have which shape.
    pub fn forget(&mut self) {
        self.heads = Heads::None;
        self.channels.clear();
        self.shapes.clear();
    }

    pub fn is_empty(&self) -> bool {
        self.channels.is_empty()
    }

    pub fn prefixed(&mut self, prefix: &[u8]) {
        self.heads = Heads::Prefixed(prefix.into());
    }

    pub fn keyed(&mut self, key: &[u8], within: usize) {
        self.heads = Heads::Keyed(key.into(), within);
    }

    pub fn ending(&mut self, texts: usize) {
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
            self.channels.clear();
        }
        self.channels.insert(head.into(), Channel { shape: place, memory });
        Ok(())
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
        let head = match &self.heads {
            Heads::None => return Err(Odd),
            Heads::Prefixed(prefix) => {
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
        let channel = self.channels.get(head).ok_or(Odd)?;
        // A gate of its own is asked first: nothing is read of what has to wait.
        if let Memory::Gate(gate) = &channel.memory {
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
                        if let Memory::Times(times) = &channel.memory {
                            times.tell(row.symbol, Known::Read(time));
                        }
                    }
                }
                Ok(())
            }
        }
    }
}

/// Rows of a message that has more than itself.
#[derive(Default)]
struct Rows<'a> {
    /// None if the message is its only row.
    rows: Option<Vec<Row<'a>>>,
}

impl<'a> Rows<'a> {
    fn inherit(&mut self, message: &Row<'a>) {
        for row in self.rows.iter_mut().flatten() {
            row.inherit(message);
        }
    }

    fn of<'b>(&'b self, only: &'b Row<'a>) -> &'b [Row<'a>] {
        match &self.rows {
            Some(rows) => rows,
            None => std::slice::from_ref(only),
        }
    }
}

/// A message that is being read.
struct Reading<'a, 'b> {
    engine: &'b mut Engine,
    text: &'b mut Vec<u8>,
    bids: &'b mut Levels,
    asks: &'b mut Levels,
    needs: Needs,
    rows: Rows<'a>,
}

impl<'a> Reading<'a, '_> {
    fn content(&mut self, content: &Content, at: &mut Walker<'a>, row: &mut Row<'a>) -> Result<(), Odd> {
        match content {
            Content::Object(fields) => self.object(fields, at, row),
            Content::Items(items) => self.items(items, at, row),
        }
    }

    fn items(&mut self, items: &[Field], at: &mut Walker<'a>, row: &mut Row<'a>) -> Result<(), Odd> {
        at.expect(b"[")?;
        for (place, field) in items.iter().enumerate() {
            if place > 0 && !at.skip(b",") {
                // What means nothing need not be there.
                if !items[place..].iter().all(|field| matches!(field, Field::Plain)) {
                    return Err(Odd);
                }
                break;
            }
            at.blanks();
            self.field(field, at, row)?;
            at.blanks();
        }
        at.expect(b"]")
    }

    fn object(&mut self, fields: &Fields, at: &mut Walker<'a>, row: &mut Row<'a>) -> Result<(), Odd> {
        let known = &fields.fields;
        let mut seen: u32 = 0;
        // Keys come in the same order in nearly all messages: the next one is tried first.
        let mut next = 0;
        at.expect(b"{")?;
        at.blanks();
        if at.skip(b"}") {
            return if fields.required == 0 { Ok(()) } else { Err(Odd) };
        }
        loop {
            at.blanks();
            let place = match known.get(next) {
                Some((name, _)) if at.skip(name) => Some(next),
                _ => {
                    let name = at.key()?;
                    known
                        .iter()
                        .position(|(known, _)| *known.get(1..known.len() - 2).unwrap_or_default() == *name)
                }
            };
            at.blanks();
            match place {
                None => at.value()?,
                Some(place) => {
                    next = place + 1;
                    if seen >> place & 1 == 1 {
                        return Err(Odd);
                    }
                    seen |= 1 << place;
                    self.field(&known[place].1, at, row)?;
                }
            }
            at.blanks();
            if !at.skip(b",") {
                at.expect(b"}")?;
                return if seen & fields.required == fields.required { Ok(()) } else { Err(Odd) };
            }
        }
    }

    #[inline]
    fn field(&mut self, field: &Field, at: &mut Walker<'a>, row: &mut Row<'a>) -> Result<(), Odd> {
        match field {
            Field::Content(content) => return self.content(content, at, row),
            Field::Single(content) => {
                at.expect(b"[")?;
                at.blanks();
                self.content(content, at, row)?;
                at.blanks();
                return at.expect(b"]");
            }
            Field::Rows(content) => return self.read_rows(content, at),
            Field::Levels { layout, bids, priced } => {
                let levels = if *bids { &mut *self.bids } else { &mut *self.asks };
                layouts::read_at(at, layout, self.needs, levels)?;
                let has_none = *priced && memchr::memmem::find(&levels.text, b"{\"price\":0,").is_some();
                return if has_none { Err(Odd) } else { Ok(()) };
            }
            Field::BookRows { layout, symbol } => {
                if let Some(key) = symbol {
                    let mut ahead = *at;
                    ahead.expect(b"[")?;
                    ahead.blanks();
                    row.symbol = symbol_of(&layouts::pick(&mut ahead, [key])?[0])?;
                }
                return layouts::split_at(at, layout, self.needs, self.bids, self.asks);
            }
            Field::BookRow(layout) => {
                return layouts::split_row(at, layout, self.needs, self.bids, self.asks);
            }
            _ => {}
        }
        let token = at.token()?;
        match field {
            Field::Symbol { upper, after, until } => {
                let text = between(symbol_of(&token)?, after, until);
                if text.is_empty() || (*upper && !text.is_ascii()) {
                    return Err(Odd);
                }
                (row.symbol, row.upper) = (text, *upper);
            }
            Field::Id { .. } | Field::NumberId | Field::AnyId => {
                match (field, token) {
                    (Field::Id { .. } | Field::AnyId, Token::Text(_)) => {}
                    (Field::NumberId | Field::AnyId, Token::Number(..)) => {
                        count(&token)?;
                    }
                    _ => return Err(Odd),
                }
                // A text without escapes prints as it came, and a number's digits print as text.
                let start = self.text.len() as u32;
                self.text.extend_from_slice(b",\"id\":\"");
                self.text.extend_from_slice(token.text());
                self.text.push(b'"');
                row.id = Some((start, self.text.len() as u32));
            }
            Field::Number { place, text, nonzero } => {
                let is_text = matches!(token, Token::Text(_));
                let (number, form) = token.number()?;
                if text.is_some_and(|text| text != is_text) {
                    return Err(Odd);
                }
                let start = self.text.len();
                numbers::write_scanned(number, &form, self.text).map_err(|_| Odd)?;
                if *nonzero && self.text[start..] == *b"0" {
                    self.text.truncate(start);
                } else {
                    row.numbers[*place as usize] = Some((start as u32, self.text.len() as u32));
                }
            }
            Field::SignedAmount { text } => {
                let is_text = matches!(token, Token::Text(_));
                let (number, mut form) = token.number()?;
                if text.is_some_and(|text| text != is_text) {
                    return Err(Odd);
                }
                row.side = if number[0] == b'-' { b"sell" } else { b"buy" };
                let unsigned = number.strip_prefix(b"-").unwrap_or(number);
                if let Token::Number(_, unsigned_form) = Token::of_number(unsigned)? {
                    form = unsigned_form;
                }
                let start = self.text.len();
                numbers::write_scanned(unsigned, &form, self.text).map_err(|_| Odd)?;
                // Whether -0 is below 0 depends on what it was read as.
                if unsigned.len() < number.len() && self.text[start..] == *b"0" {
                    return Err(Odd);
                }
                row.numbers[Place::Amount as usize] = Some((start as u32, self.text.len() as u32));
            }
            Field::LevelSide { bid, ask } => {
                row.level = Some(if bid.is(&token) {
                    LevelOf::Bids
                } else if ask.is(&token) {
                    LevelOf::Asks
                } else {
                    return Err(Odd);
                });
            }
            Field::LevelText { bid, ask } => {
                let Token::Text(text) = token else { return Err(Odd) };
                let mut parts = text.split(|byte| *byte == b',');
                let (Some(price), Some(side), Some(amount)) = (parts.next(), parts.next(), parts.next())
                else {
                    return Err(Odd);
                };
                row.level = Some(if *side == **bid {
                    LevelOf::Bids
                } else if *side == **ask {
                    LevelOf::Asks
                } else {
                    return Err(Odd);
                });
                for (place, number) in [(Place::Price, price), (Place::Amount, amount)] {
                    let (number, form) = Token::of_number(number)?.number()?;
                    let start = self.text.len();
                    numbers::write_scanned(number, &form, self.text).map_err(|_| Odd)?;
                    row.numbers[place as usize] = Some((start as u32, self.text.len() as u32));
                }
            }
            Field::Plain if matches!(token, Token::Text(_) | Token::Number(..) | Token::Null) => {}
            Field::Side { buy, sell } => {
                row.side = if buy.is(&token) {
                    b"buy"
                } else if sell.is(&token) {
                    b"sell"
                } else {
                    return Err(Odd);
                };
            }
            Field::Milliseconds { text, cut, .. } => {
                let number = in_form(&token, *text)?;
                let time = if *cut { cut_count(&number)? } else { count(&number)? };
                let printer = &mut self.engine.printer;
                let printed =
                    if time < MICROSECONDS { printer.milliseconds(time) } else { printer.microseconds(time) };
                row.time = Some(printed.ok_or(Odd)?);
            }
            Field::Seconds { text } => {
                let (number, _) = in_form(&token, *text)?.number()?;
                let us = (numbers::parse(number).map_err(|_| Odd)? * 1e6).floor();
                // What a cast would change is later than any calendar.
                row.time = Some(self.engine.printer.microseconds(us as i64).ok_or(Odd)?);
            }
            Field::Nanoseconds { text, digits } => {
                let (number, form) = in_form(&token, *text)?.number()?;
                if !form.is_short_whole(MAX_COUNT_LENGTH + 1) {
                    return Err(Odd);
                }
                let number = std::str::from_utf8(number).map_err(|_| Odd)?;
                let ns: i64 = number.parse().map_err(|_| Odd)?;
                let printer = &mut self.engine.printer;
                let printed = match digits {
                    3 => printer.milliseconds(ns / 1_000_000),
                    _ => printer.microseconds(ns / 1000),
                };
                row.time = Some(printed.ok_or(Odd)?);
            }
            Field::Iso { digits: 3 } => {
                let Token::Text(text) = token else { return Err(Odd) };
                if text.len() != 24 {
                    return Err(Odd);
                }
                let time = self.engine.times.read(text).ok_or(Odd)?;
                row.time = Some(Printed::of_text(text, &time));
            }
            Field::Iso { .. } => {
                let Token::Text(text) = token else { return Err(Odd) };
                if text.len() != 27 {
                    return Err(Odd);
                }
                let time = self.engine.times.read(text).ok_or(Odd)?;
                let us = time.second * 1_000_000 + i64::from(time.microsecond);
                row.time = Some(self.engine.printer.microseconds(us).ok_or(Odd)?);
            }
            Field::Is(values) if values.iter().any(|value| value.is(&token)) => {}
            Field::Unless(values)
                if matches!(token, Token::Text(_)) && !values.iter().any(|value| value.is(&token)) => {}
            Field::Nonzero if count(&token)? != 0 => {}
            Field::Whole => {
                count(&token)?;
            }
            Field::LastId => row.last_id = count(&token)?,
            _ => return Err(Odd),
        }
        Ok(())
    }

    fn read_rows(&mut self, content: &Content, at: &mut Walker<'a>) -> Result<(), Odd> {
        let mut rows = Vec::new();
        at.expect(b"[")?;
        at.blanks();
        if !at.skip(b"]") {
            loop {
                at.blanks();
                let mut row = Row::default();
                self.content(content, at, &mut row)?;
                rows.push(row);
                at.blanks();
                if !at.skip(b",") {
                    at.expect(b"]")?;
                    break;
                }
            }
        }
        self.rows.rows = Some(rows);
        Ok(())
    }
}

/// The number of a field that has quotes, or has none.
#[inline]
fn in_form<'a>(token: &Token<'a>, text: bool) -> Result<Token<'a>, Odd> {
    match token {
        Token::Text(number) if text => Token::of_number(number),
        Token::Number(..) if !text => Ok(*token),
        _ => Err(Odd),
    }
}

/// A number's whole part, as a double has it.
fn cut_count(token: &Token) -> Result<i64, Odd> {
    let (number, form) = token.number()?;
    if !form.is_short_fixed(MAX_COUNT_LENGTH, MAX_COUNT_LENGTH) {
        return Err(Odd);
    }
    Ok(numbers::parse(number).map_err(|_| Odd)? as i64)
}

fn symbol_of<'a>(token: &Token<'a>) -> Result<&'a [u8], Odd> {
    match token {
        Token::Text(text) if !text.is_empty() => Ok(text),
        _ => Err(Odd),
    }
}

/// The part of a text behind the first `after`, up to the next `until`.
#[inline]
fn between<'a>(text: &'a [u8], after: &[u8], until: &[u8]) -> &'a [u8] {
    let rest = match memchr::memmem::find(text, after) {
        Some(at) => &text[at + after.len()..],
        None => b"",
    };
    if until.is_empty() {
        return rest;
    }
    &rest[..memchr::memmem::find(rest, until).unwrap_or(rest.len())]
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

/// A whole number that is not negative.
#[inline]
fn count(token: &Token) -> Result<i64, Odd> {
    match token {
        Token::Number(text, form) if form.is_short_whole(MAX_COUNT_LENGTH) => {
            Ok(text.iter().fold(0, |number, digit| number * 10 + i64::from(digit - b'0')))
        }
        _ => Err(Odd),
    }
}

fn printed(printing: Printing, text: &[u8]) -> Result<&[u8], Odd> {
    let (start, end) = printing.ok_or(Odd)?;
    Ok(&text[start as usize..end as usize])
}

#[inline]
fn find(row: &Row, upper: &mut String, engine: &mut Engine) -> Result<usize, Odd> {
    let name = std::str::from_utf8(row.symbol).map_err(|_| Odd)?;
    if name.is_empty() {
        return Err(Odd);
    }
    if !row.upper || !name.bytes().any(|byte| byte.is_ascii_lowercase()) {
        return Ok(engine.symbol(name));
    }
    upper.clear();
    upper.push_str(name);
    upper.make_ascii_uppercase();
    Ok(engine.symbol(upper))
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

fn emit_trade(row: &Row, text: &[u8], upper: &mut String, engine: &mut Engine) -> Result<(), Odd> {
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

fn emit_book_ticker(row: &Row, text: &[u8], upper: &mut String, engine: &mut Engine) -> Result<(), Odd> {
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
