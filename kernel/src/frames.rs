//! WebSocket frames of a server: unmasked, final, text, one for each message.

use memchr::{memchr_iter, memrchr};
use pyo3::prelude::*;
use pyo3::types::{PyByteArray, PyByteArrayMethods, PyBytes};

use crate::filling::{Filling, filled};
use crate::guard::guarded;

const TEXT: u8 = 0x81;
/// Lengths below this are their own header; this one says that two bytes follow, the next eight.
const TWO_BYTES: usize = 126;
const EIGHT_BYTES: u8 = 127;

/// The header of the largest chunk.
const MAX_HEADER: usize = 18;

/// What precedes something on the wire.
#[derive(Default, Clone, Copy)]
pub struct Header {
    bytes: [u8; MAX_HEADER],
    length: u8,
}

impl Header {
    /// Of a frame with a payload this long.
    #[inline]
    pub fn of_frame(length: usize) -> Self {
        let size = header_size(length);
        let mut bytes = [0; MAX_HEADER];
        bytes[0] = TEXT;
        match size {
            2 => bytes[1] = length as u8,
            4 => {
                bytes[1] = TWO_BYTES as u8;
                bytes[2..4].copy_from_slice(&(length as u16).to_be_bytes());
            }
            _ => {
                bytes[1] = EIGHT_BYTES;
                bytes[2..10].copy_from_slice(&(length as u64).to_be_bytes());
            }
        }
        Self { bytes, length: size as u8 }
    }

    /// Of a chunk of HTTP that is this long.
    pub fn of_chunk(length: usize) -> Self {
        let text = format!("{length:x}\r\n");
        let mut bytes = [0; MAX_HEADER];
        bytes[..text.len()].copy_from_slice(text.as_bytes());
        Self { bytes, length: text.len() as u8 }
    }

    #[inline]
    pub fn as_bytes(&self) -> &[u8] {
        &self.bytes[..usize::from(self.length)]
    }
}

/// How long the header of a frame with this payload is.
#[inline]
pub fn header_size(length: usize) -> usize {
    match length {
        0..TWO_BYTES => 2,
        TWO_BYTES..0x1_0000 => 4,
        _ => 10,
    }
}

/// Write the frame of a message.
#[inline]
pub fn frame(out: &mut Filling, message: &[u8]) {
    out.put(Header::of_frame(message.len()).as_bytes());
    out.put(message);
}

/// Turn whole lines into one buffer with a frame for each.
#[pyfunction]
pub fn text_frames<'py>(py: Python<'py>, ndjson: &Bound<PyAny>) -> PyResult<Bound<'py, PyBytes>> {
    guarded(|| {
        let ndjson = text_of(ndjson)?;
        let whole = &ndjson[..memrchr(b'\n', ndjson).map_or(0, |end| end + 1)];
        let mut size = 0;
        let mut start = 0;
        for end in memchr_iter(b'\n', whole) {
            size += header_size(end - start) + end - start;
            start = end + 1;
        }
        filled(py, size, |out| {
            let mut start = 0;
            for end in memchr_iter(b'\n', whole) {
                frame(out, &whole[start..end]);
                start = end + 1;
            }
        })
    })
}

/// Bytes, or a bytearray as emitters give it, where they are.
#[allow(unsafe_code, reason = "a bytearray is read where it is")]
pub fn text_of<'a>(object: &'a Bound<PyAny>) -> PyResult<&'a [u8]> {
    match object.cast::<PyByteArray>() {
        // SAFETY: we do not change it, and Python, which could, does not run while this is held.
        Ok(array) => Ok(unsafe { array.as_bytes() }),
        Err(_) => Ok(object.cast::<PyBytes>()?.as_bytes()),
    }
}
