//! Levels of a book gathered into price groups, only those again that changed.

use super::book::{EMPTY_LEVEL, Side};
use crate::numbers::write_float;

/// A group that is shown: its rows (rounding errors may split one), and of how many levels.
struct Shown {
    index: i128,
    /// The rows' text, and where each ends.
    text: Vec<u8>,
    ends: Vec<usize>,
    levels: usize,
}

/// The first groups of one side: bids round down, asks up, amounts are summed from the best.
pub struct Groups {
    depth: usize,
    grouping: f64,
    scale: f64,
    shown: Vec<Shown>,
    /// The best level that is not in them: what lies below cannot change them.
    bound: f64,
    touched: bool,
    /// The rows' text.
    pub rows: Vec<u8>,
}

impl Groups {
    /// `scale` makes the grouping a whole number.
    pub fn new(depth: usize, grouping: f64, scale: f64) -> Self {
        let mut rows = Vec::new();
        for row in 0..depth {
            if row > 0 {
                rows.push(b',');
            }
            rows.extend_from_slice(EMPTY_LEVEL);
        }
        Self { depth, grouping, scale, shown: Vec::new(), bound: f64::NEG_INFINITY, touched: false, rows }
    }

    /// Take note of changed levels.
    pub fn note(&mut self, side: &Side) {
        for key in &side.changed {
            if *key > self.bound {
                self.touched = true;
                let index = self.index(side.sign(), *key);
                self.shown.retain(|group| group.index != index);
            }
        }
    }

    /// Bring `rows` up to date; true when they differ from what they were.
    pub fn refresh(&mut self, side: &Side) -> bool {
        if !self.touched {
            return false;
        }
        self.touched = false;
        let mut known = std::mem::take(&mut self.shown);
        let mut rows = Vec::with_capacity(self.rows.len() + 64);
        let mut count = 0;
        let mut left = side.keys.len();
        while left > 0 && count < self.depth {
            let index = self.index(side.sign(), side.keys[left - 1]);
            let group = match known.iter().position(|group| group.index == index) {
                Some(at) => known.swap_remove(at),
                None => self.gather(side, index, left),
            };
            let fitting = group.ends.len().min(self.depth - count);
            if count > 0 {
                rows.push(b',');
            }
            rows.extend_from_slice(&group.text[..group.ends[fitting - 1]]);
            count += fitting;
            left -= group.levels;
            self.shown.push(group);
        }
        self.bound = if left > 0 { side.keys[left - 1] } else { f64::NEG_INFINITY };
        for _ in count..self.depth {
            if !rows.is_empty() {
                rows.push(b',');
            }
            rows.extend_from_slice(EMPTY_LEVEL);
        }
        let moved = rows != self.rows;
        self.rows = rows;
        moved
    }

    /// The group whose best level is the last of the first `left`.
    fn gather(&self, side: &Side, index: i128, left: usize) -> Shown {
        let sign = side.sign();
        let start = side.keys[..left].partition_point(|key| self.index(sign, *key) < index);
        let mut group = Shown { index, text: Vec::new(), ends: Vec::new(), levels: left - start };
        let mut price = self.price(sign, side.keys[left - 1]);
        let mut sum = 0.0;
        for at in (start..left).rev() {
            if self.scale != 1.0 {
                let each = self.price(sign, side.keys[at]);
                if each != price {
                    group.add(price, sum);
                    (price, sum) = (each, 0.0);
                }
            }
            sum += side.sizes[at];
        }
        group.add(price, sum);
        group
    }

    /// The ordinal of a level's group; grows with the key, as exact math does.
    fn index(&self, sign: f64, key: f64) -> i128 {
        let scaled = sign * key * self.scale;
        let step = self.grouping * self.scale;
        let remainder = remainder(scaled, step);
        let index = ((scaled - remainder) / step).round_ties_even() as i128;
        match (sign < 0.0, remainder > 0.0) {
            (false, _) => index,
            (true, true) => -index - 1,
            (true, false) => -index,
        }
    }

    /// The group's price as JavaScript computes it, rounding errors included.
    fn price(&self, sign: f64, key: f64) -> f64 {
        let scaled = sign * key * self.scale;
        let step = self.grouping * self.scale;
        let remainder = remainder(scaled, step) / self.scale;
        let up = if sign < 0.0 && remainder > 0.0 { step } else { 0.0 };
        (scaled - remainder * self.scale + up) / self.scale
    }
}

/// As `%`, which takes ten times as long as the remainder of whole numbers.
#[inline]
fn remainder(number: f64, step: f64) -> f64 {
    const EXACT: f64 = 9_007_199_254_740_992.0;
    if number.abs() < EXACT && (1.0..EXACT).contains(&step) && number.fract() == 0.0 && step.fract() == 0.0 {
        let whole = (number as i64 % step as i64) as f64;
        return if number.is_sign_negative() && whole == 0.0 { -0.0 } else { whole };
    }
    number % step
}

impl Shown {
    fn add(&mut self, price: f64, amount: f64) {
        if !self.ends.is_empty() {
            self.text.push(b',');
        }
        self.text.extend_from_slice(b"{\"price\":");
        write_known(price, &mut self.text);
        self.text.extend_from_slice(b",\"amount\":");
        write_known(amount, &mut self.text);
        self.text.push(b'}');
        self.ends.push(self.text.len());
    }
}

/// Print a number that was computed of numbers small enough to stay finite.
fn write_known(number: f64, out: &mut Vec<u8>) {
    if write_float(number, out).is_err() {
        out.extend_from_slice(b"null");
    }
}
