//! Text that is made where it is to be written down: in the room behind a ring's head.
//!
//! Whoever makes it may stop in the middle and go on later. If the ring needs that room for something else meanwhile, it
//! rescues what there is of the text.

use std::mem::{MaybeUninit, take};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, OnceLock};

use pyo3::prelude::*;

use crate::ring::Ring;

/// Instead of a length: somebody writes there just now.
const AT_WORK: usize = usize::MAX;

/// What the ring and the maker of a text have in common; it ends with the maker's part.
pub struct Loan {
    /// How much was written when its maker stopped.
    written: AtomicUsize,
    rescued: OnceLock<Box<[u8]>>,
}

impl Loan {
    pub fn new() -> Arc<Self> {
        Arc::new(Self { written: AtomicUsize::new(AT_WORK), rescued: OnceLock::new() })
    }

    /// How much was written; None while somebody writes.
    pub fn written(&self) -> Option<usize> {
        let written = self.written.load(Ordering::Acquire);
        (written != AT_WORK).then_some(written)
    }

    /// Keep the text, for its room is needed.
    pub fn rescue(&self, text: &[u8]) {
        let _ = self.rescued.set(text.into());
    }
}

/// The maker's part.
pub struct Lent {
    loan: Arc<Loan>,
    /// The room, while nobody writes there.
    room: &'static mut [MaybeUninit<u8>],
    /// Whose room it is: it lasts as long.
    _ring: Py<Ring>,
}

impl Lent {
    pub fn new(loan: Arc<Loan>, room: &'static mut [MaybeUninit<u8>], ring: Py<Ring>) -> Self {
        Self { loan, room, _ring: ring }
    }

    /// Have the room to write there; None if it is gone.
    pub fn start(&mut self) -> Option<&'static mut [MaybeUninit<u8>]> {
        if self.loan.rescued.get().is_some() {
            return None;
        }
        self.loan.written.store(AT_WORK, Ordering::Release);
        Some(take(&mut self.room))
    }

    /// Give the room back for now, with so much written.
    pub fn stop(&mut self, room: &'static mut [MaybeUninit<u8>], written: usize) {
        self.room = room;
        self.loan.written.store(written, Ordering::Release);
    }

    /// As much of the text as was written; nobody writes there just now.
    #[allow(unsafe_code, reason = "what was written is read where it is")]
    pub fn text(&self, length: usize) -> &[u8] {
        match self.loan.rescued.get() {
            Some(text) => &text[..length],
            // SAFETY: all of it was written.
            None => unsafe { &*(&raw const self.room[..length] as *const [u8]) },
        }
    }
}
