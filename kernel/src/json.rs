//! A cursor over one line of JSON in the one form that emitters print: no blanks, no escapes.

use crate::numbers::{self, Form};

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
        for (at, byte) in self.rest.iter().enumerate() {
            match byte {
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
        }
        Err(Odd)
    }

    /// Read a number: its text, and what that consists of.
    #[inline]
    pub fn number(&mut self) -> Result<(&'a [u8], Form), Odd> {
        let form = numbers::scan(self.rest).ok_or(Odd)?;
        let (text, rest) = self.rest.split_at(form.end);
        self.rest = rest;
        Ok((text, form))
    }
}
