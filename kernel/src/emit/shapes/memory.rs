//! What a mapper remembers of a channel, and lines of its shape depend on or change.

use std::collections::HashMap;
use std::sync::atomic::{AtomicI64, Ordering};
use std::sync::{Arc, Mutex};

use pyo3::prelude::*;
use pyo3::types::PyString;

use crate::hashing::Seeded;
use crate::json::Odd;
use crate::times::Printed;

const MAX_SYMBOLS: usize = 100_000;
const CLOSED: i64 = i64::MAX;

type BySymbol<T> = HashMap<Box<[u8]>, T, Seeded>;

/// What a mapper lets pass: updates of its book from an id on, or none.
#[pyclass(frozen, module = "tardis_machine._kernel")]
#[derive(Clone)]
pub struct UpdateGate {
    oldest: Arc<AtomicI64>,
}

impl UpdateGate {
    pub fn new() -> Self {
        Self { oldest: Arc::new(AtomicI64::new(CLOSED)) }
    }

    /// The oldest id that may pass; none while it is closed.
    #[inline]
    pub fn oldest(&self) -> Option<i64> {
        Some(self.oldest.load(Ordering::Relaxed)).filter(|oldest| *oldest != CLOSED)
    }
}

#[pymethods]
impl UpdateGate {
    /// Let updates pass whose last id is not below `oldest`.
    fn open(&self, oldest: &Bound<PyAny>) {
        self.oldest.store(oldest.extract().unwrap_or(CLOSED), Ordering::Relaxed);
    }

    fn close(&self) {
        self.oldest.store(CLOSED, Ordering::Relaxed);
    }
}

/// The gates of a channel that all symbols share.
#[pyclass(frozen, module = "tardis_machine._kernel")]
#[derive(Clone, Default)]
pub struct UpdateGates {
    gates: Arc<Mutex<BySymbol<UpdateGate>>>,
}

impl UpdateGates {
    #[inline]
    fn oldest(&self, symbol: &[u8]) -> Option<i64> {
        self.gates.lock().ok()?.get(symbol)?.oldest()
    }
}

#[pymethods]
impl UpdateGates {
    /// Make the gate of a symbol anew, closed.
    fn of(&self, symbol: &str) -> UpdateGate {
        let gate = UpdateGate::new();
        if let Ok(mut gates) = self.gates.lock() {
            // Without its gate a symbol is its mapper's.
            if gates.len() >= MAX_SYMBOLS {
                gates.clear();
            }
            gates.insert(symbol.as_bytes().into(), gate.clone());
        }
        gate
    }
}

/// A time as a mapper told it, or as it was read here.
pub enum Known {
    Told(Py<PyAny>),
    Read(Printed),
}

/// The latest time of each symbol's books, which mapper and kernel both know.
#[pyclass(frozen, module = "tardis_machine._kernel")]
#[derive(Clone, Default)]
pub struct LatestTimes {
    times: Arc<Mutex<BySymbol<Known>>>,
}

impl LatestTimes {
    pub fn tell(&self, symbol: &[u8], time: Known) {
        let Ok(mut times) = self.times.lock() else { return };
        match times.get_mut(symbol) {
            Some(known) => *known = time,
            None => {
                if times.len() >= MAX_SYMBOLS {
                    times.clear();
                }
                times.insert(symbol.into(), time);
            }
        }
    }
}

#[pymethods]
impl LatestTimes {
    fn get<'py>(&self, py: Python<'py>, symbol: &str) -> Option<Bound<'py, PyAny>> {
        match self.times.lock().ok()?.get(symbol.as_bytes())? {
            Known::Told(time) => Some(time.bind(py).clone()),
            Known::Read(time) => {
                let text = std::str::from_utf8(time.as_bytes()).ok()?;
                Some(PyString::new(py, text).into_any())
            }
        }
    }

    fn __setitem__(&self, symbol: &str, time: Py<PyAny>) {
        self.tell(symbol.as_bytes(), Known::Told(time));
    }
}

/// What a channel's mapper remembers, and lines here depend on or change.
pub enum Memory {
    None,
    UpdateGate(UpdateGate),
    UpdateGates(UpdateGates),
    LatestTimes(LatestTimes),
}

impl Memory {
    pub fn of(memory: Option<&Bound<PyAny>>) -> PyResult<Self> {
        let Some(memory) = memory else { return Ok(Self::None) };
        if let Ok(gates) = memory.cast::<UpdateGates>() {
            return Ok(Self::UpdateGates(gates.get().clone()));
        }
        if let Ok(times) = memory.cast::<LatestTimes>() {
            return Ok(Self::LatestTimes(times.get().clone()));
        }
        Ok(Self::UpdateGate(memory.cast::<UpdateGate>()?.get().clone()))
    }

    /// The oldest id of a symbol that may pass; odd where its mapper has to look at the line.
    #[inline]
    pub fn oldest(&self, symbol: &[u8]) -> Result<i64, Odd> {
        match self {
            Self::None | Self::LatestTimes(_) => Ok(i64::MIN),
            Self::UpdateGate(gate) => gate.oldest().ok_or(Odd),
            Self::UpdateGates(gates) => gates.oldest(symbol).ok_or(Odd),
        }
    }
}
