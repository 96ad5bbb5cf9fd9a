//! Book snapshots and quotes of one symbol, all read from one book.

use super::book::{Book, Done, Side, Touch};
use super::engine::write_times;
use super::groups::Groups;
use super::levels::{Levels, Refused};
use super::out::{Out, Sink};
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
    Top(Top),
    Groups(Groups),
}

/// The text of the first levels as they are, and what was changed in the book meanwhile.
struct Top {
    depth: usize,
    /// Each level with a comma behind it, and where each ends.
    text: Vec<u8>,
    ends: Vec<usize>,
    spare: Vec<u8>,
    /// What touched them; that is not all of it where there are `many`.
    touches: Vec<Touch>,
    many: bool,
    untouched: usize,
}

/// So many changes are noted one by one.
const FEW: usize = 8;

impl Top {
    fn new(depth: usize, side: &Side) -> Self {
        let (mut text, mut ends) = (Vec::new(), Vec::new());
        side.write_top(0, depth, &mut text, &mut ends);
        Self { depth, text, ends, spare: Vec::new(), touches: Vec::new(), many: false, untouched: usize::MAX }
    }

    fn note(&mut self, side: &Side) {
        if side.replaced {
            (self.many, self.untouched) = (true, 0);
        }
        for touch in &side.touches {
            if touch.rank < self.depth {
                self.untouched = self.untouched.min(touch.rank);
                self.many |= self.touches.len() == FEW;
                if !self.many {
                    self.touches.push(*touch);
                }
            }
        }
    }

    /// Write again what was touched; true if it differs from what it was.
    fn refresh(&mut self, side: &Side) -> bool {
        if self.untouched >= self.depth {
            return false;
        }
        let changed = match self.touches[..] {
            _ if self.many => self.write(side),
            [touch] => {
                self.patch(touch, side);
                true
            }
            // They all are where they were, and one may have undone another.
            _ if self.touches.iter().all(|touch| touch.done == Done::Changed) => {
                let mut changed = false;
                for at in 0..self.touches.len() {
                    changed |= self.patch(self.touches[at], side);
                }
                changed
            }
            _ => self.write(side),
        };
        self.touches.clear();
        (self.many, self.untouched) = (false, usize::MAX);
        changed
    }

    /// Write again all levels from the first on that was touched; true if any differs from what it was.
    fn write(&mut self, side: &Side) -> bool {
        let from = self.untouched;
        let start = self.start(from);
        self.ends.truncate(from);
        self.spare.clear();
        self.spare.extend_from_slice(&self.text[start..]);
        self.text.truncate(start);
        side.write_top(from, self.depth, &mut self.text, &mut self.ends);
        self.text[start..] != self.spare
    }

    /// Make one change, the only one to where levels are; true if the text differs from what it was.
    fn patch(&mut self, Touch { rank, done }: Touch, side: &Side) -> bool {
        match done {
            Done::Changed => {
                let (start, end) = (self.start(rank), self.ends[rank]);
                let text = side.text(rank);
                if self.text[start..end] == *text {
                    return false;
                }
                self.put(start, end, text);
                self.move_ends(rank, end - start, text.len());
            }
            Done::Added => {
                self.text.truncate(self.start(self.depth - 1));
                self.ends.truncate(self.depth - 1);
                let (start, text) = (self.start(rank), side.text(rank));
                self.put(start, start, text);
                self.ends.insert(rank, start);
                self.move_ends(rank, 0, text.len());
            }
            Done::Removed => {
                let (start, end) = (self.start(rank), self.ends[rank]);
                self.put(start, end, b"");
                self.move_ends(rank, end - start, 0);
                self.ends.remove(rank);
                self.text.extend_from_slice(side.text(self.depth - 1));
                self.ends.push(self.text.len());
            }
        }
        true
    }

    #[inline]
    fn start(&self, rank: usize) -> usize {
        rank.checked_sub(1).map_or(0, |before| self.ends[before])
    }

    /// Put a text where another one is; what stands behind it moves.
    #[inline]
    fn put(&mut self, start: usize, end: usize, text: &[u8]) {
        let (before, after) = (self.text.len(), self.text.len() - (end - start) + text.len());
        if after > before {
            self.text.resize(after, 0);
        }
        self.text.copy_within(end..before, start + text.len());
        self.text[start..start + text.len()].copy_from_slice(text);
        self.text.truncate(after);
    }

    /// The levels from a rank on end later, or earlier, since one of this length was replaced.
    #[inline]
    fn move_ends(&mut self, rank: usize, before: usize, after: usize) {
        for end in &mut self.ends[rank..] {
            *end = *end - before + after;
        }
    }

    fn text(&self) -> &[u8] {
        self.text.split_last().map_or(b"", |(_, text)| text)
    }
}

impl Rows {
    fn new(kind: &SnapshotType, side: &Side) -> Self {
        match kind.grouping {
            Some((grouping, scale)) => Self::Groups(Groups::new(kind.depth, grouping, scale)),
            None => Self::Top(Top::new(kind.depth, side)),
        }
    }

    /// Take note of what an update did to the book.
    fn note(&mut self, side: &Side) {
        match self {
            Self::Top(top) => top.note(side),
            Self::Groups(groups) => groups.note(side),
        }
    }

    /// Catch up with the book; true when the rows differ from what they were.
    fn refresh(&mut self, side: &Side) -> bool {
        match self {
            Self::Top(top) => top.refresh(side),
            Self::Groups(groups) => groups.refresh(side),
        }
    }

    fn text(&self) -> &[u8] {
        match self {
            Self::Top(top) => top.text(),
            Self::Groups(groups) => &groups.rows,
        }
    }
}

/// One computed type of one symbol: when its snapshots are due, and what they show.
struct Snapshot {
    /// The message up to its levels.
    head: Vec<u8>,
    bids: Rows,
    asks: Rows,
    changed: bool,
    initialized: bool,
    last_ms: i64,
}

impl Snapshot {
    fn refresh(&mut self, book: &Book) -> bool {
        let moved = self.bids.refresh(&book.bids);
        self.asks.refresh(&book.asks) || moved
    }
}

/// Where snapshots are written, and what all of one change have in common.
pub struct Writing<'a, S = Out> {
    pub out: &'a mut S,
    pub count: &'a mut u32,
    pub local: &'a [u8],
}

impl<S: Sink> Writing<'_, S> {
    fn write(&mut self, snapshot: &Snapshot, time: &[u8]) {
        let out = &mut *self.out;
        out.extend_from_slice(&snapshot.head);
        out.extend_from_slice(snapshot.bids.text());
        out.extend_from_slice(b"],\"asks\":[");
        out.extend_from_slice(snapshot.asks.text());
        out.push(b']');
        write_times(time, self.local, out);
        *self.count += 1;
    }
}

/// All computed snapshots of one symbol, in the order they were asked for.
pub struct Snapshots {
    pub book: Book,
    snapshots: Vec<Snapshot>,
    timed: bool,
    /// What later time buckets made due of the book before a change, and where each ends.
    early: Vec<u8>,
    early_ends: Vec<usize>,
}

impl Snapshots {
    /// `whose` are symbol and exchange as messages print them.
    pub fn new(kinds: &[SnapshotType], whose: &[u8]) -> Self {
        let book = Book::new(kinds.iter().any(|kind| kind.grouping.is_some()));
        let snapshots = kinds
            .iter()
            .map(|kind| Snapshot {
                head: [b"{\"type\":\"book_snapshot\",\"symbol\":", whose, &kind.head, b"\"bids\":["].concat(),
                bids: Rows::new(kind, &book.bids),
                asks: Rows::new(kind, &book.asks),
                changed: false,
                initialized: false,
                last_ms: 0,
            })
            .collect();
        let timed = kinds.iter().any(|kind| kind.interval != 0.0);
        Self { book, snapshots, timed, early: Vec::new(), early_ends: Vec::new() }
    }

    /// Apply a book change, and write the snapshots it makes due behind what `message` writes.
    #[allow(clippy::too_many_arguments, reason = "a change, and where what it makes due is written")]
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
        for snapshot in &mut self.snapshots {
            snapshot.bids.note(&book.bids);
            snapshot.asks.note(&book.asks);
        }
        book.bids.changed.clear();
        book.asks.changed.clear();
        let mut start = 0;
        for (place, (kind, snapshot)) in kinds.iter().zip(&mut self.snapshots).enumerate() {
            if let Some(end) = self.early_ends.get(place).copied().filter(|end| *end > start) {
                writing.out.extend_from_slice(&self.early[start..end]);
                *writing.count += 1;
                start = end;
            }
            snapshot.last_ms = time.ms;
            // Once changed, an interval's snapshot is due whatever follows: no need to look closer.
            if snapshot.changed || !snapshot.refresh(&self.book) {
                continue;
            }
            if kind.interval != 0.0 && snapshot.initialized {
                snapshot.changed = true;
                continue;
            }
            snapshot.initialized = true;
            writing.write(snapshot, time.as_bytes());
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
        for (snapshot, time) in self.snapshots.iter_mut().zip(times) {
            if let Some(time) = time {
                snapshot.changed = false;
                snapshot.refresh(&self.book);
                let mut count = 0;
                let mut early = Writing { out: &mut self.early, count: &mut count, local: writing.local };
                early.write(snapshot, time.as_bytes());
            }
            self.early_ends.push(self.early.len());
        }
        Ok(())
    }
}
