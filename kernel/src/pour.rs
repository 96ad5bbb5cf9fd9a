//! A response that is written to its socket as it is made, while it is still in the processor's cache.

use std::io::{self, ErrorKind, IoSlice, Write};
use std::net::TcpStream;
use std::os::fd::{AsRawFd, BorrowedFd};

use memchr::memchr;
use pyo3::exceptions::{PyOSError, PyRuntimeError, PyValueError};
use pyo3::prelude::*;
use pyo3::types::PyBytes;

use crate::frames::{Header, text_of};
use crate::guard::guarded;
use crate::loan::Lent;
use crate::ring::{Appended, Ring};

/// As much is sent at a time: less costs more calls, more does not stay in the cache.
pub const ENOUGH: usize = 512 * 1024;
/// No more waits for its local time to end.
pub const TOO_MUCH: usize = 4 * ENOUGH;

const LINE_END: &[u8] = b"\r\n";
/// The system takes 1024 slices at once, and a part has up to three.
const MOST_PARTS: usize = 340;

/// What is written around messages.
#[derive(Clone, Copy)]
enum Framing {
    Nothing,
    /// A chunk of HTTP around all that are written at once.
    Chunks,
    /// A WebSocket's frame around each, instead of its line end.
    Frames,
}

/// Something that is framed by itself.
struct Part<'a> {
    head: Header,
    body: &'a [u8],
    tail: &'static [u8],
    /// Where the next one begins.
    next: usize,
}

impl Part<'_> {
    fn slices(&self) -> [&[u8]; 3] {
        [self.head.as_bytes(), self.body, self.tail]
    }

    fn len(&self) -> usize {
        self.slices().iter().map(|slice| slice.len()).sum()
    }
}

impl Framing {
    /// The part of a text that begins at a place.
    fn part<'a>(self, text: &'a [u8], at: usize) -> Part<'a> {
        let rest = &text[at..];
        match self {
            Self::Nothing => Part { head: Header::default(), body: rest, tail: b"", next: text.len() },
            Self::Chunks => {
                Part { head: Header::of_chunk(rest.len()), body: rest, tail: LINE_END, next: text.len() }
            }
            Self::Frames => {
                let length = memchr(b'\n', rest).unwrap_or(rest.len());
                let next = (at + length + 1).min(text.len());
                Part { head: Header::of_frame(length), body: &rest[..length], tail: b"", next }
            }
        }
    }

    /// The parts of a text from a place on.
    fn parts(self, text: &[u8], mut at: usize) -> impl Iterator<Item = Part<'_>> {
        std::iter::from_fn(move || {
            (at < text.len()).then(|| {
                let part = self.part(text, at);
                at = part.next;
                part
            })
        })
    }
}

/// How far the socket has got with a text.
#[derive(Default, Clone, Copy)]
pub struct Begun {
    /// Where the part begins that it has not taken whole.
    at: usize,
    /// How much of that one it took.
    taken: usize,
}

impl Begun {
    /// Go on by as many bytes of these parts, of which the first is the one it has got to.
    fn advance(&mut self, parts: &[Part], count: usize) {
        self.taken += count;
        for part in parts {
            if self.taken < part.len() {
                return;
            }
            self.taken -= part.len();
            self.at = part.next;
        }
    }
}

/// What is left of slices behind as many bytes.
fn behind<'a>(slices: impl Iterator<Item = &'a [u8]>, mut skipped: usize) -> impl Iterator<Item = &'a [u8]> {
    slices.map(move |slice| {
        let rest = &slice[skipped.min(slice.len())..];
        skipped -= slice.len() - rest.len();
        rest
    })
}

/// All that the socket has yet to take of a text.
fn rest_of(framing: Framing, text: &[u8], begun: Begun) -> Vec<u8> {
    let parts: Vec<Part> = framing.parts(text, begun.at).collect();
    behind(parts.iter().flat_map(Part::slices), begun.taken).collect::<Vec<_>>().concat()
}

/// Where messages are written down before anybody gets them.
struct Journal {
    ring: Py<Ring>,
    provenance: Vec<u8>,
    /// How many messages of the response come before the next.
    position: u64,
    /// Asks for more of the ring, which does not take long.
    renew: Py<PyAny>,
    /// Whether it is time for that.
    is_low: bool,
}

impl Journal {
    /// Write messages down, with nothing behind them of the same time; false if that takes somebody else.
    fn append(&mut self, py: Python, text: &[u8], messages: u32) -> bool {
        let Ok(mut ring) = self.ring.try_borrow_mut(py) else { return false };
        match ring.append_batch(&self.provenance, text, messages, self.position) {
            Appended::No => return false,
            Appended::Yes => {}
            Appended::Low => self.is_low = true,
        }
        self.position += u64::from(messages);
        true
    }
}

/// What became of messages that were to be written as they were made.
pub enum Poured {
    All,
    /// The socket took a part: they have to be held.
    Begun(Begun),
    /// Nothing: they have to be written down by somebody else before.
    Not,
}

/// What the socket did not take.
struct Held {
    /// Where it lies.
    text: Py<PyAny>,
    begun: Begun,
    /// What has to be written around it.
    framing: Framing,
}

/// A connection's socket, which is written to directly until it takes no more.
///
/// What it does not take is held; there is nothing behind it before it is gone.
#[pyclass(module = "tardis_machine._kernel")]
pub struct Pour {
    /// None once it is closed.
    socket: Option<TcpStream>,
    framing: Framing,
    /// Whether what is made may be written: before, the response has to begin.
    #[pyo3(get, set)]
    pub is_open: bool,
    journal: Option<Journal>,
    held: Option<Held>,
    /// What was written as it was made, not by `send`.
    messages: u64,
    bytes: u64,
    /// All that the socket took.
    #[pyo3(get)]
    written: u64,
}

impl Pour {
    /// Write what was made, once it is written down if that is to be.
    pub fn pour(&mut self, py: Python, text: &[u8], messages: u32) -> PyResult<Poured> {
        if let Some(journal) = &mut self.journal {
            if !journal.append(py, text, messages) {
                self.is_open = false;
                return Ok(Poured::Not);
            }
        }
        self.messages += u64::from(messages);
        self.bytes += text.len() as u64;
        let mut begun = Begun::default();
        // Whatever is wrong with the socket, who goes on with what is held will find out.
        let done = self.offer(text, &mut begun, self.framing).unwrap_or(false);
        Ok(if done { Poured::All } else { Poured::Begun(begun) })
    }

    /// Ask for more of the ring if it is time. Python runs meanwhile, and with it whoever else writes there: nothing that
    /// was made in the ring may be needed any more.
    pub fn renew(&mut self, py: Python) -> PyResult<()> {
        if let Some(journal) = &mut self.journal {
            if std::mem::take(&mut journal.is_low) {
                journal.renew.call0(py)?;
            }
        }
        Ok(())
    }

    /// Room to make the next messages in, where they will be written down; None if there is none.
    pub fn lend(&self, py: Python) -> Option<Lent> {
        let journal = self.journal.as_ref()?;
        Ring::lend(&journal.ring, py, journal.provenance.len())
    }

    /// Hold a text.
    pub fn hold(&mut self, text: Py<PyAny>, begun: Begun) {
        self.held = Some(Held { text, begun, framing: self.framing });
    }

    /// Hold what is left of a text that does not stay where it is.
    pub fn hold_rest(&mut self, py: Python, text: &[u8], begun: Begun) {
        let rest = PyBytes::new(py, &rest_of(self.framing, text, begun));
        self.held =
            Some(Held { text: rest.into_any().unbind(), begun: Begun::default(), framing: Framing::Nothing });
    }

    /// Write as much as the socket takes now, behind what it took before; true if that is all.
    fn offer(&mut self, text: &[u8], begun: &mut Begun, framing: Framing) -> io::Result<bool> {
        while begun.at < text.len() {
            let parts: Vec<Part> = framing.parts(text, begun.at).take(MOST_PARTS).collect();
            let size: usize = parts.iter().map(Part::len).sum();
            let slices = behind(parts.iter().flat_map(Part::slices), begun.taken);
            let slices: Vec<IoSlice> = slices.filter(|slice| !slice.is_empty()).map(IoSlice::new).collect();
            let rest = size - begun.taken;
            let count = self.write(&slices)?;
            begun.advance(&parts, count);
            if count < rest {
                return Ok(false);
            }
        }
        Ok(true)
    }

    /// Write as much as the socket takes now.
    fn write(&mut self, slices: &[IoSlice]) -> io::Result<usize> {
        let Some(socket) = &mut self.socket else { return Err(ErrorKind::NotConnected.into()) };
        loop {
            match socket.write_vectored(slices) {
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) if error.kind() == ErrorKind::WouldBlock => return Ok(0),
                result => return result.inspect(|count| self.written += *count as u64),
            }
        }
    }
}

#[pymethods]
impl Pour {
    /// `fd` is a connected socket that does not block; `framing` is "nothing", "chunks" or "frames".
    #[new]
    #[allow(unsafe_code, reason = "a number from Python is a file descriptor")]
    fn new(fd: i32, framing: &str) -> PyResult<Self> {
        let framing = match framing {
            "nothing" => Framing::Nothing,
            "chunks" => Framing::Chunks,
            "frames" => Framing::Frames,
            _ => return Err(PyValueError::new_err("no such framing")),
        };
        if fd < 0 {
            return Err(PyOSError::new_err("not a socket"));
        }
        // SAFETY: it is not -1. It is only copied, which the system refuses if there is none.
        let owned = unsafe { BorrowedFd::borrow_raw(fd) }.try_clone_to_owned()?;
        Ok(Self {
            socket: Some(TcpStream::from(owned)),
            framing,
            is_open: false,
            journal: None,
            held: None,
            messages: 0,
            bytes: 0,
            written: 0,
        })
    }

    /// Have messages that are written as they are made written down before; `renew` is called when it is time to let
    /// the ring have more.
    fn journal(&mut self, ring: Py<Ring>, provenance: Vec<u8>, position: u64, renew: Py<PyAny>) {
        self.journal = Some(Journal { ring, provenance, position, renew, is_low: false });
    }

    /// How many messages of the response were written down.
    #[getter]
    fn position(&self) -> u64 {
        self.journal.as_ref().map_or(0, |journal| journal.position)
    }

    /// Somebody else has written some down.
    #[setter]
    fn set_position(&mut self, position: u64) {
        if let Some(journal) = &mut self.journal {
            journal.position = position;
        }
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
            let mut begun = Begun::default();
            // An empty text has no parts: as a chunk it would be the last.
            if !self.offer(text_of(text)?, &mut begun, self.framing)? {
                self.hold(text.clone().unbind(), begun);
            }
            Ok(())
        })
    }

    /// Go on with what is held, if anything is.
    fn resume(&mut self, py: Python) -> PyResult<()> {
        guarded(|| {
            let Some(mut held) = self.held.take() else { return Ok(()) };
            if !self.offer(text_of(held.text.bind(py))?, &mut held.begun, held.framing)? {
                self.held = Some(held);
            }
            Ok(())
        })
    }

    /// Give what is held to somebody else who will send it; what was begun has to be ended.
    fn spill<'py>(&mut self, py: Python<'py>) -> PyResult<Bound<'py, PyBytes>> {
        guarded(|| {
            let Some(held) = self.held.take() else { return Ok(PyBytes::new(py, b"")) };
            Ok(PyBytes::new(py, &rest_of(held.framing, text_of(held.text.bind(py))?, held.begun)))
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
