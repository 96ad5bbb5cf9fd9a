//! The hot path of tardis-machine: what its Python does, for the same bytes, compiled.

mod bronze;
mod emit;
mod filling;
mod frames;
mod guard;
mod hashing;
mod json;
mod keys;
mod lines;
mod loan;
mod merge;
mod numbers;
mod pour;
mod raw;
mod ring;
mod times;

use pyo3::prelude::*;

/// Moves with every change of what Python and this module ask of each other.
const INTERFACE: u32 = 17;

#[pymodule]
fn _kernel(module: &Bound<'_, PyModule>) -> PyResult<()> {
    module.add("INTERFACE", INTERFACE)?;
    module.add("KernelError", module.py().get_type::<guard::KernelError>())?;
    module.add_class::<bronze::BronzeEncoder>()?;
    module.add_class::<emit::Emitter>()?;
    module.add_class::<emit::Prices>()?;
    module.add_class::<emit::Taken>()?;
    module.add_class::<emit::Column>()?;
    module.add_class::<emit::UpdateGate>()?;
    module.add_class::<emit::UpdateGates>()?;
    module.add_class::<emit::LatestTimes>()?;
    module.add_class::<ring::Ring>()?;
    module.add_class::<lines::Lines>()?;
    module.add_class::<pour::Pour>()?;
    module.add_function(wrap_pyfunction!(frames::text_frames, module)?)?;
    module.add_function(wrap_pyfunction!(merge::interleave, module)?)?;
    module.add_function(wrap_pyfunction!(raw::raw_objects, module)?)?;
    module.add_function(wrap_pyfunction!(raw::raw_frames, module)?)?;
    Ok(())
}
