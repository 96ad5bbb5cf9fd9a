//! A response that is written to its socket as it is made, while it is still in the processor's cache.

use std::io::{self, ErrorKind, IoSlice, Write};
use std::net::TcpStream;
use std::os::fd::{AsRawFd, BorrowedFd};

use pyo3::exceptions::{PyOSError, PyRuntimeError};
use pyo3::prelude::*;

use crate::frames::text_of;
use crate::guard::guarded;

/// As much is sent at a time: less costs more calls, more does not stay in the cache.
pub const ENOUGH: usize = 512 * 1024;

const LINE_END: &[u8] = b"\r\n";

/// A part that the socket did not take whole.
pub struct Begun {
    head: String,
    /// How much of it the socket took, its frame included.
    taken: usize,
}

/// A connection's socket, which is written to directly until it takes no more.
///
/// What it does not take is held; there is nothing behind it before it is gone.
#[pyclass(module = "tardis_machine_kernel")]
pub struct Pour {
    /// None once it is closed.
    socket: Option<TcpStream>,
    /// Whether each part is a chunk of HTTP.
    chunked: bool,
    /// Whether what is made may be written: before, the response has to begin.
    #[pyo3(get, set)]
    pub is_open: bool,
    /// What the socket did not take, where it lies.
    held: Option<(Py<PyAny>, Begun)>,
    /// What was written as it was made, not by `send`.
    messages: u64,
    bytes: u64,
    /// All that the socket took.
    #[pyo3(get)]
    written: u64,
}

impl Pour {
    /// Write what was made; what the socket does not take whole has to be held.
    pub fn pour(&mut self, text: &[u8], messages: u32) -> Option<Begun> {
        self.messages += u64::from(messages);
        self.bytes += text.len() as u64;
        let head = self.head(text.len());
        // Whatever is wrong with the socket, who goes on with what is held will find out.
        let taken = self.offer(&head, text, 0).unwrap_or(0);
        (taken < self.framed(&head, text)).then_some(Begun { head, taken })
    }

    pub fn hold(&mut self, text: Py<PyAny>, begun: Begun) {
        self.held = Some((text, begun));
    }

    fn head(&self, length: usize) -> String {
        if self.chunked { format!("{length:x}\r\n") } else { String::new() }
    }

    fn tail(&self) -> &'static [u8] {
        if self.chunked { LINE_END } else { b"" }
    }

    fn framed(&self, head: &str, text: &[u8]) -> usize {
        head.len() + text.len() + self.tail().len()
    }

    /// Write as much as the socket takes now, behind what it took before; gives how much it took in all.
    fn offer(&mut self, head: &str, text: &[u8], taken: usize) -> io::Result<usize> {
        let mut skipped = taken;
        let slices = [head.as_bytes(), text, self.tail()].map(|part| {
            let rest = &part[skipped.min(part.len())..];
            skipped -= part.len() - rest.len();
            IoSlice::new(rest)
        });
        let Some(socket) = &mut self.socket else { return Err(ErrorKind::NotConnected.into()) };
        loop {
            match socket.write_vectored(&slices) {
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) if error.kind() == ErrorKind::WouldBlock => return Ok(taken),
                result => {
                    let count = result?;
                    self.written += count as u64;
                    return Ok(taken + count);
                }
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
            held: None,
            messages: 0,
            bytes: 0,
            written: 0,
        })
    }

    /// Its own copy of the socket's file descriptor; -1 once it is closed.
    fn fileno(&self) -> i32 {
        self.socket.as_ref().map_or(-1, AsRawFd::as_raw_fd)
    }

    /// Whether something waits that the socket did not take.
    #[getter]
    fn is_held(&self) -> bool {
        self.held.is_some()
    }

    /// Write messages that were not written as they were made.
    fn send(&mut self, text: &Bound<PyAny>) -> PyResult<()> {
        guarded(|| {
            if self.held.is_some() {
                return Err(PyRuntimeError::new_err("something is held, which comes first"));
            }
            let content = text_of(text)?;
            // An empty chunk would be the last.
            if content.is_empty() {
                return Ok(());
            }
            let head = self.head(content.len());
            let taken = self.offer(&head, content, 0)?;
            if taken < self.framed(&head, content) {
                self.hold(text.clone().unbind(), Begun { head, taken });
            }
            Ok(())
        })
    }

    /// Go on with what is held, if anything is.
    fn resume(&mut self, py: Python) -> PyResult<()> {
        guarded(|| {
            let Some((text, Begun { head, taken })) = self.held.take() else { return Ok(()) };
            let content = text_of(text.bind(py))?;
            let taken = self.offer(&head, content, taken)?;
            if taken < self.framed(&head, content) {
                self.hold(text, Begun { head, taken });
            }
            Ok(())
        })
    }

    /// Let go of the socket: it stays open as long as anybody has it.
    fn close(&mut self) {
        self.socket = None;
        self.held = None;
        self.is_open = false;
    }

    /// How many messages, and bytes of them, were written as they were made since the last call.
    fn settle(&mut self) -> (u64, u64) {
        (std::mem::take(&mut self.messages), std::mem::take(&mut self.bytes))
    }
}
