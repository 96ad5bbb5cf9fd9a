//! Levels of a book gathered into price groups, only those again that changed.

use super::book::{EMPTY_LEVEL, Side};
use crate::numbers::write_float;

/// A group that is shown: its rows (rounding errors may split one), and of how many levels.
#[derive(Default)]
struct Shown {
    index: i128,
    /// The rows' text, and where each ends.
    text: Vec<u8>,
    ends: Vec<usize>,
    levels: usize,
    /// Whether one of its levels has changed since.
    stale: bool,
}

/// The first groups of one side: bids round down, asks up, amounts are summed from the best.
pub struct Groups {
    depth: usize,
    grouping: f64,
    scale: f64,
    /// From the best on: their indexes fall.
    shown: Vec<Shown>,
    before: Vec<Shown>,
    /// Those that are not shown any more, for their memory.
    spare: Vec<Shown>,
    /// The best level that is not in them: what lies below cannot change them.
    bound: f64,
    touched: bool,
    /// The rows' text.
    pub rows: Vec<u8>,
    rows_before: Vec<u8>,
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
        Self {
            depth,
            grouping,
            scale,
            shown: Vec::new(),
            before: Vec::new(),
            spare: Vec::new(),
            bound: f64::NEG_INFINITY,
            touched: false,
            rows,
            rows_before: Vec::new(),
        }
    }

    /// Take note of changed levels.
    pub fn note(&mut self, side: &Side) {
        for key in &side.changed {
            if *key > self.bound {
                self.touched = true;
                let index = self.index(side.sign(), *key);
                if let Some(group) = self.shown.iter_mut().find(|group| group.index == index) {
                    group.stale = true;
                }
            }
        }
    }

    /// Bring `rows` up to date; true when they differ from what they were.
    pub fn refresh(&mut self, side: &Side) -> bool {
        if !self.touched {
            return false;
        }
        self.touched = false;
        std::mem::swap(&mut self.shown, &mut self.before);
        std::mem::swap(&mut self.rows, &mut self.rows_before);
        self.rows.clear();
        let mut next = 0;
        let mut count = 0;
        let mut left = side.keys.len();
        while left > 0 && count < self.depth {
            let index = self.index(side.sign(), side.keys[left - 1]);
            while self.before.get(next).is_some_and(|group| group.index > index) {
                next += 1;
            }
            let group = match self.before.get_mut(next) {
                Some(known) if known.index == index && !known.stale => {
                    next += 1;
                    std::mem::take(known)
                }
                _ => {
                    let mut group = self.spare.pop().unwrap_or_default();
                    self.gather(&mut group, side, index, left);
                    group
                }
            };
            let fitting = group.ends.len().min(self.depth - count);
            if count > 0 {
                self.rows.push(b',');
            }
            self.rows.extend_from_slice(&group.text[..group.ends[fitting - 1]]);
            count += fitting;
            left -= group.levels;
            self.shown.push(group);
        }
        self.bound = if left > 0 { side.keys[left - 1] } else { f64::NEG_INFINITY };
        for _ in count..self.depth {
            if !self.rows.is_empty() {
                self.rows.push(b',');
            }
            self.rows.extend_from_slice(EMPTY_LEVEL);
        }
        // Those that were taken have left nothing.
        self.spare.extend(self.before.drain(..).filter(|group| !group.ends.is_empty()));
        self.spare.truncate(self.depth);
        self.rows != self.rows_before
    }

    /// Make the group whose best level is the last of the first `left`.
    fn gather(&self, group: &mut Shown, side: &Side, index: i128, left: usize) {
        let sign = side.sign();
        let start = self.start(side, index, left);
        (group.index, group.levels, group.stale) = (index, left - start, false);
        group.text.clear();
        group.ends.clear();
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
    }

    /// Where the levels of a group begin. Its border by one division is as good as exact: what is
    /// next to it tells.
    fn start(&self, side: &Side, index: i128, left: usize) -> usize {
        let keys = &side.keys[..left];
        let is_below = |key: f64| self.index(side.sign(), key) < index;
        let border = index as f64 * self.grouping;
        let mut start = keys.partition_point(|key| *key < border);
        while start < left && is_below(keys[start]) {
            start += 1;
        }
        while start > 0 && !is_below(keys[start - 1]) {
            start -= 1;
        }
        start
    }

    /// The ordinal of a level's group; grows with the key, as exact math does.
    #[inline]
    fn index(&self, sign: f64, key: f64) -> i128 {
        let scaled = sign * key * self.scale;
        let step = self.grouping * self.scale;
        let (index, has_remainder) = match whole(scaled, step) {
            Some(whole) => (i128::from(whole.number / whole.step), whole.number % whole.step > 0),
            None => {
                let remainder = scaled % step;
                (((scaled - remainder) / step).round_ties_even() as i128, remainder > 0.0)
            }
        };
        match (sign < 0.0, has_remainder) {
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
    match whole(number, step) {
        Some(whole) => (whole.number % whole.step) as f64 / whole.by,
        None => number % step,
    }
}

/// Two numbers, both multiplied by a power of two that makes them whole.
struct Whole {
    number: i64,
    step: i64,
    by: f64,
}

/// A double of 1 or more is whole if multiplied by the power of two that gives it 53 digits.
#[inline]
fn whole(number: f64, step: f64) -> Option<Whole> {
    const EXACT: f64 = 9_007_199_254_740_992.0;
    const BIAS: u64 = 1023;
    const DIGITS: u64 = 52;
    if !(1.0..EXACT).contains(&number) {
        return None;
    }
    let exponent = (number.to_bits() >> DIGITS) - BIAS;
    let by = f64::from_bits((BIAS + DIGITS - exponent) << DIGITS);
    let scaled_step = step * by;
    // Beyond that a double is no longer sure to be a whole number, or too large for an i64.
    if !(1.0..EXACT).contains(&scaled_step) || scaled_step as i64 as f64 != scaled_step {
        return None;
    }
    Some(Whole { number: (number * by) as i64, step: scaled_step as i64, by })
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
