//! Entries of the journal on their way to its file, in memory that two processes share.
//!
//! One side appends whole entries and never waits for a disk; the other writes them to where they belong, and says how
//! far it has got. The layout is that of `journal/ring.py`, which reads it.

use std::fs::{self, File};
use std::io::{self, ErrorKind, Write};
use std::mem::MaybeUninit;
use std::ops::Range;
use std::os::fd::{BorrowedFd, RawFd};
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::PathBuf;
use std::sync::atomic::{AtomicU8, AtomicU32, AtomicU64, Ordering, fence};
use std::sync::{Arc, Weak};
use std::thread::sleep;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use pyo3::buffer::PyBuffer;
use pyo3::exceptions::{PyOSError, PyValueError};
use pyo3::prelude::*;

use crate::frames::text_of;
use crate::guard::guarded;
use crate::loan::{Lent, Loan};
use crate::pour::ENOUGH;

/// Where in the file what lies.
const HEAD: usize = 64;
const TAIL: usize = 128;
const DOZES: usize = 192;
const STATE: usize = 196;
const WRITTEN: usize = 256;
const ABANDONED: u8 = 2;
const ROOM: usize = 4096;
/// Length, segment, and offset there of what follows.
const RECORD: usize = 24;
/// Instead of a length: nothing follows before the end of the room.
const SKIP: u64 = u64::MAX;
/// Records begin at multiples of this.
const STEP: usize = 8;

/// How long nothing is looked for: to be woken for each entry would cost the other side more than the entry.
const NAP: Duration = Duration::from_millis(1);
/// How long Python is not asked for anything.
const LONGEST: Duration = Duration::from_millis(100);

const VERSION: u8 = 1;
const CHECKSUM: usize = 4;
const HIDDEN: u8 = 1;
/// Checksum (left to who writes the file), version, flags, sizes, count, position, time.
const ENTRY: usize = 36;

/// How long a segment's file is taken to be where it was: to look for its path costs more than most that an entry takes.
const FOUND_FOR: Duration = Duration::from_millis(20);

/// The room for a text that is made in the ring: it is sent when there is enough, and its last local time has ended.
const LENT: usize = ENOUGH + 64 * 1024;

/// As much of the room is gone through, and no more, as long as the other side keeps up: what was written and read a
/// moment ago is still in the processor's caches, and all of the room would not stay there.
const WARM: usize = 3 * LENT;

/// For less than this nobody asks in time.
const WORTH_ASKING: u64 = 2 << 20;

/// How far entries may be written without asking.
#[derive(Default)]
struct Grant {
    segment: u64,
    offset: u64,
    limit: u64,
    /// Where the segment ends: behind it there is nothing to ask for.
    end: u64,
    /// Where it is time to ask for more.
    low: u64,
    messages: u64,
    /// The segment's file, and by which number the system knows it.
    path: PathBuf,
    inode: u64,
    /// When it was seen there.
    found_at: Option<Instant>,
}

impl Grant {
    /// Whether the segment's file is still where readers look for it, or was a moment ago.
    fn is_in_place(&mut self) -> bool {
        let now = Instant::now();
        if self.found_at.is_some_and(|then| now.duration_since(then) < FOUND_FOR) {
            return true;
        }
        let is_there = fs::metadata(&self.path).is_ok_and(|found| found.ino() == self.inode);
        self.found_at = is_there.then_some(now);
        is_there
    }
}

/// A batch of a response.
struct Entry<'a> {
    provenance: &'a [u8],
    data: &'a [u8],
    count: u32,
    position: u64,
    is_hidden: bool,
}

impl Entry<'_> {
    fn size(&self) -> usize {
        ENTRY + self.provenance.len() + self.data.len()
    }

    /// What precedes its provenance; the checksum is left out.
    fn header(&self) -> [u8; ENTRY] {
        let now = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |passed| passed.as_micros() as u64);
        let mut bytes = [0; ENTRY];
        bytes[4] = VERSION;
        bytes[5] = if self.is_hidden { HIDDEN } else { 0 };
        bytes[8..12].copy_from_slice(&(self.provenance.len() as u32).to_le_bytes());
        bytes[12..16].copy_from_slice(&(self.data.len() as u32).to_le_bytes());
        bytes[16..20].copy_from_slice(&self.count.to_le_bytes());
        bytes[20..28].copy_from_slice(&self.position.to_le_bytes());
        bytes[28..36].copy_from_slice(&now.to_le_bytes());
        bytes
    }
}

/// Where a record goes.
struct Place {
    at: usize,
    /// How much room is left out before it.
    skipped: usize,
    /// The head behind it.
    after: u64,
}

/// The room behind the head, where somebody makes the text of an entry.
struct Borrower {
    loan: Weak<Loan>,
    /// Where the entry's record will be.
    at: usize,
    /// Where the text is.
    text: usize,
}

/// What became of an entry that was to be appended by the grant.
pub enum Appended {
    /// There is no room for it, or no grant.
    No,
    Yes,
    /// It was appended, and it is time to ask for more.
    Low,
}

/// The shared memory of a log.
#[pyclass(module = "tardis_machine._kernel")]
pub struct Ring {
    memory: PyBuffer<u8>,
    room: usize,
    wakes: Option<File>,
    grant: Grant,
    borrower: Option<Borrower>,
    /// How many messages were ever appended by a grant.
    appended: u64,
    /// What was left out last at the end of the room, as the head counts: nothing is on its way there.
    skipped: Range<u64>,
}

impl Ring {
    #[allow(unsafe_code, reason = "another process changes it meanwhile")]
    fn number(&self, at: usize) -> &AtomicU64 {
        // SAFETY: `new` has seen that it is there, aligned, and may be written to; both sides go by atomic operations.
        unsafe { AtomicU64::from_ptr(self.memory.buf_ptr().cast::<u8>().add(at).cast()) }
    }

    #[allow(unsafe_code, reason = "another process changes it meanwhile")]
    fn dozes(&self) -> &AtomicU32 {
        // SAFETY: as above.
        unsafe { AtomicU32::from_ptr(self.memory.buf_ptr().cast::<u8>().add(DOZES).cast()) }
    }

    /// Copy parts one behind the other to a place in the room, which has to be free.
    #[allow(unsafe_code, reason = "it is another process's memory, too")]
    fn copy(&mut self, mut place: usize, parts: &[&[u8]]) {
        for part in parts {
            assert!(place + part.len() <= self.room);
            // SAFETY: that is inside of it, and nobody reads there before the head has passed it.
            unsafe { copy_away(part, self.memory.buf_ptr().cast::<u8>().add(ROOM + place)) };
            place += part.len();
        }
    }

    /// Append a batch of a response by the grant.
    pub fn append_batch(&mut self, provenance: &[u8], data: &[u8], count: u32, position: u64) -> Appended {
        let entry = Entry { provenance, data, count, position, is_hidden: false };
        let end = self.grant.offset + entry.size() as u64;
        if end > self.grant.limit || !self.grant.is_in_place() {
            return Appended::No;
        }
        if !self.put(&entry, self.grant.segment, self.grant.offset) {
            return Appended::No;
        }
        self.grant.offset = end;
        self.grant.messages += u64::from(count);
        self.appended += u64::from(count);
        if end < self.grant.low {
            return Appended::Yes;
        }
        self.grant.low = u64::MAX;
        Appended::Low
    }

    /// Find room for a record, which is not cut where the room ends.
    ///
    /// That is at its beginning, too, if as much as stays warm is free there: then what comes next fits as well, should
    /// the other side fall behind.
    fn find(&self, size: usize) -> Option<Place> {
        let head = self.number(HEAD).load(Ordering::Relaxed);
        let at = (head % self.room as u64) as usize;
        let is_warm = at >= WARM && self.tail() >= head - (at - WARM) as u64;
        if is_warm || at + size.next_multiple_of(STEP) > self.room {
            let first = self.place(head, 0, self.room - at, size);
            if first.is_some() || !is_warm {
                return first;
            }
        }
        self.place(head, at, 0, size)
    }

    /// A place, if it is free.
    fn place(&self, head: u64, at: usize, skipped: usize, size: usize) -> Option<Place> {
        let after = head + (skipped + size.next_multiple_of(STEP)) as u64;
        (after - self.tail() <= self.room as u64).then_some(Place { at, skipped, after })
    }

    /// Lend room for the text of an entry with a provenance of this size, which nobody else appends something before.
    #[allow(unsafe_code, reason = "it is another process's memory, too")]
    pub fn lend(ring: &Py<Self>, py: Python, provenance: usize) -> Option<Lent> {
        let mut this = ring.try_borrow_mut(py).ok()?;
        let size = ENTRY + provenance + LENT;
        let is_lent = this.borrower.as_ref().is_some_and(|known| known.loan.strong_count() > 0);
        // Where nothing may be appended, nothing may be written either: somebody may think that he alone has the ring.
        if is_lent || this.grant.offset + size as u64 > this.grant.limit {
            return None;
        }
        let at = this.find(RECORD + size)?.at;
        let text = at + RECORD + ENTRY + provenance;
        assert!(text + LENT <= this.room);
        // SAFETY: that is inside of it, and it is nobody else's before it is appended, or before `reclaim`, which leaves
        // alone where somebody writes.
        let room = unsafe {
            let from = this.memory.buf_ptr().cast::<MaybeUninit<u8>>().add(ROOM + text);
            std::slice::from_raw_parts_mut(from, LENT)
        };
        let loan = Loan::new();
        this.borrower = Some(Borrower { loan: Arc::downgrade(&loan), at, text });
        Some(Lent::new(loan, room, ring.clone_ref(py)))
    }

    /// Where the record of an entry goes whose text was made in the ring; None if it was not.
    fn place_of_made(&self, entry: &Entry) -> Option<Place> {
        let borrower = self.borrower.as_ref()?;
        let text = (self.memory.buf_ptr() as usize) + ROOM + borrower.text;
        let begin = borrower.at + RECORD + ENTRY + entry.provenance.len();
        if entry.data.as_ptr() as usize != text || begin != borrower.text {
            return None;
        }
        let head = self.number(HEAD).load(Ordering::Relaxed);
        let at = (head % self.room as u64) as usize;
        let skipped = if borrower.at == at { 0 } else { self.room - at };
        self.place(head, borrower.at, skipped, RECORD + entry.size())
    }

    /// Have back what is lent; false while somebody writes there.
    #[allow(unsafe_code, reason = "it is another process's memory, too")]
    fn reclaim(&mut self) -> bool {
        if let Some((loan, text)) =
            self.borrower.as_ref().and_then(|known| Some((known.loan.upgrade()?, known.text)))
        {
            let Some(written) = loan.written() else { return false };
            assert!(text + written <= self.room);
            // SAFETY: that is inside of it, it was written, and nobody writes there.
            loan.rescue(unsafe {
                std::slice::from_raw_parts(self.memory.buf_ptr().cast::<u8>().add(ROOM + text), written)
            });
        }
        self.borrower = None;
        true
    }

    /// Append an entry, if there is room for it.
    fn put(&mut self, entry: &Entry, segment: u64, offset: u64) -> bool {
        let made = self.place_of_made(entry);
        let is_made = made.is_some();
        if !is_made && !self.reclaim() {
            return false;
        }
        let Some(place) = made.or_else(|| self.find(RECORD + entry.size())) else { return false };
        if place.skipped > 0 {
            self.copy(self.room - place.skipped, &[&SKIP.to_le_bytes()]);
            let head = self.number(HEAD).load(Ordering::Relaxed);
            self.skipped = head..head + place.skipped as u64;
        }
        let mut record = [0; RECORD];
        record[..8].copy_from_slice(&(entry.size() as u64).to_le_bytes());
        record[8..16].copy_from_slice(&segment.to_le_bytes());
        record[16..].copy_from_slice(&offset.to_le_bytes());
        self.copy(place.at, &[&record, &entry.header(), entry.provenance]);
        if !is_made {
            self.copy(place.at + RECORD + ENTRY + entry.provenance.len(), &[entry.data]);
        }
        self.borrower = None;
        // Nobody else adds to it.
        let written = self.number(WRITTEN).load(Ordering::Relaxed) + entry.size() as u64;
        self.number(WRITTEN).store(written, Ordering::Relaxed);
        self.number(HEAD).store(place.after, Ordering::Release);
        self.wake();
        true
    }

    /// See `carry`.
    fn write_out(&mut self, segment: u64, file: &File, patience: Duration) -> io::Result<Option<u64>> {
        let began = Instant::now();
        let mut busy_at = began;
        loop {
            let mut tail = self.tail();
            let head = self.head();
            if tail != head {
                busy_at = Instant::now();
            }
            while tail != head {
                let place = (tail % self.room as u64) as usize;
                let length = self.count(place);
                if length == SKIP {
                    tail += (self.room - place) as u64;
                } else {
                    let end =
                        usize::try_from(length).ok().and_then(|length| length.checked_add(place + RECORD));
                    let Some(end) = end.filter(|end| *end <= self.room && length >= CHECKSUM as u64) else {
                        return Err(io::Error::new(ErrorKind::InvalidData, "the ring is damaged"));
                    };
                    if self.count(place + 8) != segment {
                        return Ok(Some(self.count(place + 8)));
                    }
                    let offset = self.count(place + 16);
                    self.write_entry(file, place + RECORD, end, offset)?;
                    tail += (end - place).next_multiple_of(STEP) as u64;
                }
                if self.is_abandoned() {
                    return Ok(None);
                }
                self.number(TAIL).store(tail, Ordering::Release);
            }
            if busy_at.elapsed() >= patience || began.elapsed() >= LONGEST {
                return Ok(None);
            }
            sleep(NAP);
        }
    }

    /// Write an entry with its checksum to its place in the file.
    #[allow(unsafe_code, reason = "it is another process's memory, too")]
    fn write_entry(&mut self, file: &File, begin: usize, end: usize, offset: u64) -> io::Result<()> {
        assert!(begin + CHECKSUM <= end && end <= self.room);
        // SAFETY: that is inside of it, and the other side does not write there before the tail has passed it.
        let body = unsafe {
            let from = self.memory.buf_ptr().cast::<u8>().add(ROOM + begin + CHECKSUM);
            std::slice::from_raw_parts(from, end - begin - CHECKSUM)
        };
        let checksum = crc32fast::hash(body);
        self.copy(begin, &[&checksum.to_le_bytes()]);
        // SAFETY: as above.
        let entry = unsafe {
            std::slice::from_raw_parts(self.memory.buf_ptr().cast::<u8>().add(ROOM + begin), end - begin)
        };
        file.write_all_at(entry, offset)
    }

    /// A number of a record.
    #[allow(unsafe_code, reason = "it is another process's memory, too")]
    fn count(&self, place: usize) -> u64 {
        assert!(place + 8 <= self.room);
        // SAFETY: that is inside of it.
        u64::from_le(unsafe {
            self.memory.buf_ptr().cast::<u8>().add(ROOM + place).cast::<u64>().read_unaligned()
        })
    }

    #[allow(unsafe_code, reason = "another process changes it meanwhile")]
    fn is_abandoned(&self) -> bool {
        // SAFETY: `new` has seen that it is there.
        let state = unsafe { AtomicU8::from_ptr(self.memory.buf_ptr().cast::<u8>().add(STATE)) };
        state.load(Ordering::Acquire) == ABANDONED
    }

    fn wake(&mut self) {
        // Whoever dozes has looked at the head after it said so.
        fence(Ordering::SeqCst);
        if self.dozes().load(Ordering::Relaxed) != 0 && self.dozes().swap(0, Ordering::SeqCst) != 0 {
            if let Some(wakes) = &mut self.wakes {
                // A pipe that is full wakes as well.
                let _ = wakes.write(b"\n");
            }
        }
    }
}

#[pymethods]
impl Ring {
    /// `memory` is a mapped file; `wakes` the end of a pipe that the other side waits at, where there is one.
    #[new]
    #[allow(unsafe_code, reason = "a number from Python is a file descriptor")]
    fn new(memory: PyBuffer<u8>, wakes: Option<RawFd>) -> PyResult<Self> {
        let room = memory.len_bytes().saturating_sub(ROOM) / STEP * STEP;
        if memory.readonly() || room == 0 || (memory.buf_ptr() as usize) % STEP != 0 {
            return Err(PyValueError::new_err("no memory for a ring"));
        }
        let wakes = match wakes {
            None => None,
            Some(fd) if fd < 0 => return Err(PyOSError::new_err("not a pipe")),
            // SAFETY: it is not -1. It is only copied, which the system refuses if there is none.
            Some(fd) => Some(File::from(unsafe { BorrowedFd::borrow_raw(fd) }.try_clone_to_owned()?)),
        };
        Ok(Self { memory, room, wakes, grant: Grant::default(), borrower: None, appended: 0, skipped: 0..0 })
    }

    /// How many bytes were ever appended, records' heads and all.
    #[getter]
    fn head(&self) -> u64 {
        self.number(HEAD).load(Ordering::Acquire)
    }

    /// How many of them are where they belong.
    #[getter]
    fn tail(&self) -> u64 {
        self.number(TAIL).load(Ordering::Acquire)
    }

    /// How many messages this side has ever appended by a grant.
    #[getter]
    fn appended(&self) -> u64 {
        self.appended
    }

    /// How many bytes of records, as this side has appended them, are not where they belong yet.
    #[getter]
    fn used(&self) -> u64 {
        let (tail, head) = (self.tail(), self.head());
        head - tail - self.skipped.end.saturating_sub(self.skipped.start.max(tail))
    }

    /// Let entries be appended to a segment that has this end, from an offset up to a limit.
    fn grant(&mut self, segment: u64, offset: u64, limit: u64, end: u64, path: PathBuf, inode: u64) {
        self.grant =
            Grant { segment, offset, limit: 0, end, low: 0, messages: 0, path, inode, found_at: None };
        self.extend(limit);
    }

    /// Let entries be appended up to another limit.
    fn extend(&mut self, limit: u64) {
        let half = limit.saturating_sub(self.grant.offset) / 2;
        let is_worth = half.min(self.grant.end.saturating_sub(limit)) >= WORTH_ASKING;
        self.grant.low = if is_worth { self.grant.offset + half } else { u64::MAX };
        self.grant.limit = limit;
    }

    /// Give the offset that was reached, and how many messages that took since this was asked.
    fn report(&mut self) -> (u64, u64) {
        (self.grant.offset, std::mem::take(&mut self.grant.messages))
    }

    /// Append an entry by the grant; 0 if there is no room for it, or no grant, 2 if it is time to ask for more.
    fn append(&mut self, provenance: &[u8], data: &Bound<PyAny>, count: u32, position: u64) -> PyResult<u8> {
        guarded(|| {
            Ok(match self.append_batch(provenance, text_of(data)?, count, position) {
                Appended::No => 0,
                Appended::Yes => 1,
                Appended::Low => 2,
            })
        })
    }

    /// Append an entry to a segment at an offset; False if there is no room for it.
    #[allow(clippy::too_many_arguments, reason = "what an entry is made of")]
    fn pass_on(
        &mut self,
        segment: u64,
        offset: u64,
        provenance: &[u8],
        data: &Bound<PyAny>,
        count: u32,
        position: u64,
        hidden: bool,
    ) -> PyResult<bool> {
        guarded(|| {
            let entry = Entry { provenance, data: text_of(data)?, count, position, is_hidden: hidden };
            Ok(self.put(&entry, segment, offset))
        })
    }

    /// The segment that the next record belongs to; None if there is none.
    fn upcoming(&self) -> Option<u64> {
        let (tail, head) = (self.tail(), self.head());
        let place = (tail % self.room as u64) as usize;
        if tail == head {
            return None;
        }
        // Behind a skip there is always a record, at the beginning.
        let place = if self.count(place) == SKIP { 0 } else { place };
        Some(self.count(place + 8))
    }

    /// Write the records of a segment to its file as they come; gives the segment of the next if that is another one, and
    /// None when nothing has come for as many milliseconds as `patience`, or it has been long enough.
    ///
    /// Python does not have to wait for it, nor it for Python.
    #[allow(unsafe_code, reason = "a number from Python is a file descriptor")]
    fn carry(&mut self, py: Python, segment: u64, fd: RawFd, patience: u64) -> PyResult<Option<u64>> {
        if fd < 0 {
            return Err(PyOSError::new_err("not a file"));
        }
        // SAFETY: it is not -1. It is only copied, which the system refuses if there is none.
        let file = File::from(unsafe { BorrowedFd::borrow_raw(fd) }.try_clone_to_owned()?);
        let patience = Duration::from_millis(patience);
        guarded(|| Ok(py.detach(|| self.write_out(segment, &file, patience))?))
    }

    /// Say that all before this is where it belongs.
    fn advance(&self, tail: u64) {
        self.number(TAIL).store(tail, Ordering::Release);
    }

    /// Ask to be woken, for there is nothing to do; False if there is.
    fn doze(&self) -> bool {
        self.dozes().store(1, Ordering::SeqCst);
        fence(Ordering::SeqCst);
        let idle = self.head() == self.tail();
        if !idle {
            self.dozes().store(0, Ordering::SeqCst);
        }
        idle
    }

    /// Wake the other side, whether it dozes or not.
    fn rouse(&mut self) {
        self.dozes().store(1, Ordering::SeqCst);
        self.wake();
    }
}

/// Copy to where another processor will read: past this one's caches, which have no use for it.
///
/// # Safety
/// There has to be room for it, apart from where it lies.
#[cfg(target_arch = "x86_64")]
#[allow(unsafe_code, reason = "there is no other way around the caches")]
unsafe fn copy_away(from: &[u8], to: *mut u8) {
    use std::arch::x86_64::{__m128i, _mm_loadu_si128, _mm_sfence, _mm_stream_si128};
    const LINE: usize = 64;
    let before = to.align_offset(LINE).min(from.len());
    let (first, rest) = from.split_at(before);
    let lines = rest.chunks_exact(LINE);
    let last = lines.remainder();
    // SAFETY: all of it is inside of what the caller vouches for; every line of `to` is aligned.
    unsafe {
        std::ptr::copy_nonoverlapping(first.as_ptr(), to, first.len());
        let mut line = to.add(before);
        for each in lines {
            for part in 0..LINE / 16 {
                let value = _mm_loadu_si128(each.as_ptr().cast::<__m128i>().add(part));
                _mm_stream_si128(line.cast::<__m128i>().add(part), value);
            }
            line = line.add(LINE);
        }
        std::ptr::copy_nonoverlapping(last.as_ptr(), line, last.len());
        _mm_sfence();
    }
}

/// The same with the caches.
///
/// # Safety
/// As above.
#[cfg(not(target_arch = "x86_64"))]
#[allow(unsafe_code, reason = "it is another process's memory, too")]
unsafe fn copy_away(from: &[u8], to: *mut u8) {
    // SAFETY: the caller vouches for it.
    unsafe { std::ptr::copy_nonoverlapping(from.as_ptr(), to, from.len()) };
}
