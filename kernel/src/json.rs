//! A cursor over one line of JSON in the one form that emitters print: no blanks, no escapes.

use crate::numbers::{self, Form, Number, Short};

/// Something other than what was expected: Python, which knows every form, has to look at it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Odd;

#[derive(Debug, Clone, Copy)]
pub struct Cursor<'a> {
    rest: &'a [u8],
}

impl<'a> Cursor<'a> {
    pub fn new(rest: &'a [u8]) -> Self {
        Self { rest }
    }

    /// Go past `text` if it comes next.
    #[inline]
    pub fn skip(&mut self, text: &[u8]) -> bool {
        match self.rest.strip_prefix(text) {
            Some(rest) => {
                self.rest = rest;
                true
            }
            None => false,
        }
    }

    #[inline]
    pub fn expect(&mut self, text: &[u8]) -> Result<(), Odd> {
        if self.skip(text) { Ok(()) } else { Err(Odd) }
    }

    pub fn is_at_end(&self) -> bool {
        self.rest.is_empty()
    }

    /// Read a string, without its quotes.
    #[inline]
    pub fn string(&mut self) -> Result<&'a [u8], Odd> {
        self.expect(b"\"")?;
        self.string_rest()
    }

    /// Read a string whose first quote is behind us.
    #[inline]
    pub fn string_rest(&mut self) -> Result<&'a [u8], Odd> {
        let mut ascii = true;
        let mut at = plain_length(self.rest);
        loop {
            match self.rest.get(at).ok_or(Odd)? {
                b'"' => {
                    let text = &self.rest[..at];
                    if !ascii && std::str::from_utf8(text).is_err() {
                        return Err(Odd);
                    }
                    self.rest = &self.rest[at + 1..];
                    return Ok(text);
                }
                b'\\' | ..0x20 => return Err(Odd),
                0x80.. => ascii = false,
                _ => {}
            }
            at += 1;
        }
    }

    /// Read a number: its text, and what that consists of.
    #[inline]
    pub fn number(&mut self) -> Result<(&'a [u8], Form), Odd> {
        let form = numbers::scan(self.rest).ok_or(Odd)?;
        let (text, rest) = self.rest.split_at(form.end());
        self.rest = rest;
        Ok((text, form))
    }
}

/// Tell whether short texts are the same; a library's function takes longer.
#[inline]
pub fn equal(one: &[u8], other: &[u8]) -> bool {
    one.len() == other.len() && same(one, other)
}

/// The same of texts of the same length.
#[inline]
pub fn same(one: &[u8], other: &[u8]) -> bool {
    let mut words = one.chunks_exact(8).zip(other.chunks_exact(8));
    if let (Some(end), Some(other_end)) = (one.last_chunk::<8>(), other.last_chunk::<8>()) {
        return end == other_end && words.all(|(one, other)| word(one) == word(other));
    }
    if let (Some(end), Some(other_end)) = (one.last_chunk::<4>(), other.last_chunk::<4>()) {
        return end == other_end && one[..4] == other[..4];
    }
    one.iter().zip(other).all(|(one, other)| one == other)
}

#[inline]
fn word(eight: &[u8]) -> u64 {
    u64::from_le_bytes(eight.try_into().unwrap_or_default())
}

/// How many bytes from the start on are plain ASCII: no quote, backslash or control character.
#[inline]
fn plain_length(text: &[u8]) -> usize {
    const ONES: u64 = 0x0101_0101_0101_0101;
    const HIGHS: u64 = 0x8080_8080_8080_8080;
    let mut length = 0;
    for chunk in text.chunks_exact(8) {
        let word = word(chunk);
        let zeros = |word: u64| word.wrapping_sub(ONES) & !word;
        let quotes = zeros(word ^ (ONES * b'"' as u64));
        let backslashes = zeros(word ^ (ONES * b'\\' as u64));
        let controls = word.wrapping_sub(ONES * 0x20) & !word;
        // Below the first byte that is found, all are told rightly.
        let found = (quotes | backslashes | controls | word) & HIGHS;
        if found != 0 {
            return length + found.trailing_zeros() as usize / 8;
        }
        length += 8;
    }
    length
}

/// A value that is a string or a literal, or the number in either.
#[derive(Debug, Clone, Copy)]
pub enum Token<'a> {
    /// A string without escapes, without its quotes.
    Text(&'a [u8]),
    Number(&'a [u8], Form),
    Null,
    True,
    False,
}

impl<'a> Token<'a> {
    pub const ZERO: Self = Self::Number(b"0", Form::ZERO);

    pub fn of_number(text: &'a [u8]) -> Result<Self, Odd> {
        let form = numbers::scan(text).filter(|form| form.end() == text.len()).ok_or(Odd)?;
        Ok(Self::Number(text, form))
    }

    /// A number, or the one that a string has in it.
    #[inline]
    pub fn number(self) -> Result<(&'a [u8], Form), Odd> {
        match self {
            Self::Number(text, form) => Ok((text, form)),
            Self::Text(text) => {
                let form = numbers::scan(text).filter(|form| form.end() == text.len()).ok_or(Odd)?;
                Ok((text, form))
            }
            _ => Err(Odd),
        }
    }

    /// What stands there.
    pub fn text(self) -> &'a [u8] {
        match self {
            Self::Text(text) | Self::Number(text, _) => text,
            _ => b"",
        }
    }

    pub fn is_text(self, text: Option<&str>) -> bool {
        matches!((self, text), (Self::Text(found), Some(text)) if found == text.as_bytes())
    }
}

/// How deep JSON may be nested; Python tells what is wrong with what is deeper.
const MAX_DEPTH: usize = 32;

/// Goes through any JSON: what is wanted is read, what is not is checked and passed over.
#[derive(Debug, Clone, Copy)]
pub struct Walker<'a> {
    at: Cursor<'a>,
}

impl<'a> Walker<'a> {
    pub fn new(json: &'a [u8]) -> Self {
        Self { at: Cursor::new(json) }
    }

    #[inline]
    pub fn skip(&mut self, text: &[u8]) -> bool {
        self.at.skip(text)
    }

    /// What is ahead.
    #[inline]
    pub fn rest(&self) -> &'a [u8] {
        self.at.rest
    }

    /// Go past so many bytes; false if there are less.
    #[inline]
    pub fn pass(&mut self, count: usize) -> bool {
        let rest = self.at.rest.get(count..);
        self.at.rest = rest.unwrap_or(self.at.rest);
        rest.is_some()
    }

    #[inline]
    pub fn expect(&mut self, text: &[u8]) -> Result<(), Odd> {
        self.at.expect(text)
    }

    pub fn is_at_end(&self) -> bool {
        self.at.is_at_end()
    }

    #[inline]
    pub fn blanks(&mut self) {
        // Hardly anybody sends any.
        if let [..=b' ', ..] = self.at.rest {
            self.pass_blanks();
        }
    }

    #[cold]
    fn pass_blanks(&mut self) {
        while let [b' ' | b'\t' | b'\n' | b'\r', rest @ ..] = self.at.rest {
            self.at.rest = rest;
        }
    }

    #[inline]
    pub fn string(&mut self) -> Result<&'a [u8], Odd> {
        self.at.string()
    }

    /// Read a number, or the one that a string has in it.
    #[inline]
    pub fn number(&mut self) -> Result<(&'a [u8], Form), Odd> {
        if let [b'"', rest @ ..] = self.at.rest {
            if let Some(form) = numbers::scan(rest) {
                if let (text, [b'"', rest @ ..]) = rest.split_at(form.end()) {
                    self.at.rest = rest;
                    return Ok((text, form));
                }
            }
        }
        self.token()?.number()
    }

    /// Read a short number, if there is one.
    #[inline]
    pub fn short(&mut self) -> Option<Short<'a>> {
        let number = numbers::short(self.at.rest)?;
        self.at.rest = &self.at.rest[number.end()..];
        Some(number)
    }

    /// Read a number that is not in quotes.
    #[inline(always)]
    pub fn bare_number(&mut self) -> Result<Number<'a>, Odd> {
        let number = Number::scan(self.at.rest).ok_or(Odd)?;
        // What no double can hold is an error, also where nobody looks at it.
        if number.form.may_be_infinite() && numbers::parse(number.text()).is_err() {
            return Err(Odd);
        }
        self.at.rest = &self.at.rest[number.form.end()..];
        Ok(number)
    }

    /// Read a string or a literal.
    #[inline]
    pub fn token(&mut self) -> Result<Token<'a>, Odd> {
        match self.at.rest.first() {
            Some(b'"') => Ok(Token::Text(self.at.string()?)),
            Some(b'-' | b'0'..=b'9') => {
                let number = self.bare_number()?;
                Ok(Token::Number(number.text(), number.form))
            }
            _ if self.skip(b"null") => Ok(Token::Null),
            _ if self.skip(b"true") => Ok(Token::True),
            _ if self.skip(b"false") => Ok(Token::False),
            _ => Err(Odd),
        }
    }

    /// Pass over a value of any kind.
    pub fn value(&mut self) -> Result<(), Odd> {
        self.nested_value(MAX_DEPTH)
    }

    fn nested_value(&mut self, depth: usize) -> Result<(), Odd> {
        match self.at.rest.first() {
            Some(b'{') => {
                let depth = depth.checked_sub(1).ok_or(Odd)?;
                self.object(|at, _| at.nested_value(depth))
            }
            Some(b'[') => {
                let depth = depth.checked_sub(1).ok_or(Odd)?;
                self.expect(b"[")?;
                self.blanks();
                if self.skip(b"]") {
                    return Ok(());
                }
                loop {
                    self.blanks();
                    self.nested_value(depth)?;
                    self.blanks();
                    if !self.skip(b",") {
                        return self.expect(b"]");
                    }
                }
            }
            Some(b'"') => self.pass_string(),
            _ => self.token().map(|_| ()),
        }
    }

    /// Pass over a string, simple escapes included.
    fn pass_string(&mut self) -> Result<(), Odd> {
        self.expect(b"\"")?;
        let text = self.at.rest;
        let plain = plain_length(text);
        if text.get(plain) == Some(&b'"') {
            self.at.rest = &text[plain + 1..];
            return Ok(());
        }
        let mut at = plain;
        loop {
            match text.get(at).ok_or(Odd)? {
                b'"' => break,
                b'\\'
                    if matches!(
                        text.get(at + 1),
                        Some(b'"' | b'\\' | b'/' | b'b' | b'f' | b'n' | b'r' | b't')
                    ) =>
                {
                    at += 2;
                }
                b'\\' | ..0x20 => return Err(Odd),
                _ => at += 1,
            }
        }
        std::str::from_utf8(&text[..at]).map_err(|_| Odd)?;
        self.at.rest = &text[at + 1..];
        Ok(())
    }

    /// Read a name and the colon behind it.
    #[inline]
    pub fn key(&mut self) -> Result<&'a [u8], Odd> {
        let name = self.string()?;
        self.blanks();
        self.expect(b":")?;
        Ok(name)
    }

    /// Read an object; `field` gets each name and has to go past its value.
    #[inline]
    pub fn object(
        &mut self,
        mut field: impl FnMut(&mut Self, &'a [u8]) -> Result<(), Odd>,
    ) -> Result<(), Odd> {
        self.expect(b"{")?;
        self.blanks();
        if self.skip(b"}") {
            return Ok(());
        }
        loop {
            self.blanks();
            let name = self.key()?;
            self.blanks();
            field(self, name)?;
            self.blanks();
            if !self.skip(b",") {
                return self.expect(b"}");
            }
        }
    }
}
