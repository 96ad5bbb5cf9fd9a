//! Where messages are written: memory that Python gets as it is.

use std::mem::{MaybeUninit, take};

use pyo3::prelude::*;
use pyo3::sync::PyOnceLock;
use pyo3::types::{PyByteArray, PyByteArrayMethods, PyBytes};

use crate::loan::Lent;
use crate::pour::{Pour, Poured};

/// As little is copied: that costs less than memory of its own.
const LITTLE: usize = 16 * 1024;

/// How many texts are made here after one that had to be brought here.
const BARRED: u8 = 16;

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
    /// All of its memory, or of what is lent. None of that in between: then it has to be asked for again.
    room: &'static mut [MaybeUninit<u8>],
    /// How much of it is written.
    length: usize,
    /// How much room the next one will have.
    next: usize,
    /// Where the text is made that will be written down there.
    lent: Option<Lent>,
    /// The array's memory meanwhile.
    own: &'static mut [MaybeUninit<u8>],
    /// How many texts are not made there.
    barred: u8,
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

    /// Have what comes next made where it is to be written down, if there is room and it is the first.
    pub fn borrow(&mut self, py: Python, pour: &Pour) {
        if self.length > 0 || self.lent.is_some() {
            return;
        }
        if self.barred > 0 {
            self.barred -= 1;
        } else if let Some(mut lent) = pour.lend(py) {
            let room = lent.start().unwrap_or_default();
            self.own = std::mem::replace(&mut self.room, room);
            self.lent = Some(lent);
        }
    }

    /// Go on where it was stopped.
    pub fn start(&mut self, py: Python) -> PyResult<()> {
        let Some(lent) = &mut self.lent else { return Ok(()) };
        match lent.start() {
            Some(room) => self.room = room,
            None => {
                self.barred = BARRED;
                self.bring(py)?;
            }
        }
        Ok(())
    }

    /// Stop for now: others may come, and need the room.
    pub fn stop(&mut self) {
        if let Some(lent) = &mut self.lent {
            if !self.room.is_empty() {
                lent.stop(take(&mut self.room), self.length);
            }
        }
    }

    /// Bring here what was made elsewhere.
    fn bring(&mut self, py: Python) -> PyResult<()> {
        self.stop();
        let Some(lent) = self.lent.take() else { return Ok(()) };
        self.room = take(&mut self.own);
        if self.room.len() < self.length {
            self.resize(py, self.next.max(self.length))?;
        }
        let length = take(&mut self.length);
        self.extend_from_slice(lent.text(length));
        Ok(())
    }

    fn clear(&mut self) {
        self.length = 0;
        if self.lent.take().is_some() {
            self.room = take(&mut self.own);
        }
    }

    /// Have it written to where it goes in the end.
    pub fn pour(&mut self, py: Python, pour: &mut Pour, messages: u32) -> PyResult<Flowed> {
        let flowed = match pour.pour(py, self.text(), messages)? {
            Poured::All => {
                self.clear();
                Flowed::On
            }
            Poured::Begun(begun) => {
                if self.lent.is_some() {
                    pour.hold_rest(py, self.text(), begun);
                    self.clear();
                } else {
                    pour.hold(self.take(py)?.object(py).unbind(), begun);
                }
                Flowed::Held
            }
            Poured::Not => Flowed::Not,
        };
        pour.renew(py)?;
        Ok(flowed)
    }

    /// Hand over what was written, and begin anew. There is no memory for that before there is something to write:
    /// if what was handed over is gone by then, it will be the same, and still in the processor's cache.
    pub fn take(&mut self, py: Python) -> PyResult<Written> {
        self.bring(py)?;
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
        let grown = Python::attach(|py| {
            if self.lent.is_some() {
                self.barred = BARRED;
                self.bring(py)?;
            }
            let size = self.next.max(self.length + more).max(2 * self.room.len()).max(LITTLE);
            self.resize(py, size)
        });
        grown.expect("there is memory for what is written");
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
        if self.room.len() < self.length + bytes.len() {
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
