//! A response that is written to its socket as it is made, while it is still in the processor's cache.

use std::io::{ErrorKind, IoSlice, Write};
use std::net::TcpStream;
use std::os::fd::BorrowedFd;

use pyo3::exceptions::PyOSError;
use pyo3::prelude::*;
use pyo3::types::PyBytes;

use crate::frames::text_of;
use crate::guard::guarded;

/// As much is sent at a time: less costs more calls, more does not stay in the cache.
pub const ENOUGH: usize = 512 * 1024;

const LINE_END: &[u8] = b"\r\n";

/// A connection's socket, which is written to directly until it takes no more.
///
/// What it does not take is held, and all that follows: Python sends that, and waits.
#[pyclass(module = "tardis_machine_kernel")]
pub struct Pour {
    /// None once it is closed.
    socket: Option<TcpStream>,
    /// Whether each part is a chunk of HTTP.
    chunked: bool,
    /// Whether what is made may be written: before, the response has to begin.
    #[pyo3(get, set)]
    is_open: bool,
    rest: Vec<u8>,
    /// What was written by itself, not by `send`.
    messages: u64,
    bytes: u64,
    /// All that the socket took.
    #[pyo3(get)]
    written: u64,
}

impl Pour {
    pub fn is_open(&self) -> bool {
        self.is_open
    }

    /// Write messages; true if the socket took all.
    pub fn pour(&mut self, text: &[u8], messages: u32) -> bool {
        self.messages += u64::from(messages);
        self.bytes += text.len() as u64;
        self.write(text);
        self.rest.is_empty()
    }

    fn write(&mut self, text: &[u8]) {
        let head = if self.chunked { format!("{:x}\r\n", text.len()) } else { String::new() };
        let tail = if self.chunked { LINE_END } else { b"" };
        let parts = [head.as_bytes(), text, tail];
        let mut taken = if self.rest.is_empty() { self.offer(&parts) } else { 0 };
        self.written += taken as u64;
        for part in parts {
            let skipped = taken.min(part.len());
            self.rest.extend_from_slice(&part[skipped..]);
            taken -= skipped;
        }
    }

    /// Write as much as the socket takes now. Whatever is wrong with it, its transport will find out.
    fn offer(&mut self, parts: &[&[u8]; 3]) -> usize {
        let Some(socket) = &mut self.socket else { return 0 };
        let slices = parts.map(IoSlice::new);
        loop {
            match socket.write_vectored(&slices) {
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                result => return result.unwrap_or(0),
            }
        }
    }
}

#[pymethods]
impl Pour {
    /// `fd` is a connected socket that does not block.
    #[new]
    #[allow(unsafe_code, reason = "a number from Python is a file descriptor")]
    fn new(fd: i32, chunked: bool) -> PyResult<Self> {
        if fd < 0 {
            return Err(PyOSError::new_err("not a socket"));
        }
        // SAFETY: it is not -1. It is only copied, which the system refuses if there is none.
        let owned = unsafe { BorrowedFd::borrow_raw(fd) }.try_clone_to_owned()?;
        Ok(Self {
            socket: Some(TcpStream::from(owned)),
            chunked,
            is_open: false,
            rest: Vec::new(),
            messages: 0,
            bytes: 0,
            written: 0,
        })
    }

    /// Whether something waits that the socket did not take.
    #[getter]
    fn is_held(&self) -> bool {
        !self.rest.is_empty()
    }

    /// Write messages behind what is held, if anything is.
    fn send(&mut self, text: &Bound<PyAny>) -> PyResult<()> {
        guarded(|| {
            let text = text_of(text)?;
            // An empty chunk would be the last.
            if !text.is_empty() {
                self.write(text);
            }
            Ok(())
        })
    }

    /// Give what the socket did not take; it is Python's to send before anything else.
    fn take<'py>(&mut self, py: Python<'py>) -> Bound<'py, PyBytes> {
        PyBytes::new(py, &std::mem::take(&mut self.rest))
    }

    /// Let go of the socket: it stays open as long as anybody has it.
    fn close(&mut self) {
        self.socket = None;
        self.is_open = false;
    }

    /// How many messages, and bytes of them, were written by themselves since the last call.
    fn settle(&mut self) -> (u64, u64) {
        (std::mem::take(&mut self.messages), std::mem::take(&mut self.bytes))
    }
}
