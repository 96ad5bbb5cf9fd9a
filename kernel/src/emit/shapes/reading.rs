//! A line that is read by its channel's shape: exactly so, or not at all.

use super::described::{Content, Field, Fields, Place};
use crate::emit::engine::Engine;
use crate::emit::layouts::{self, Key};
use crate::emit::levels::{Levels, Needs};
use crate::json::{Odd, Token, Walker};
use crate::numbers;
use crate::times::Printed;

const MAX_COUNT_LENGTH: u32 = 18;
/// From here on a number is a time in microseconds.
const MICROSECONDS: i64 = 100_000_000_000_000;

/// A number of a row: where its canonical text is, and nothing where it is left out.
pub type Printing = Option<(u32, u32)>;

/// What a row says.
#[derive(Default, Clone, Copy)]
pub struct Row<'a> {
    pub symbol: &'a [u8],
    pub upper: bool,
    /// The id with its key.
    pub id: Printing,
    pub side: &'static [u8],
    pub numbers: [Printing; 4],
    pub time: Option<Printed>,
    pub last_id: i64,
    /// Whether the numbers are a level of a book, and of which side.
    pub level: Option<LevelOf>,
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
pub enum LevelOf {
    Bids,
    Asks,
}

impl LevelOf {
    fn told(is_bid: bool, is_ask: bool) -> Result<Self, Odd> {
        match (is_bid, is_ask) {
            (true, _) => Ok(Self::Bids),
            (_, true) => Ok(Self::Asks),
            _ => Err(Odd),
        }
    }
}

/// Rows of a message that has more than itself.
#[derive(Default)]
pub struct Rows<'a> {
    /// None if the message is its only row.
    pub rows: Option<Vec<Row<'a>>>,
}

impl<'a> Rows<'a> {
    pub fn inherit(&mut self, message: &Row<'a>) {
        for row in self.rows.iter_mut().flatten() {
            row.inherit(message);
        }
    }

    pub fn of<'b>(&'b self, only: &'b Row<'a>) -> &'b [Row<'a>] {
        match &self.rows {
            Some(rows) => rows,
            None => std::slice::from_ref(only),
        }
    }
}

/// A message that is being read.
pub struct Reading<'a, 'b> {
    pub engine: &'b mut Engine,
    pub text: &'b mut Vec<u8>,
    pub bids: &'b mut Levels,
    pub asks: &'b mut Levels,
    pub needs: Needs,
    pub rows: Rows<'a>,
    /// The latest time of levels that have their own, in seconds.
    pub latest: f64,
}

impl<'a> Reading<'a, '_> {
    pub fn content(&mut self, content: &Content, at: &mut Walker<'a>, row: &mut Row<'a>) -> Result<(), Odd> {
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
        let mut seen: u32 = 0;
        fields.keys.object(at, |at, place| {
            let Some(place) = place else { return at.value() };
            if seen >> place & 1 == 1 {
                return Err(Odd);
            }
            seen |= 1 << place;
            self.field(&fields.fields[place], at, row)
        })?;
        if seen & fields.required == fields.required { Ok(()) } else { Err(Odd) }
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
            Field::Levels(side) => {
                let levels = if side.is_bids { &mut *self.bids } else { &mut *self.asks };
                match side.seconds {
                    None => layouts::read_at(at, &side.layout, self.needs, levels)?,
                    Some(place) => {
                        let latest = layouts::read_timed_at(at, &side.layout, place, self.needs, levels)?;
                        self.latest = self.latest.max(latest);
                        let us = self.engine.printer.microseconds((self.latest * 1e6).floor() as i64);
                        row.time = Some(us.ok_or(Odd)?);
                    }
                }
                let has_none = side.priced && memchr::memmem::find(&levels.text, b"{\"price\":0,").is_some();
                return if has_none { Err(Odd) } else { Ok(()) };
            }
            Field::BookRows { layout, symbol, milliseconds } => {
                if let Some(key) = symbol {
                    row.symbol = symbol_of(&of_first(*at, key)?)?;
                }
                if let Some(key) = milliseconds {
                    row.time = Some(self.time(count(&of_first(*at, key)?)?)?);
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
                    (Field::NumberId | Field::AnyId, Token::Number(..)) if is_count(&token) => {}
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
                let number = self.print(in_form(&token, *text)?)?;
                if !nonzero || self.text[number.0 as usize..] != *b"0" {
                    row.numbers[*place as usize] = Some(number);
                }
            }
            Field::SignedAmount { text } => {
                let (number, _) = in_form(&token, *text)?.number()?;
                let unsigned = number.strip_prefix(b"-");
                row.side = if unsigned.is_some() { b"sell" } else { b"buy" };
                let amount = self.print(Token::of_number(unsigned.unwrap_or(number))?)?;
                // Whether -0 is below 0 depends on what it was read as.
                if unsigned.is_some() && self.text[amount.0 as usize..] == *b"0" {
                    return Err(Odd);
                }
                row.numbers[Place::Amount as usize] = Some(amount);
            }
            Field::LevelSide { bid, ask } => row.level = Some(LevelOf::told(bid.is(&token), ask.is(&token))?),
            Field::LevelText { bid, ask } => {
                let Token::Text(text) = token else { return Err(Odd) };
                let mut parts = text.split(|byte| *byte == b',');
                let mut next = || parts.next().ok_or(Odd);
                let (price, side, amount) = (next()?, next()?, next()?);
                row.level = Some(LevelOf::told(*side == **bid, *side == **ask)?);
                for (place, number) in [(Place::Price, price), (Place::Amount, amount)] {
                    row.numbers[place as usize] = Some(self.print(Token::of_number(number)?)?);
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
                let number = in_form(&token, Some(*text))?;
                let time = if *cut { cut_count(&number)? } else { count(&number)? };
                row.time = Some(self.time(time)?);
            }
            Field::Seconds { text } => {
                let (number, _) = in_form(&token, Some(*text))?.number()?;
                let us = (numbers::parse(number).map_err(|_| Odd)? * 1e6).floor();
                // What a cast would change is later than any calendar.
                row.time = Some(self.engine.printer.microseconds(us as i64).ok_or(Odd)?);
            }
            Field::Nanoseconds { text, digits } => {
                let (number, form) = in_form(&token, Some(*text))?.number()?;
                if !form.is_short_whole(MAX_COUNT_LENGTH + 1) {
                    return Err(Odd);
                }
                let number = std::str::from_utf8(number).map_err(|_| Odd)?;
                let ns: i64 = number.parse().map_err(|_| Odd)?;
                let printer = &mut self.engine.printer;
                let printed = match digits {
                    // Where clients know it as a number, it was rounded before it was cut.
                    3 => printer.milliseconds((ns as f64 / 1e6) as i64),
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
            Field::Whole if is_count(&token) => {}
            Field::LastId => row.last_id = count(&token)?,
            _ => return Err(Odd),
        }
        Ok(())
    }

    /// Print a number, and tell where.
    #[inline]
    fn print(&mut self, number: Token) -> Result<(u32, u32), Odd> {
        let (number, form) = number.number()?;
        let start = self.text.len() as u32;
        numbers::write_scanned(number, &form, self.text).map_err(|_| Odd)?;
        Ok((start, self.text.len() as u32))
    }

    /// Print a time in milliseconds, or in microseconds.
    #[inline]
    fn time(&mut self, time: i64) -> Result<Printed, Odd> {
        let printer = &mut self.engine.printer;
        let printed =
            if time < MICROSECONDS { printer.milliseconds(time) } else { printer.microseconds(time) };
        printed.ok_or(Odd)
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

/// What stands at a key of the first of several rows.
fn of_first<'a>(mut at: Walker<'a>, key: &Key) -> Result<Token<'a>, Odd> {
    at.expect(b"[")?;
    at.blanks();
    Ok(layouts::pick(&mut at, [key])?[0])
}

/// The number of a field that stands in quotes, does not, or either.
#[inline]
fn in_form<'a>(token: &Token<'a>, text: Option<bool>) -> Result<Token<'a>, Odd> {
    match token {
        Token::Text(number) if text != Some(false) => Token::of_number(number),
        Token::Number(..) if text != Some(true) => Ok(*token),
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

/// A whole number that is not negative.
#[inline]
fn count(token: &Token) -> Result<i64, Odd> {
    match token {
        Token::Number(text, _) if is_count(token) => Ok(numbers::whole(text) as i64),
        _ => Err(Odd),
    }
}

#[inline]
fn is_count(token: &Token) -> bool {
    matches!(token, Token::Number(_, form) if form.is_short_whole(MAX_COUNT_LENGTH))
}

pub fn printed(printing: Printing, text: &[u8]) -> Result<&[u8], Odd> {
    let (start, end) = printing.ok_or(Odd)?;
    Ok(&text[start as usize..end as usize])
}
