//! What mappers pass, read without Python where it has the usual form, and by Python where not.

use pyo3::buffer::PyBuffer;
use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyFloat, PyInt, PyString};

use super::engine::Engine;
use super::levels::Refused;
use super::out::Sink;
use super::text::write_quoted;
use crate::numbers;
use crate::times::Printed;

/// From here on an int is a time in microseconds.
const MICROSECONDS: i64 = 100_000_000_000_000;
/// Integers below print as they are; others go through a double.
const SAFE_INTEGER: i64 = 1_000_000_000_000_000;

impl From<Refused> for PyErr {
    fn from(refused: Refused) -> Self {
        PyValueError::new_err(refused.0)
    }
}

/// Python's own readers, for whatever has an unusual form.
pub struct Odd {
    /// An object with `text(number)`, `time(timestamp)`, `pairs(levels, layout)`,
    /// `rows(rows, layout)` and `table(emitter, message, layout)`.
    pub readers: Py<PyAny>,
}

impl Odd {
    /// Write a number as JavaScript prints it.
    #[inline]
    pub fn number(&self, number: &Bound<PyAny>, out: &mut impl Sink) -> PyResult<()> {
        if let Ok(text) = number.cast::<PyString>() {
            if numbers::write_text(text.to_str()?.as_bytes(), out).is_ok() {
                return Ok(());
            }
        } else if let Ok(number) = number.cast_exact::<PyFloat>() {
            if numbers::write_float(number.value(), out).is_ok() {
                return Ok(());
            }
        } else if let Ok(number) = number.cast_exact::<PyInt>() {
            if let Ok(number) = number.extract::<i64>() {
                if -SAFE_INTEGER < number && number < SAFE_INTEGER {
                    write_integer(number, out);
                } else {
                    // A double as near as can be, as Python's float() is.
                    numbers::write_float(number as f64, out).map_err(Refused::from)?;
                }
                return Ok(());
            }
        } else if let Some(raw) = raw(number)? {
            if numbers::write_text(unquoted(&raw), out).is_ok() {
                return Ok(());
            }
        }
        let py = number.py();
        let text = self.readers.bind(py).call_method1("text", (number,))?;
        out.extend_from_slice(text.cast::<PyString>()?.to_str()?.as_bytes());
        Ok(())
    }

    /// Write a number unless it is None; tells whether there was one.
    #[inline]
    pub fn optional(&self, key: &[u8], number: Option<&Bound<PyAny>>, out: &mut impl Sink) -> PyResult<()> {
        match number {
            None => Ok(()),
            Some(number) => {
                out.extend_from_slice(key);
                self.number(number, out)
            }
        }
    }

    /// Read a message's time; None is the local one.
    #[inline]
    pub fn time(&self, engine: &mut Engine, time: Option<&Bound<PyAny>>) -> PyResult<Printed> {
        let Some(time) = time else { return Ok(engine.local_time()?) };
        if let Ok(number) = time.cast_exact::<PyInt>() {
            if let Ok(number) = number.extract::<i64>() {
                let printed = if number < MICROSECONDS {
                    engine.printer.milliseconds(number)
                } else {
                    engine.printer.microseconds(number)
                };
                if let Some(printed) = printed {
                    return Ok(printed);
                }
            }
        } else if let Ok(text) = time.cast::<PyString>() {
            let text = text.to_str()?.as_bytes();
            if let Some(time) = engine.times.read(text) {
                return Ok(Printed::of_text(text, &time));
            }
        }
        // No emitter prints such a time: Python says what is wrong with it.
        self.readers.bind(time.py()).call_method1("time", (time,))?;
        Err(PyValueError::new_err(format!("not a time: {time}")))
    }

    /// Write an id with its key.
    #[inline]
    pub fn id(&self, id: Option<&Bound<PyAny>>, out: &mut impl Sink) -> PyResult<()> {
        const KEY: &[u8] = b",\"id\":";
        let Some(id) = id else { return Ok(()) };
        out.extend_from_slice(KEY);
        if let Ok(text) = id.cast::<PyString>() {
            write_quoted(text.to_str()?, out);
        } else if let Some(raw) = raw(id)? {
            utf8(&raw)?;
            out.extend_from_slice(&raw);
        } else {
            out.push(b'"');
            out.extend_from_slice(id.str()?.to_str()?.as_bytes());
            out.push(b'"');
        }
        Ok(())
    }
}

/// The bytes of `bytes` or `msgspec.Raw`; None for anything else.
#[inline]
pub fn raw(object: &Bound<PyAny>) -> PyResult<Option<Vec<u8>>> {
    if let Ok(bytes) = object.cast::<PyBytes>() {
        return Ok(Some(bytes.as_bytes().to_vec()));
    }
    match PyBuffer::<u8>::get(object) {
        Ok(buffer) => Ok(Some(buffer.to_vec(object.py())?)),
        Err(_) => Ok(None),
    }
}

pub fn utf8(bytes: &[u8]) -> PyResult<&str> {
    std::str::from_utf8(bytes).map_err(|_| PyValueError::new_err("not UTF-8"))
}

/// JSON text of a number without its quotes, if it has some.
pub fn unquoted(text: &[u8]) -> &[u8] {
    match text {
        [b'"', inner @ .., b'"'] => inner,
        _ => text,
    }
}

pub fn write_integer(number: i64, out: &mut impl Sink) {
    let mut digits = [0; 20];
    let mut start = digits.len();
    let mut rest = number.unsigned_abs();
    loop {
        start -= 1;
        digits[start] = b'0' + (rest % 10) as u8;
        rest /= 10;
        if rest == 0 {
            break;
        }
    }
    if number < 0 {
        out.push(b'-');
    }
    out.extend_from_slice(&digits[start..]);
}
