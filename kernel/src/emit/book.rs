//! The order book: levels with their JSON text, sorted so that the best is last.

use super::levels::{Level, Levels};
use super::text::Text;

/// What stands in a snapshot for a level that the book does not have.
pub const EMPTY_LEVEL: &[u8] = b"{}";
const EMPTY_LISTED: &[u8] = b"{},";

/// What a change did to a level.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Done {
    Added,
    Changed,
    Removed,
}

/// A change, and how many levels are better than what it touched.
#[derive(Debug, Clone, Copy)]
pub struct Touch {
    pub rank: usize,
    pub done: Done,
}

/// One side of a book.
///
/// Its levels are keyed by a signed price that grows towards the best one, which stands last:
/// changes near the top then move little memory however deep the book is.
pub struct Side {
    sign: f64,
    grouped: bool,
    pub keys: Vec<f64>,
    /// Each with the comma that follows it in a list.
    texts: Vec<Text>,
    /// For groups: the amount of each key, and which keys changed since they took note.
    pub sizes: Vec<f64>,
    pub changed: Vec<f64>,
    /// What the last update did, one after the other; or whether it began anew.
    pub touches: Vec<Touch>,
    pub replaced: bool,
}

impl Side {
    fn new(sign: f64, grouped: bool) -> Self {
        Self {
            sign,
            grouped,
            keys: Vec::new(),
            texts: Vec::new(),
            sizes: Vec::new(),
            changed: Vec::new(),
            touches: Vec::new(),
            replaced: false,
        }
    }

    pub fn sign(&self) -> f64 {
        self.sign
    }

    pub fn best(&self) -> Option<f64> {
        self.keys.last().copied()
    }

    /// Start anew with a snapshot's levels, which may contain zeros.
    fn replace(&mut self, levels: &Levels) {
        if self.grouped {
            self.changed.extend_from_slice(&self.keys);
        }
        self.keys.clear();
        self.texts.clear();
        self.sizes.clear();
        let sign = self.sign;
        let mut order: Vec<&Level> = levels.items.iter().collect();
        order.sort_by(|one, other| (sign * one.price).total_cmp(&(sign * other.price)));
        for (at, level) in order.iter().enumerate() {
            // Of equal prices the last counts.
            if order.get(at + 1).is_some_and(|next| next.price == level.price) || levels.is_removal(level) {
                continue;
            }
            self.keys.push(sign * level.price);
            self.texts.push(Text::listed(levels.json(level)));
            if self.grouped {
                self.sizes.push(level.size);
            }
        }
        if self.grouped {
            self.changed.extend_from_slice(&self.keys);
        }
        self.replaced = true;
    }

    /// Apply changed levels; amount 0 removes one, and nothing where there is none.
    fn apply(&mut self, levels: &Levels) {
        for level in &levels.items {
            let key = self.sign * level.price;
            let position = self.position(key);
            let found = self.keys.get(position) == Some(&key);
            if levels.is_removal(level) {
                if found {
                    self.remove(position);
                }
                continue;
            }
            let text = levels.json(level);
            let done = if found { Done::Changed } else { Done::Added };
            if !found {
                self.keys.insert(position, key);
                self.texts.insert(position, Text::listed(text));
                if self.grouped {
                    self.sizes.insert(position, level.size);
                }
            } else if self.texts[position].is_listed(text) {
                continue;
            } else {
                self.texts[position] = Text::listed(text);
                if self.grouped {
                    self.sizes[position] = level.size;
                }
            }
            self.touch(key, self.keys.len() - 1 - position, done);
        }
    }

    /// Where a key is, or would be; near the end more often than not.
    #[inline]
    fn position(&self, key: f64) -> usize {
        let keys = &self.keys;
        let mut start = keys.len();
        let mut step = 8;
        while start > 0 && keys[start - 1] >= key {
            let next = start.saturating_sub(step);
            if next == 0 || keys[next] < key {
                return next + keys[next..start].partition_point(|each| *each < key);
            }
            start = next;
            step *= 2;
        }
        start
    }

    fn remove(&mut self, position: usize) {
        let key = self.keys.remove(position);
        self.texts.remove(position);
        if self.grouped {
            self.sizes.remove(position);
        }
        self.touch(key, self.keys.len() - position, Done::Removed);
    }

    #[inline]
    fn touch(&mut self, key: f64, rank: usize, done: Done) {
        self.touches.push(Touch { rank, done });
        if self.grouped {
            self.changed.push(key);
        }
    }

    /// The text of the level that so many are better than, with a comma behind it; `{}` if there is none.
    #[inline]
    pub fn text(&self, rank: usize) -> &[u8] {
        let place = self.texts.len().checked_sub(rank + 1);
        place.map_or(EMPTY_LISTED, |place| self.texts[place].as_bytes())
    }

    /// Write the first levels from a rank on, `{}` for missing ones, a comma behind each; `ends`
    /// takes where each ends.
    #[inline]
    pub fn write_top(&self, from: usize, depth: usize, out: &mut Vec<u8>, ends: &mut Vec<usize>) {
        let there = self.texts.len();
        out.reserve((depth - from) * size_of::<Text>());
        for text in self.texts[there.saturating_sub(depth)..there.saturating_sub(from)].iter().rev() {
            text.write(out);
            ends.push(out.len());
        }
        while ends.len() < depth {
            out.extend_from_slice(EMPTY_LISTED);
            ends.push(out.len());
        }
    }
}

/// Both sides; changes before the first snapshot are ignored, crossed levels removed.
pub struct Book {
    pub bids: Side,
    pub asks: Side,
    pub ready: bool,
}

impl Book {
    pub fn new(grouped: bool) -> Self {
        Self { bids: Side::new(1.0, grouped), asks: Side::new(-1.0, grouped), ready: false }
    }

    pub fn update(&mut self, is_snapshot: bool, bids: &Levels, asks: &Levels) {
        for side in [&mut self.bids, &mut self.asks] {
            side.touches.clear();
            side.replaced = false;
        }
        if is_snapshot {
            self.ready = true;
            self.asks.replace(asks);
            self.bids.replace(bids);
        } else if self.ready {
            self.asks.apply(asks);
            self.bids.apply(bids);
        } else {
            return;
        }
        if self.is_crossed() {
            self.uncross(asks);
        }
    }

    fn is_crossed(&self) -> bool {
        match (self.bids.best(), self.asks.best()) {
            (Some(bid), Some(ask)) => bid >= -ask,
            _ => false,
        }
    }

    /// Remove what the exchange did not: the side that this change did not bring.
    fn uncross(&mut self, asks: &Levels) {
        let best_ask = -self.asks.best().unwrap_or_default();
        let brought = asks.items.iter().any(|level| level.price == best_ask);
        while self.is_crossed() {
            let stale = if brought { &mut self.bids } else { &mut self.asks };
            stale.remove(stale.keys.len() - 1);
        }
    }
}
