//! Runs of several streams, interleaved by local time.

use pyo3::exceptions::PyIndexError;
use pyo3::prelude::*;
use pyo3::types::PyBytes;

use crate::emit::Taken;
use crate::filling::filled;
use crate::guard::guarded;

/// The local times of a run from `next` up to before `end`, which are in order.
struct Part<'a> {
    taken: &'a Taken,
    data: &'a [u8],
    next: usize,
    end: usize,
}

impl<'a> Part<'a> {
    fn new(py: Python<'a>, taken: &'a Taken, next: usize, end: usize) -> PyResult<Self> {
        if next > end || end > taken.times() {
            return Err(PyIndexError::new_err("no such local timestamp"));
        }
        Ok(Self { taken, data: taken.text(py), next, end })
    }

    /// The first local time that is left.
    #[inline]
    fn stamp(&self) -> Option<&'a [u8]> {
        (self.next < self.end).then(|| self.taken.stamp(self.next))
    }

    fn until(&mut self, end: usize) -> &'a [u8] {
        let bytes = &self.data[self.taken.start(self.next)..self.taken.start(end)];
        self.next = end;
        bytes
    }

    /// The lines before a local time; those that have it, too, if they are to come first.
    fn before(&mut self, limit: &[u8], is_first: bool) -> &'a [u8] {
        let mut at = self.next;
        while at < self.end {
            let stamp = self.taken.stamp(at);
            if stamp > limit || (stamp == limit && !is_first) {
                break;
            }
            at += 1;
        }
        self.until(at)
    }
}

/// Put lines in the order of their local times; at equal ones in the order of the parts.
#[pyfunction]
pub fn interleave<'py>(
    py: Python<'py>,
    parts: Vec<(Py<Taken>, usize, usize)>,
) -> PyResult<Bound<'py, PyBytes>> {
    guarded(|| {
        let mut parts = parts
            .iter()
            .map(|(taken, first, end)| Part::new(py, taken.get(), *first, *end))
            .collect::<PyResult<Vec<_>>>()?;
        let size = parts.iter().map(|part| part.taken.start(part.end) - part.taken.start(part.next)).sum();
        filled(py, size, |out| {
            while let Some((least, next)) = two_least(&parts) {
                out.put(match next {
                    None => {
                        let end = parts[least].end;
                        parts[least].until(end)
                    }
                    Some((at, stamp)) => parts[least].before(stamp, least < at),
                });
            }
        })
    })
}

/// A part's number and its local time.
type Timed<'a> = (usize, &'a [u8]);

/// The part whose turn it is, and that which comes then, with its local time.
fn two_least<'a>(parts: &[Part<'a>]) -> Option<(usize, Option<Timed<'a>>)> {
    let mut least: Option<Timed> = None;
    let mut next: Option<Timed> = None;
    for (at, part) in parts.iter().enumerate() {
        let Some(stamp) = part.stamp() else { continue };
        if least.is_none_or(|(_, before)| stamp < before) {
            next = least;
            least = Some((at, stamp));
        } else if next.is_none_or(|(_, before)| stamp < before) {
            next = Some((at, stamp));
        }
    }
    least.map(|(at, _)| (at, next))
}
