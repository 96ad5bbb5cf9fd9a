//! The keys of objects: which of those that are looked for comes next.

use std::sync::OnceLock;

use crate::json::{Odd, Walker, same};

/// More keys than these are looked for one by one.
const MAX_LEARNED: usize = 64;

/// Names of keys that are looked for in objects of a kind.
pub struct Keys {
    /// Each in quotes and with its colon.
    known: Vec<Box<[u8]>>,
    /// The keys of the first such object, known or not: those of the others come in nearly the same order.
    order: OnceLock<Vec<Key>>,
}

/// A key with its quotes and colon.
struct Key {
    name: Box<[u8]>,
    /// Its first eight bytes, and which bits of them count.
    head: u64,
    mask: u64,
    /// Its place among those that are looked for.
    place: Option<usize>,
}

impl Key {
    fn new(name: &[u8], place: Option<usize>) -> Self {
        let name = quoted(name);
        let mut head = [0; 8];
        let mut mask = [0; 8];
        for (at, byte) in name.iter().take(8).enumerate() {
            (head[at], mask[at]) = (*byte, 0xff);
        }
        Self { name, head: u64::from_le_bytes(head), mask: u64::from_le_bytes(mask), place }
    }

    /// Go past it if it comes next.
    #[inline]
    fn skip(&self, at: &mut Walker) -> bool {
        let Some(head) = at.rest().first_chunk() else { return false };
        if (u64::from_le_bytes(*head) ^ self.head) & self.mask != 0 {
            return false;
        }
        let length = self.name.len();
        if length > 8 && !at.rest().get(8..length).is_some_and(|rest| same(rest, &self.name[8..])) {
            return false;
        }
        at.pass(length)
    }
}

impl Keys {
    pub fn new<'a>(names: impl IntoIterator<Item = &'a str>) -> Self {
        Self {
            known: names.into_iter().map(|name| quoted(name.as_bytes())).collect(),
            order: OnceLock::new(),
        }
    }

    /// Read an object; `field` gets each key's place and has to go past its value.
    #[inline]
    pub fn object<'a>(
        &self,
        at: &mut Walker<'a>,
        mut field: impl FnMut(&mut Walker<'a>, Option<usize>) -> Result<(), Odd>,
    ) -> Result<(), Odd> {
        let start = *at;
        let learned = self.order.get();
        let mut expected = learned.map_or(&[][..], Vec::as_slice);
        at.expect(b"{")?;
        at.blanks();
        if at.skip(b"}") {
            return Ok(());
        }
        loop {
            // Blanks are looked for where something else than expected comes.
            let place = match next(&mut expected, at) {
                Some(key) => key.place,
                None => self.find(at, &mut expected)?,
            };
            at.blanks();
            field(at, place)?;
            if at.skip(b",") {
                continue;
            }
            at.blanks();
            if !at.skip(b",") {
                at.expect(b"}")?;
                if learned.is_none() {
                    self.learn(start);
                }
                return Ok(());
            }
        }
    }

    fn find<'a>(&'a self, at: &mut Walker, expected: &mut &'a [Key]) -> Result<Option<usize>, Odd> {
        at.blanks();
        let name = at.key()?;
        if let Some(order) = self.order.get() {
            if let Some(found) = order.iter().position(|key| is(&key.name, name)) {
                *expected = &order[found + 1..];
            }
        }
        Ok(self.place(name))
    }

    /// Learn the order of keys from an object that could be read.
    #[cold]
    fn learn(&self, mut object: Walker) {
        let mut order = Vec::new();
        let _ = object.object(|at, name| {
            if order.len() < MAX_LEARNED {
                order.push(Key::new(name, self.place(name)));
            }
            at.value()
        });
        let _ = self.order.set(order);
    }

    fn place(&self, name: &[u8]) -> Option<usize> {
        self.known.iter().position(|known| is(known, name))
    }
}

/// Go past the next of these keys if it comes, or past the one behind it: one may be left out.
#[inline(always)]
fn next<'a>(expected: &mut &'a [Key], at: &mut Walker) -> Option<&'a Key> {
    let (key, rest) = match *expected {
        [key, rest @ ..] if key.skip(at) => (key, rest),
        [_, key, rest @ ..] if key.skip(at) => (key, rest),
        _ => return None,
    };
    *expected = rest;
    Some(key)
}

fn quoted(name: &[u8]) -> Box<[u8]> {
    [b"\"", name, b"\":"].concat().into()
}

/// Tell whether a key with its quotes and colon is this name.
#[inline]
fn is(key: &[u8], name: &[u8]) -> bool {
    key.len() == name.len() + 3 && same(&key[1..=name.len()], name)
}
