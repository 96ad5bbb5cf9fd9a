//! No panic reaches Python: a mistake in here must not look like the end of the process.

use std::panic::{AssertUnwindSafe, catch_unwind};

use pyo3::create_exception;
use pyo3::exceptions::PyRuntimeError;
use pyo3::prelude::*;

create_exception!(tardis_machine._kernel, KernelError, PyRuntimeError, "A mistake in the kernel.");

/// Run `work`; a panic becomes a KernelError.
pub fn guarded<T>(work: impl FnOnce() -> PyResult<T>) -> PyResult<T> {
    catch_unwind(AssertUnwindSafe(work)).unwrap_or_else(|cause| {
        let text = cause
            .downcast_ref::<String>()
            .map(String::as_str)
            .or_else(|| cause.downcast_ref::<&str>().copied())
            .unwrap_or("no reason given");
        Err(KernelError::new_err(format!("the kernel failed: {text}")))
    })
}
