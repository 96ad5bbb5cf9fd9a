//! Where messages are written: memory that Python gets as it is.

use std::mem::{MaybeUninit, take};

use pyo3::prelude::*;
use pyo3::sync::PyOnceLock;
use pyo3::types::{PyByteArray, PyByteArrayMethods, PyBytes};

use crate::pour::{Pour, Poured};

/// As little is copied: that costs less than memory of its own.
const LITTLE: usize = 16 * 1024;

/// What became of text that was to be written to where it goes in the end.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Flowed {
    /// It is gone, and more may follow.
    On,
    /// It is on its way, and has to be waited for.
    Held,
    /// It is still here.
    Not,
}

/// What text is appended to.
pub trait Sink {
    fn extend_from_slice(&mut self, bytes: &[u8]);

    #[inline]
    fn push(&mut self, byte: u8) {
        self.extend_from_slice(&[byte]);
    }
}

impl Sink for Vec<u8> {
    #[inline]
    fn extend_from_slice(&mut self, bytes: &[u8]) {
        self.extend_from_slice(bytes);
    }
}

/// Text that Python will get.
///
/// A bytes object cannot be made before its length is known; a bytearray can, and is cut to it.
#[derive(Default)]
pub struct Out {
    /// Nobody else has it.
    array: Option<Py<PyByteArray>>,
    /// All of its memory.
    room: &'static mut [MaybeUninit<u8>],
    /// How much of it is written.
    length: usize,
    /// How much room the next one will have.
    next: usize,
}

impl Out {
    #[inline]
    pub fn len(&self) -> usize {
        self.length
    }

    /// Drop what was written behind a place.
    pub fn truncate(&mut self, length: usize) {
        self.length = self.length.min(length);
    }

    /// What was written.
    #[allow(unsafe_code, reason = "what was written is read where it is")]
    pub fn text(&self) -> &[u8] {
        // SAFETY: all of it was written.
        unsafe { &*(&raw const self.room[..self.length] as *const [u8]) }
    }

    /// Have it written to where it goes in the end.
    pub fn pour(&mut self, py: Python, pour: &mut Pour, messages: u32) -> PyResult<Flowed> {
        match pour.pour(py, self.text(), messages)? {
            Poured::All => {
                self.length = 0;
                Ok(Flowed::On)
            }
            Poured::Begun(begun) => {
                pour.hold(self.take(py)?.object(py).unbind(), begun);
                Ok(Flowed::Held)
            }
            Poured::Not => Ok(Flowed::Not),
        }
    }

    /// Hand over what was written, and begin anew. There is no memory for that before there is something to write:
    /// if what was handed over is gone by then, it will be the same, and still in the processor's cache.
    pub fn take(&mut self, py: Python) -> PyResult<Written> {
        if self.length <= LITTLE {
            let bytes = PyBytes::new(py, self.text()).unbind();
            self.length = 0;
            return Ok(Written::Bytes(bytes));
        }
        let length = take(&mut self.length);
        // Some are short, where a piece ends: the next one is as long as others were.
        self.next = take(&mut self.room).len().min((2 * length).max(self.next - self.next / 8));
        // There is one: something was written.
        let array = self.array.take().unwrap_or_else(|| PyByteArray::new(py, b"").unbind());
        array.bind(py).resize(length)?;
        Ok(Written::Array(array, PyOnceLock::new()))
    }

    #[cold]
    #[inline(never)]
    fn grow(&mut self, more: usize) {
        let size = self.next.max(self.length + more).max(2 * self.room.len()).max(LITTLE);
        Python::attach(|py| self.resize(py, size)).expect("there is memory for what is written");
    }

    #[allow(unsafe_code, reason = "a bytearray's memory is written where it is")]
    fn resize(&mut self, py: Python, size: usize) -> PyResult<()> {
        self.room = &mut [];
        let array = match &self.array {
            Some(array) => array.bind(py).clone(),
            None => PyByteArray::new(py, b""),
        };
        array.resize(size)?;
        // SAFETY: it is that long, and nobody else has it. Its memory moves when it is resized or dropped: that
        // happens here, in `take` and with `self`, and each of them drops this first.
        self.room = unsafe { std::slice::from_raw_parts_mut(array.data().cast(), size) };
        self.array = Some(array.unbind());
        Ok(())
    }
}

impl Sink for Out {
    #[inline]
    #[allow(unsafe_code, reason = "memory is written that was never set")]
    fn extend_from_slice(&mut self, bytes: &[u8]) {
        if self.room.len() - self.length < bytes.len() {
            self.grow(bytes.len());
        }
        let rest = &mut self.room[self.length..][..bytes.len()];
        // SAFETY: both are that long, and they are apart, since one of them is mutable.
        unsafe { rest.as_mut_ptr().cast::<u8>().copy_from_nonoverlapping(bytes.as_ptr(), bytes.len()) };
        self.length += bytes.len();
    }
}

/// What was handed over; nobody writes to it any more.
pub enum Written {
    Bytes(Py<PyBytes>),
    /// With the same as bytes, once somebody has asked for that.
    Array(Py<PyByteArray>, PyOnceLock<Py<PyBytes>>),
}

impl Written {
    /// As bytes that nobody can change.
    pub fn bytes(&self, py: Python) -> &Py<PyBytes> {
        match self {
            Self::Bytes(bytes) => bytes,
            Self::Array(_, bytes) => bytes.get_or_init(py, || PyBytes::new(py, self.text(py)).unbind()),
        }
    }

    #[allow(unsafe_code, reason = "a bytearray is read where it is")]
    pub fn text<'a>(&'a self, py: Python<'a>) -> &'a [u8] {
        match self {
            Self::Bytes(bytes) => bytes.as_bytes(py),
            // SAFETY: we do not change it, and Python, which could, does not run while this is held.
            Self::Array(array, _) => unsafe {
                let array = array.bind(py);
                std::slice::from_raw_parts(array.data(), array.len())
            },
        }
    }

    /// As it is.
    pub fn object<'py>(&self, py: Python<'py>) -> Bound<'py, PyAny> {
        match self {
            Self::Bytes(bytes) => bytes.bind(py).clone().into_any(),
            Self::Array(array, _) => array.bind(py).clone().into_any(),
        }
    }
}
