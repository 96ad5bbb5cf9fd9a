//! Book snapshots and quotes of one symbol, all read from one book.

use super::book::{Book, Side};
use super::groups::Groups;
use super::levels::{Levels, Refused};
use crate::times::{Printed, Printer};

/// A computed type that was asked for.
pub struct SnapshotType {
    /// Name, depth, interval and grouping as its messages print them, up to the levels.
    pub head: Vec<u8>,
    pub depth: usize,
    pub interval: f64,
    /// The grouping, and the power of ten that makes it whole.
    pub grouping: Option<(f64, f64)>,
}

/// What a snapshot shows of one side of the book.
enum Rows {
    /// The first levels as they are: their text, and the book's version that it is of.
    Levels {
        text: Vec<u8>,
        spare: Vec<u8>,
        version: u64,
    },
    Groups(Groups),
}

impl Rows {
    fn new(kind: &SnapshotType, side: &Side) -> Self {
        match kind.grouping {
            Some((grouping, scale)) => Self::Groups(Groups::new(kind.depth, grouping, scale)),
            None => {
                let mut text = Vec::new();
                side.write_top(kind.depth, &mut text);
                Self::Levels { text, spare: Vec::new(), version: side.version }
            }
        }
    }

    /// Catch up with the book; true when the rows differ from what they were.
    fn refresh(&mut self, side: &Side, depth: usize) -> bool {
        match self {
            Self::Groups(groups) => groups.refresh(side),
            Self::Levels { text, spare, version } => {
                if *version == side.version {
                    return false;
                }
                *version = side.version;
                spare.clear();
                side.write_top(depth, spare);
                if text == spare {
                    return false;
                }
                std::mem::swap(text, spare);
                true
            }
        }
    }

    fn note(&mut self, side: &Side) {
        if let Self::Groups(groups) = self {
            groups.note(side);
        }
    }

    fn text(&self) -> &[u8] {
        match self {
            Self::Levels { text, .. } => text,
            Self::Groups(groups) => &groups.rows,
        }
    }
}

/// One computed type of one symbol: when its snapshots are due, and what they show.
struct Snapshot {
    bids: Rows,
    asks: Rows,
    changed: bool,
    initialized: bool,
    last_ms: i64,
}

impl Snapshot {
    fn refresh(&mut self, book: &Book, depth: usize) -> bool {
        let moved = self.bids.refresh(&book.bids, depth);
        self.asks.refresh(&book.asks, depth) || moved
    }
}

/// Where snapshots are written, and what all of one change have in common.
pub struct Writing<'a> {
    pub out: &'a mut Vec<u8>,
    pub count: &'a mut u32,
    /// Symbol and exchange.
    pub whose: &'a [u8],
    pub local: &'a [u8],
}

impl Writing<'_> {
    fn write(&mut self, kind: &SnapshotType, snapshot: &Snapshot, time: &[u8]) {
        let out = &mut *self.out;
        out.extend_from_slice(b"{\"type\":\"book_snapshot\",\"symbol\":");
        out.extend_from_slice(self.whose);
        out.extend_from_slice(&kind.head);
        out.extend_from_slice(b"\"bids\":[");
        out.extend_from_slice(snapshot.bids.text());
        out.extend_from_slice(b"],\"asks\":[");
        out.extend_from_slice(snapshot.asks.text());
        out.extend_from_slice(b"],\"timestamp\":\"");
        out.extend_from_slice(time);
        out.extend_from_slice(b"\",\"localTimestamp\":\"");
        out.extend_from_slice(self.local);
        out.extend_from_slice(b"\"}\n");
        *self.count += 1;
    }
}

/// All computed snapshots of one symbol, in the order they were asked for.
pub struct Snapshots {
    pub book: Book,
    snapshots: Vec<Snapshot>,
    grouped: bool,
    timed: bool,
    /// What later time buckets made due of the book before a change, and where each ends.
    early: Vec<u8>,
    early_ends: Vec<usize>,
}

impl Snapshots {
    pub fn new(kinds: &[SnapshotType]) -> Self {
        let levels = kinds.iter().filter(|kind| kind.grouping.is_none());
        let depth = levels.map(|kind| kind.depth).max().unwrap_or(0);
        let grouped = kinds.iter().any(|kind| kind.grouping.is_some());
        let book = Book::new(depth, grouped);
        let snapshots = kinds
            .iter()
            .map(|kind| Snapshot {
                bids: Rows::new(kind, &book.bids),
                asks: Rows::new(kind, &book.asks),
                changed: false,
                initialized: false,
                last_ms: 0,
            })
            .collect();
        let timed = kinds.iter().any(|kind| kind.interval != 0.0);
        Self { book, snapshots, grouped, timed, early: Vec::new(), early_ends: Vec::new() }
    }

    /// Apply a book change, and write the snapshots it makes due behind what `message` writes.
    pub fn change(
        &mut self,
        kinds: &[SnapshotType],
        is_snapshot: bool,
        bids: &Levels,
        asks: &Levels,
        time: &Printed,
        printer: &mut Printer,
        mut writing: Writing,
        message: impl FnOnce(&mut Writing),
    ) -> Result<(), Refused> {
        self.early.clear();
        self.early_ends.clear();
        if self.timed {
            self.write_early(kinds, time.ms, printer, &writing)?;
        }
        message(&mut writing);
        let book = &mut self.book;
        book.update(is_snapshot, bids, asks);
        if self.grouped {
            for snapshot in &mut self.snapshots {
                snapshot.bids.note(&book.bids);
                snapshot.asks.note(&book.asks);
            }
            book.bids.changed.clear();
            book.asks.changed.clear();
        }
        let mut start = 0;
        for (place, (kind, snapshot)) in kinds.iter().zip(&mut self.snapshots).enumerate() {
            if let Some(end) = self.early_ends.get(place).copied().filter(|end| *end > start) {
                writing.out.extend_from_slice(&self.early[start..end]);
                *writing.count += 1;
                start = end;
            }
            snapshot.last_ms = time.ms;
            // Once changed, an interval's snapshot is due whatever follows: no need to look closer.
            if snapshot.changed || !snapshot.refresh(&self.book, kind.depth) {
                continue;
            }
            if kind.interval != 0.0 && snapshot.initialized {
                snapshot.changed = true;
                continue;
            }
            snapshot.initialized = true;
            writing.write(kind, snapshot, time.as_bytes());
        }
        Ok(())
    }

    /// Write what a later time bucket makes due, from the book before this change.
    fn write_early(
        &mut self,
        kinds: &[SnapshotType],
        ms: i64,
        printer: &mut Printer,
        writing: &Writing,
    ) -> Result<(), Refused> {
        let ends = |snapshot: &Snapshot, kind: &SnapshotType| -> Option<f64> {
            let bucket = (snapshot.last_ms as f64 / kind.interval).floor();
            let later = snapshot.changed && (ms as f64 / kind.interval).floor() > bucket;
            later.then_some((bucket + 1.0) * kind.interval)
        };
        // Times first: if one cannot be printed, nothing has changed.
        let mut times = Vec::new();
        for (kind, snapshot) in kinds.iter().zip(&self.snapshots) {
            times.push(match ends(snapshot, kind) {
                Some(end) => Some(
                    printer
                        .milliseconds(end as i64)
                        .ok_or_else(|| Refused(format!("not a time in milliseconds since 1970: {end}")))?,
                ),
                None => None,
            });
        }
        for ((kind, snapshot), time) in kinds.iter().zip(&mut self.snapshots).zip(times) {
            if let Some(time) = time {
                snapshot.changed = false;
                snapshot.refresh(&self.book, kind.depth);
                let mut count = 0;
                let mut early = Writing {
                    out: &mut self.early,
                    count: &mut count,
                    whose: writing.whose,
                    local: writing.local,
                };
                early.write(kind, snapshot, time.as_bytes());
            }
            self.early_ends.push(self.early.len());
        }
        Ok(())
    }
}
