//! Shapes of raw messages, as exchanges describe them, and the lines that have one.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering};

use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use pyo3::types::{PyBool, PyDict, PyString, PyTuple};

use super::engine::{BOOK_TICKER, Engine};
use super::layouts::{self, Layout};
use super::levels::{Levels, Needs, computable};
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
    Object(Fields),
    Rows(Fields),
    Symbol { upper: bool },
    Id { optional: bool },
    NumberId,
    Number { place: Place, text: bool, nonzero: bool },
    Side { buy: Value, sell: Value },
    Milliseconds { optional: bool },
    Iso,
    Bids(Layout),
    Asks(Layout),
    Is(Vec<Value>),
    Unless(Vec<Value>),
    Absent,
    Nonzero,
    Whole,
    LastId,
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
                    | Field::Id { optional: true }
                    | Field::Milliseconds { optional: true }
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
        Ok(match kind.to_str()? {
            "Object" => Self::Object(Fields::of(&get("fields")?)?),
            "Rows" => Self::Rows(Fields::of(&get("fields")?)?),
            "Symbol" => Self::Symbol { upper: get("upper")?.extract()? },
            "TextId" => Self::Id { optional: get("optional")?.extract()? },
            "NumberId" => Self::NumberId,
            "Price" | "BidPrice" => number(Place::Price)?,
            "Amount" | "BidAmount" => number(Place::Amount)?,
            "AskPrice" => number(Place::AskPrice)?,
            "AskAmount" => number(Place::AskAmount)?,
            "TakerSide" => Self::Side { buy: Value::of(&get("buy")?)?, sell: Value::of(&get("sell")?)? },
            "Milliseconds" => Self::Milliseconds { optional: get("optional")?.extract()? },
            "Iso" => Self::Iso,
            "Bids" => Self::Bids(Layout::of(&get("layout")?)?),
            "Asks" => Self::Asks(Layout::of(&get("layout")?)?),
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
    BookChange,
    BookTicker,
}

/// A described message.
enum Shape {
    Fields {
        emits: Emits,
        fields: Fields,
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
}

/// How the head of a line is found, which tells its channel.
enum Heads {
    None,
    /// Behind a constant prefix, up to the next quote.
    Prefixed(Box<[u8]>),
    /// Behind the first such key within so many bytes, up to the next quote.
    Keyed(Box<[u8]>, usize),
}

/// A channel whose lines have a shape.
struct Channel {
    shape: usize,
    gate: Option<Gate>,
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

    /// Lines with this head have this shape. `table` gives the place of a keyed table.
    pub fn describe(
        &mut self,
        head: &[u8],
        shape: &Bound<PyAny>,
        gate: Option<Gate>,
        table: impl FnOnce(&Bound<PyAny>) -> PyResult<usize>,
    ) -> PyResult<()> {
        let place = match self.shapes.iter().position(|(known, _)| known.is(shape)) {
            Some(place) => place,
            None => {
                let emits = shape.getattr("emits")?;
                let made = match emits.extract::<&str>()? {
                    "book_table" => Shape::Table(table(&shape.getattr("layout")?)?),
                    name => {
                        let emits = match name {
                            "trade" => Emits::Trade,
                            "book_change" => Emits::BookChange,
                            "book_ticker" => Emits::BookTicker,
                            _ => return Err(PyValueError::new_err(format!("no shape emits {name}"))),
                        };
                        Shape::Fields { emits, fields: Fields::of(&shape.getattr("fields")?)? }
                    }
                };
                self.shapes.push((shape.clone().unbind(), made));
                self.shapes.len() - 1
            }
        };
        if self.channels.len() >= MAX_HEADS {
            self.channels.clear();
        }
        self.channels.insert(head.into(), Channel { shape: place, gate });
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
        };
        let channel = self.channels.get(head).ok_or(Odd)?;
        let gate = channel.gate.as_ref().map(|gate| gate.oldest.load(Ordering::Relaxed));
        if gate == Some(CLOSED) {
            return Err(Odd);
        }
        match &self.shapes[channel.shape].1 {
            Shape::Table(place) => {
                // Begins a local timestamp only if it comes to that: an odd line is begun by Python.
                engine.begin(local);
                tables.get_mut(*place).ok_or(Odd)?.1.change(message, engine)
            }
            Shape::Fields { emits, fields } => {
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
                reading.object(fields, &mut at, &mut row)?;
                at.blanks();
                if !at.is_at_end() {
                    return Err(Odd);
                }
                let rows = reading.rows;
                match emits {
                    Emits::Trade => {
                        for row in rows.of(&row) {
                            check_trade(row, &self.text, engine)?;
                        }
                        engine.begin(local);
                        for row in rows.of(&row) {
                            emit_trade(row, &self.text, &mut self.upper, engine)?;
                        }
                    }
                    Emits::BookTicker => {
                        engine.begin(local);
                        engine.local_time().map_err(|_| Odd)?;
                        for row in rows.of(&row) {
                            emit_book_ticker(row, &self.text, &mut self.upper, engine)?;
                        }
                    }
                    Emits::BookChange => {
                        let time = row.time.ok_or(Odd)?;
                        engine.begin(local);
                        if gate.is_some_and(|oldest| row.last_id < oldest) {
                            return Ok(());
                        }
                        let symbol = find(&row, &mut self.upper, engine)?;
                        if engine.symbols[symbol].allowed {
                            engine.change(symbol, false, &self.bids, &self.asks, &time).map_err(|_| Odd)?;
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
            Field::Object(fields) => return self.object(fields, at, row),
            Field::Rows(fields) => return self.read_rows(fields, at),
            Field::Bids(layout) => return layouts::read_at(at, layout, self.needs, self.bids),
            Field::Asks(layout) => return layouts::read_at(at, layout, self.needs, self.asks),
            _ => {}
        }
        let token = at.token()?;
        match field {
            Field::Symbol { upper } => {
                let Token::Text(text) = token else { return Err(Odd) };
                if text.is_empty() || (*upper && !text.is_ascii()) {
                    return Err(Odd);
                }
                (row.symbol, row.upper) = (text, *upper);
            }
            Field::Id { .. } | Field::NumberId => {
                match (field, token) {
                    (Field::Id { .. }, Token::Text(_)) => {}
                    (Field::NumberId, Token::Number(..)) => {
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
                if is_text != *text {
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
            Field::Side { buy, sell } => {
                row.side = if buy.is(&token) {
                    b"buy"
                } else if sell.is(&token) {
                    b"sell"
                } else {
                    return Err(Odd);
                };
            }
            Field::Milliseconds { .. } => {
                let time = count(&token)?;
                let printer = &mut self.engine.printer;
                let printed =
                    if time < MICROSECONDS { printer.milliseconds(time) } else { printer.microseconds(time) };
                row.time = Some(printed.ok_or(Odd)?);
            }
            Field::Iso => {
                let Token::Text(text) = token else { return Err(Odd) };
                if text.len() != 24 {
                    return Err(Odd);
                }
                let time = self.engine.times.read(text).ok_or(Odd)?;
                row.time = Some(Printed::of_text(text, &time));
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

    fn read_rows(&mut self, fields: &Fields, at: &mut Walker<'a>) -> Result<(), Odd> {
        let mut rows = Vec::new();
        at.expect(b"[")?;
        at.blanks();
        if !at.skip(b"]") {
            loop {
                at.blanks();
                let mut row = Row::default();
                self.object(fields, at, &mut row)?;
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
