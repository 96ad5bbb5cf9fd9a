//! A piece of recorded lines: where each begins, and its local time.

use std::sync::OnceLock;

use pyo3::exceptions::PyIndexError;
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyString};

/// How long `2019-06-01T00:00:00.1234567Z ` is, behind which the message begins.
pub const MESSAGE: usize = 29;
/// Of the seven fractional digits a normalized message prints six.
const LOCAL: usize = 26;

/// A line's place in the piece.
#[derive(Debug, Clone, Copy)]
pub struct Line {
    start: u32,
    end: u32,
    is_stamped: bool,
}

/// The lines of a piece.
#[pyclass(frozen, module = "tardis_machine._kernel")]
pub struct Lines {
    piece: Py<PyBytes>,
    lines: Vec<Line>,
    /// The local time that was reached before the first line.
    before: String,
    is_ordered: bool,
    /// For each line the earliest local time from there on, where times go back.
    earliest: OnceLock<Vec<Option<u32>>>,
}

impl Lines {
    /// The line's text, if it begins with a local time.
    #[inline]
    pub fn stamped<'a>(&'a self, py: Python<'a>, at: usize) -> Option<&'a [u8]> {
        let line = self.lines.get(at)?;
        line.is_stamped.then(|| &self.piece.as_bytes(py)[line.start as usize..line.end as usize])
    }

    fn line<'a>(&'a self, py: Python<'a>, at: usize) -> PyResult<&'a [u8]> {
        let line = self.lines.get(at).ok_or_else(|| PyIndexError::new_err("no such line"))?;
        Ok(&self.piece.as_bytes(py)[line.start as usize..line.end as usize])
    }

    fn local_bytes<'a>(&'a self, py: Python<'a>, at: usize) -> Option<&'a [u8]> {
        self.stamped(py, at).map(|line| &line[..LOCAL])
    }

    fn earliest(&self, py: Python) -> &[Option<u32>] {
        self.earliest.get_or_init(|| {
            // A line without a time has that of what precedes it.
            let mut latest = None;
            let stamped = self.lines.iter().enumerate().map(|(at, line)| {
                if line.is_stamped {
                    latest = Some(at as u32);
                }
                latest
            });
            let mut found: Vec<Option<u32>> = stamped.collect();
            let time = |place: Option<u32>| match place {
                Some(place) => self.local_bytes(py, place as usize).unwrap_or_default(),
                None => self.before.as_bytes().get(..LOCAL).unwrap_or_default(),
            };
            for at in (1..self.lines.len()).rev() {
                if time(found[at]) < time(found[at - 1]) {
                    found[at - 1] = found[at];
                }
            }
            found
        })
    }
}

#[pymethods]
impl Lines {
    /// Find the lines of a piece, each of which has its end; `before` is the local time reached.
    #[new]
    fn new(py: Python, piece: Py<PyBytes>, before: String) -> Self {
        let bytes = piece.as_bytes(py);
        let mut lines = Vec::with_capacity(bytes.len() / 200 + 16);
        let mut start = 0;
        let mut is_ordered = true;
        let mut latest = comparable(before.as_bytes());
        for end in memchr::memchr_iter(b'\n', bytes) {
            let line = &bytes[start..end];
            let is_stamped = is_stamped(line);
            if is_stamped {
                let local = comparable(line);
                is_ordered &= latest <= local;
                latest = local;
            } else {
                is_ordered = false;
            }
            lines.push(Line { start: start as u32, end: end as u32, is_stamped });
            start = end + 1;
        }
        Self { piece, lines, before, is_ordered, earliest: OnceLock::new() }
    }

    fn __len__(&self) -> usize {
        self.lines.len()
    }

    /// A whole line, without its end.
    fn __getitem__<'py>(&'py self, py: Python<'py>, at: usize) -> PyResult<Bound<'py, PyBytes>> {
        Ok(PyBytes::new(py, self.line(py, at)?))
    }

    /// The message of a line that has a local time.
    fn message<'py>(&'py self, py: Python<'py>, at: usize) -> PyResult<Bound<'py, PyBytes>> {
        Ok(PyBytes::new(py, self.line(py, at)?.get(MESSAGE..).unwrap_or_default()))
    }

    /// The local time of a line as messages print it; empty where it has none.
    fn local<'py>(&self, py: Python<'py>, at: usize) -> Bound<'py, PyString> {
        match self.local_bytes(py, at) {
            Some(local) => PyString::new(py, &printed(local)),
            None => PyString::new(py, ""),
        }
    }

    /// The earliest local time from a line on.
    fn reached<'py>(&self, py: Python<'py>, at: usize) -> Bound<'py, PyString> {
        let place =
            if self.is_ordered { Some(at as u32) } else { self.earliest(py).get(at).copied().flatten() };
        match place.and_then(|place| self.local_bytes(py, place as usize)) {
            Some(local) => PyString::new(py, &printed(local)),
            None => PyString::new(py, &self.before),
        }
    }

    /// The first disconnect of these lines, or `end`.
    fn first_disconnect(&self, first: usize, end: usize) -> usize {
        if self.is_ordered {
            return end;
        }
        (first..end.min(self.lines.len()))
            .find(|at| self.lines[*at].start == self.lines[*at].end)
            .unwrap_or(end)
    }

    /// The first of these lines that is longer than `size`, or `end`.
    fn first_longer(&self, size: u32, first: usize, end: usize) -> usize {
        (first..end.min(self.lines.len()))
            .find(|at| self.lines[*at].end - self.lines[*at].start > size)
            .unwrap_or(end)
    }

    /// The first of these lines that has this local time or a later one, or `end`.
    fn first_since(&self, py: Python, local: &str, first: usize, end: usize) -> usize {
        let since = local.as_bytes().get(..LOCAL).unwrap_or_default();
        (first..end.min(self.lines.len()))
            .find(|at| self.local_bytes(py, *at).is_some_and(|local| local >= since))
            .unwrap_or(end)
    }
}

/// The local time that a stamped line's messages print.
#[inline]
pub fn local_of(line: &[u8]) -> [u8; LOCAL + 1] {
    let mut local = [b'Z'; LOCAL + 1];
    local[..LOCAL].copy_from_slice(&line[..LOCAL]);
    local
}

/// Numbers that compare as the local times do that texts begin with; none comes before all.
#[inline]
fn comparable(text: &[u8]) -> [u64; 4] {
    let word = |at: usize| text[at..].first_chunk::<8>().map_or(0, |eight| u64::from_be_bytes(*eight));
    if text.len() < LOCAL { [0; 4] } else { [word(0), word(8), word(16), word(LOCAL - 8)] }
}

fn printed(local: &[u8]) -> String {
    format!("{}Z", String::from_utf8_lossy(local))
}

/// Parts of a stamp's form that cover it, by their places: the text, where digits are 0, and what to add so that whatever
/// does not fit has its highest bit, once a digit is 0 to 9 and all else is 0.
const STAMP: [(usize, u64, u64); 4] = {
    let form = b"0000-00-00T00:00:00.0000000Z ";
    let places = [0, 8, 16, MESSAGE - 8];
    let mut parts = [(0, 0, 0); 4];
    let mut part = 0;
    while part < parts.len() {
        let (mut text, mut more) = (0, 0);
        let mut at = 8;
        while at > 0 {
            at -= 1;
            let byte = form[places[part] + at];
            text = text << 8 | byte as u64;
            more = more << 8 | if byte == b'0' { 0x80 - 10 } else { 0x7f };
        }
        parts[part] = (places[part], text, more);
        part += 1;
    }
    parts
};

#[inline]
fn is_stamped(line: &[u8]) -> bool {
    const LOW: u64 = 0x7f7f_7f7f_7f7f_7f7f;
    let Some(head) = line.first_chunk::<MESSAGE>() else { return false };
    let mut differs = 0;
    for (place, text, more) in STAMP {
        let word = head[place..].first_chunk::<8>().map_or(0, |eight| u64::from_le_bytes(*eight)) ^ text;
        differs |= ((word & LOW) + more) | word;
    }
    differs & !LOW == 0
}
