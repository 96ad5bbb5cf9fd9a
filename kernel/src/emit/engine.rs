//! What an emitter does, without a word of Python: messages in, NDJSON and computed messages out.

use std::borrow::Cow;
use std::collections::{HashMap, HashSet};

use pyo3::prelude::*;

use super::bars::{Bar, BarType, Trade};
use super::levels::{Levels, Needs, Refused, computable};
use super::out::{Flowed, Out, Sink};
use super::snapshots::{SnapshotType, Snapshots, Writing};
use super::text::write_quoted;
use crate::hashing::Seeded;
use crate::json::equal;
use crate::pour::{ENOUGH, Pour};
use crate::times::{Printed, Printer, Reader};

/// The normalized types, as bits of what is sent.
pub const TRADE: u8 = 1;
pub const BOOK_CHANGE: u8 = 2;
pub const DERIVATIVE_TICKER: u8 = 4;
pub const LIQUIDATION: u8 = 8;
pub const OPTION_SUMMARY: u8 = 16;
pub const BOOK_TICKER: u8 = 32;

/// The fields of a derivative ticker, in the order they are printed.
pub const TICKER_KEYS: [&[u8]; 7] = [
    b",\"lastPrice\":",
    b",\"openInterest\":",
    b",\"fundingRate\":",
    b",\"fundingTimestamp\":",
    b",\"predictedFundingRate\":",
    b",\"indexPrice\":",
    b",\"markPrice\":",
];
/// Where a ticker's funding time stands.
pub const FUNDING_TIME: usize = 3;

/// What is known of a derivative.
#[derive(Default, Clone)]
pub struct Ticker {
    /// Values as they are printed.
    pub fields: [Option<Box<[u8]>>; 7],
    /// The time of funding, in milliseconds.
    pub funding_ms: i64,
    pub time: Option<Printed>,
    pub latest_ms: i64,
}

/// A symbol that was met.
pub struct Symbol {
    /// Symbol and exchange as messages print them.
    pub whose: Vec<u8>,
    /// Its book changes up to their bids, snapshots apart.
    change_head: Vec<u8>,
    pub allowed: bool,
    pub ticker: Option<Ticker>,
    bars: Vec<Bar>,
    snapshots: Option<Snapshots>,
}

/// Where the messages of one local timestamp end.
#[derive(Debug, Clone, Copy)]
pub struct Mark {
    /// Where the timestamp's text ends among all.
    pub stamp_end: u32,
    pub end: usize,
    pub count: u32,
}

/// The messages since the last take.
#[derive(Default)]
pub struct Output {
    pub data: Out,
    pub count: u32,
    pub stamps: Vec<u8>,
    pub marks: Vec<Mark>,
    marked: u32,
}

impl Output {
    fn mark(&mut self, local: &[u8]) {
        if self.count != self.marked {
            self.marked = self.count;
            write_time(local, &mut self.stamps);
            let stamp_end = self.stamps.len() as u32;
            self.marks.push(Mark { stamp_end, end: self.data.len(), count: self.count });
        }
    }

    /// Write it to where it goes in the end; true if nothing has to wait.
    pub fn pour(&mut self, py: Python, pour: &mut Pour) -> PyResult<bool> {
        let flowed = self.data.pour(py, pour, self.count)?;
        if flowed != Flowed::Not {
            (self.count, self.marked) = (0, 0);
            self.stamps.clear();
            self.marks.clear();
        }
        Ok(flowed == Flowed::On)
    }

    /// Give the marks and begin anew.
    pub fn restart(&mut self) -> (Vec<u8>, Vec<Mark>) {
        (self.count, self.marked) = (0, 0);
        let stamps = Vec::with_capacity(self.stamps.len());
        let marks = Vec::with_capacity(self.marks.len());
        (std::mem::replace(&mut self.stamps, stamps), std::mem::replace(&mut self.marks, marks))
    }
}

/// Everything a stream's emitter holds.
pub struct Engine {
    pub exchange: String,
    sends: u8,
    bar_types: Vec<BarType>,
    snapshot_types: Vec<SnapshotType>,
    allowed: Option<HashSet<Box<[u8]>, Seeded>>,
    names: HashMap<Box<[u8]>, usize, Seeded>,
    /// Neighbours often have the same symbol.
    last_name: Vec<u8>,
    last_symbol: usize,
    pub symbols: Vec<Symbol>,
    /// Symbols that have bars, in the order of their first trades.
    with_bars: Vec<usize>,
    local: Vec<u8>,
    /// The latest of all; some feeds go back in time.
    latest: Vec<u8>,
    local_time: Option<Printed>,
    pub output: Output,
    pub times: Reader,
    pub printer: Printer,
    pub ignored_changes: u64,
    /// The order of a book ticker's keys, by their place in the common order.
    pub book_ticker_keys: [usize; 4],
}

impl Engine {
    pub fn new(
        exchange: String,
        sends: u8,
        bar_types: Vec<BarType>,
        snapshot_types: Vec<SnapshotType>,
    ) -> Self {
        Self {
            exchange,
            sends,
            bar_types,
            snapshot_types,
            allowed: None,
            names: HashMap::default(),
            last_name: vec![0xff],
            last_symbol: 0,
            symbols: Vec::new(),
            with_bars: Vec::new(),
            local: Vec::new(),
            latest: Vec::new(),
            local_time: None,
            output: Output::default(),
            times: Reader::default(),
            printer: Printer::default(),
            ignored_changes: 0,
            book_ticker_keys: [0, 1, 2, 3],
        }
    }

    pub fn sends(&self, message_type: u8) -> bool {
        self.sends & message_type != 0
    }

    pub fn has_bars(&self) -> bool {
        !self.bar_types.is_empty()
    }

    /// Tell whether intervals are so long that their ends may be beyond any calendar.
    pub fn is_extreme(&self) -> bool {
        let bars = self.bar_types.iter().map(|kind| kind.interval);
        bars.chain(self.snapshot_types.iter().map(|kind| kind.interval)).any(|interval| interval > 1e14)
    }

    /// Which numbers of a change's levels are needed; None if nothing is made of changes.
    pub fn needs(&self) -> Option<Needs> {
        if self.snapshot_types.iter().any(|kind| kind.grouping.is_some()) {
            Some(Needs::Sizes)
        } else if !self.snapshot_types.is_empty() {
            Some(Needs::Prices)
        } else if self.sends(BOOK_CHANGE) {
            Some(Needs::Text)
        } else {
            None
        }
    }

    pub fn begin(&mut self, local: &[u8]) {
        if !equal(local, &self.local) {
            self.output.mark(&self.local);
            self.local.clear();
            write_time(local, &mut self.local);
            self.local_time = None;
            if local > self.latest.as_slice() {
                self.latest.clear();
                write_time(local, &mut self.latest);
            }
        }
    }

    /// Whether there is enough to be sent, and nothing of the same local time follows: this one does.
    #[inline]
    pub fn is_enough(&self, upcoming: &[u8]) -> bool {
        self.output.data.len() >= ENOUGH && upcoming > self.latest.as_slice()
    }

    pub fn local(&self) -> &[u8] {
        &self.local
    }

    /// The local time as a message's own time.
    pub fn local_time(&mut self) -> Result<Printed, Refused> {
        if let Some(time) = self.local_time {
            return Ok(time);
        }
        let refused = || {
            let text = String::from_utf8_lossy(&self.local);
            Refused(format!("not an ISO time with three or six fractional digits and Z: {text:?}"))
        };
        let time = self.times.read(&self.local).ok_or_else(refused)?;
        let printed = Printed::of_text(&self.local, &time);
        self.local_time = Some(printed);
        Ok(printed)
    }

    pub fn allow(&mut self, symbols: Option<HashSet<Box<[u8]>, Seeded>>) {
        for (name, index) in &self.names {
            self.symbols[*index].allowed = symbols.as_ref().is_none_or(|symbols| symbols.contains(name));
        }
        self.allowed = symbols;
    }

    /// Find a symbol by its UTF-8; None if it is none.
    #[inline]
    pub fn symbol(&mut self, name: &[u8]) -> Option<usize> {
        if equal(&self.last_name, name) {
            return Some(self.last_symbol);
        }
        let index = match self.names.get(name) {
            Some(index) => *index,
            None => self.meet(std::str::from_utf8(name).ok()?),
        };
        self.last_name.clear();
        self.last_name.extend_from_slice(name);
        self.last_symbol = index;
        Some(index)
    }

    /// Returns the names of all symbols found so far.
    pub fn names(&self) -> impl Iterator<Item = Cow<'_, str>> {
        self.names.keys().map(|name| String::from_utf8_lossy(name))
    }

    fn meet(&mut self, name: &str) -> usize {
        let mut whose = Vec::new();
        write_quoted(name, &mut whose);
        whose.extend_from_slice(b",\"exchange\":");
        write_quoted(&self.exchange, &mut whose);
        let change_head = head_of_change(&whose, false);
        let key: Box<[u8]> = name.as_bytes().into();
        let allowed = self.allowed.as_ref().is_none_or(|symbols| symbols.contains(&key));
        self.symbols.push(Symbol {
            whose,
            change_head,
            allowed,
            ticker: None,
            bars: Vec::new(),
            snapshots: None,
        });
        self.names.insert(key, self.symbols.len() - 1);
        self.symbols.len() - 1
    }

    /// Drop books, bars and snapshots in progress.
    pub fn reset(&mut self) {
        for symbol in &mut self.symbols {
            symbol.bars.clear();
            symbol.snapshots = None;
        }
        self.with_bars.clear();
    }

    /// Drop what mappers taught it.
    pub fn forget(&mut self) {
        for symbol in &mut self.symbols {
            symbol.ticker = None;
        }
        self.book_ticker_keys = [0, 1, 2, 3];
    }

    /// The messages since the last take, all of them marked.
    pub fn finished(&mut self) -> &mut Output {
        self.output.mark(&self.local);
        &mut self.output
    }

    /// Begin a message of a symbol.
    #[inline]
    pub fn head(&mut self, message_type: &[u8], symbol: usize) {
        let out = &mut self.output.data;
        out.extend_from_slice(b"{\"type\":\"");
        out.extend_from_slice(message_type);
        out.extend_from_slice(b"\",\"symbol\":");
        out.extend_from_slice(&self.symbols[symbol].whose);
    }

    /// End a message with its times.
    #[inline]
    pub fn tail(&mut self, time: &[u8]) {
        write_times(time, &self.local, &mut self.output.data);
        self.output.count += 1;
    }

    /// A trade; `id` is what is printed of it, key included.
    pub fn trade(
        &mut self,
        symbol: usize,
        id: &[u8],
        price: &[u8],
        amount: &[u8],
        side: &[u8],
        time: &Printed,
    ) -> Result<(), Refused> {
        if self.bar_types.is_empty() {
            if self.sends(TRADE) {
                self.execution(b"trade", symbol, id, price, amount, side, time);
            }
            return Ok(());
        }
        let trade =
            Trade { price: computable(price)?, amount: computable(amount)?, side, price_text: price, time };
        let mut bars = std::mem::take(&mut self.symbols[symbol].bars);
        if bars.is_empty() {
            bars.extend(self.bar_types.iter().map(|_| Bar::default()));
            self.with_bars.push(symbol);
        }
        let ended: Result<Vec<_>, Refused> = bars
            .iter()
            .zip(&self.bar_types)
            .map(|(bar, kind)| bar.ends_before(kind, time.ms, &mut self.printer))
            .collect();
        if let Ok(ended) = &ended {
            if self.sends(TRADE) {
                self.execution(b"trade", symbol, id, price, amount, side, time);
            }
            let whose = &self.symbols[symbol].whose;
            for ((bar, kind), end) in bars.iter_mut().zip(&self.bar_types).zip(ended) {
                let out = &mut self.output.data;
                if let Some(end) = end {
                    bar.finish(kind, whose, end.as_bytes(), &self.local, out);
                    self.output.count += 1;
                }
                if bar.add(kind, &trade) {
                    let time = bar.close_time();
                    bar.finish(kind, whose, time.as_bytes(), &self.local, out);
                    self.output.count += 1;
                }
            }
        }
        self.symbols[symbol].bars = bars;
        ended.map(|_| ())
    }

    /// Write a trade or a liquidation.
    #[allow(clippy::too_many_arguments, reason = "the fields of a message, in their order")]
    #[inline]
    pub fn execution(
        &mut self,
        message_type: &[u8],
        symbol: usize,
        id: &[u8],
        price: &[u8],
        amount: &[u8],
        side: &[u8],
        time: &Printed,
    ) {
        self.head(message_type, symbol);
        let out = &mut self.output.data;
        out.extend_from_slice(id);
        out.extend_from_slice(b",\"price\":");
        out.extend_from_slice(price);
        out.extend_from_slice(b",\"amount\":");
        out.extend_from_slice(amount);
        out.extend_from_slice(b",\"side\":\"");
        out.extend_from_slice(side);
        out.push(b'"');
        self.tail(time.as_bytes());
    }

    /// A book change, both sides of which have been read with the numbers that are needed.
    pub fn change(
        &mut self,
        symbol: usize,
        is_snapshot: bool,
        bids: &Levels,
        asks: &Levels,
        time: &Printed,
    ) -> Result<(), Refused> {
        let sends = self.sends(BOOK_CHANGE);
        let Symbol { whose, change_head, snapshots, .. } = &mut self.symbols[symbol];
        let message = |writing: &mut Writing| {
            if sends && is_snapshot {
                write_change(writing, &head_of_change(whose, true), bids, asks, time.as_bytes());
            } else if sends {
                write_change(writing, change_head, bids, asks, time.as_bytes());
            }
        };
        let mut writing =
            Writing { out: &mut self.output.data, count: &mut self.output.count, local: &self.local };
        if self.snapshot_types.is_empty() {
            message(&mut writing);
            return Ok(());
        }
        let snapshots = snapshots.get_or_insert_with(|| Snapshots::new(&self.snapshot_types, whose));
        let kinds = &self.snapshot_types;
        snapshots.change(kinds, is_snapshot, bids, asks, time, &mut self.printer, writing, message)?;
        if !snapshots.book.ready {
            self.ignored_changes += 1;
        }
        Ok(())
    }

    /// End the time bars in progress.
    pub fn close_bars(&mut self) -> Result<(), Refused> {
        for index in &self.with_bars {
            let symbol = &mut self.symbols[*index];
            for (bar, kind) in symbol.bars.iter_mut().zip(&self.bar_types) {
                if let Some(end) = bar.end(kind, &mut self.printer)? {
                    bar.finish(kind, &symbol.whose, end.as_bytes(), &self.local, &mut self.output.data);
                    self.output.count += 1;
                }
            }
        }
        Ok(())
    }

    /// Send what is known of a derivative.
    pub fn write_ticker(&mut self, symbol: usize, ticker: &Ticker, time: &Printed) {
        self.head(b"derivative_ticker", symbol);
        for (key, field) in TICKER_KEYS.iter().zip(&ticker.fields) {
            if let Some(field) = field {
                self.output.data.extend_from_slice(key);
                self.output.data.extend_from_slice(field);
            }
        }
        self.tail(time.as_bytes());
    }
}

/// A book change up to its bids.
fn head_of_change(whose: &[u8], is_snapshot: bool) -> Vec<u8> {
    let kind: &[u8] =
        if is_snapshot { b",\"isSnapshot\":true,\"bids\":[" } else { b",\"isSnapshot\":false,\"bids\":[" };
    [b"{\"type\":\"book_change\",\"symbol\":", whose, kind].concat()
}

#[inline]
fn write_change(writing: &mut Writing, head: &[u8], bids: &Levels, asks: &Levels, time: &[u8]) {
    let out = &mut *writing.out;
    out.extend_from_slice(head);
    out.extend_from_slice(&bids.text);
    out.extend_from_slice(b"],\"asks\":[");
    out.extend_from_slice(&asks.text);
    out.push(b']');
    write_times(time, writing.local, out);
    *writing.count += 1;
}

#[inline]
pub fn write_times(time: &[u8], local: &[u8], out: &mut impl Sink) {
    out.extend_from_slice(b",\"timestamp\":\"");
    write_time(time, out);
    out.extend_from_slice(b"\",\"localTimestamp\":\"");
    write_time(local, out);
    out.extend_from_slice(b"\"}\n");
}

/// Write a time, which nearly always has one of two lengths: copies of known length take no call.
#[inline]
fn write_time(time: &[u8], out: &mut impl Sink) {
    if let Ok(time) = <&[u8; 27]>::try_from(time) {
        out.extend_from_slice(time);
    } else if let Ok(time) = <&[u8; 24]>::try_from(time) {
        out.extend_from_slice(time);
    } else {
        out.extend_from_slice(time);
    }
}
