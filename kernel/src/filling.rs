//! Bytes of known size, written once, from their front.

use std::mem::MaybeUninit;

use pyo3::prelude::*;
use pyo3::types::PyBytes;

/// What is left to be written.
pub struct Filling<'a> {
    rest: &'a mut [MaybeUninit<u8>],
}

impl Filling<'_> {
    #[inline]
    #[allow(unsafe_code, reason = "memory is written that was never set")]
    pub fn put(&mut self, bytes: &[u8]) {
        let (here, rest) = std::mem::take(&mut self.rest).split_at_mut(bytes.len());
        // SAFETY: both are that long, and they are apart, since one of them is mutable.
        unsafe { here.as_mut_ptr().cast::<u8>().copy_from_nonoverlapping(bytes.as_ptr(), bytes.len()) };
        self.rest = rest;
    }
}

/// Make bytes and have all of them written, without setting them to zero before.
#[allow(unsafe_code, reason = "no other way leads to bytes that are not set before they are written")]
pub fn filled<'py>(
    py: Python<'py>,
    size: usize,
    fill: impl FnOnce(&mut Filling),
) -> PyResult<Bound<'py, PyBytes>> {
    // SAFETY: it gives a new object, which is bytes, or null and an error.
    let bytes = unsafe {
        let object = pyo3::ffi::PyBytes_FromStringAndSize(std::ptr::null(), size.try_into()?);
        Bound::from_owned_ptr_or_err(py, object)?.cast_into_unchecked::<PyBytes>()
    };
    // SAFETY: it has that size, and nobody else has it.
    let rest =
        unsafe { std::slice::from_raw_parts_mut(pyo3::ffi::PyBytes_AsString(bytes.as_ptr()).cast(), size) };
    let mut filling = Filling { rest };
    fill(&mut filling);
    assert!(filling.rest.is_empty(), "all of it is written");
    Ok(bytes)
}
