//! Pieces of recorded lines as raw replays send them, where every line has its stamp.

use memchr::{memchr, memchr_iter};
use pyo3::prelude::*;
use pyo3::types::PyBytes;

use crate::filling::filled;
use crate::frames::{frame, header_size};
use crate::guard::guarded;
use crate::lines::MESSAGE;

const STAMP: usize = MESSAGE - 1;
const BEFORE: &[u8] = b"{\"localTimestamp\":\"";
const BETWEEN: &[u8] = b"\",\"message\":";
const AFTER: &[u8] = b"}\n";

/// Bytes, and how many messages they are.
type Sent<'py> = (Bound<'py, PyBytes>, usize);

/// The lines' messages as JSON objects with their local times; None if a line has no stamp, or there is none.
#[pyfunction]
pub fn raw_objects<'py>(py: Python<'py>, piece: &[u8]) -> PyResult<Option<Sent<'py>>> {
    guarded(|| {
        let Some((count, _)) = measured(piece) else { return Ok(None) };
        // The space behind a stamp and the line's end are not sent.
        let more = BEFORE.len() + BETWEEN.len() + AFTER.len() - 2;
        let data = filled(py, piece.len() + count * more, |out| {
            for line in lines(piece) {
                out.put(BEFORE);
                out.put(&line[..STAMP]);
                out.put(BETWEEN);
                out.put(&line[MESSAGE..]);
                out.put(AFTER);
            }
        })?;
        Ok(Some((data, count)))
    })
}

/// The lines' messages as WebSocket frames; None if a line has no stamp, or there is none.
#[pyfunction]
pub fn raw_frames<'py>(py: Python<'py>, piece: &[u8]) -> PyResult<Option<Sent<'py>>> {
    guarded(|| {
        let Some((count, size)) = measured(piece) else { return Ok(None) };
        let data = filled(py, size, |out| {
            for line in lines(piece) {
                frame(out, &line[MESSAGE..]);
            }
        })?;
        Ok(Some((data, count)))
    })
}

/// How many lines there are, and how much their frames take; None if one has no stamp, or there is none.
fn measured(piece: &[u8]) -> Option<(usize, usize)> {
    let mut count = 0;
    let mut size = 0;
    for line in lines(piece) {
        if line.get(STAMP) != Some(&b' ') || memchr(b'Z', &line[..STAMP]) != Some(STAMP - 1) {
            return None;
        }
        count += 1;
        size += header_size(line.len() - MESSAGE) + line.len() - MESSAGE;
    }
    (piece.last() == Some(&b'\n')).then_some((count, size))
}

/// The lines of a piece, each of which has its end.
fn lines(piece: &[u8]) -> impl Iterator<Item = &[u8]> {
    let mut start = 0;
    memchr_iter(b'\n', piece).map(move |end| {
        let line = &piece[start..end];
        start = end + 1;
        line
    })
}
