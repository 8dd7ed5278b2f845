//! The C API for modules that are loaded beside this one: a capsule, as `PyCapsule_Import` wants it.

use std::ptr::NonNull;

use pyo3::prelude::*;
use pyo3::types::PyCapsule;

/// Adds `_C_API` to the module: a pointer to the table of the newest version.
pub(crate) fn register(module: &Bound<'_, PyModule>) -> PyResult<()> {
    let table = trunkline::trunkline_api(trunkline::types::TRUNKLINE_API_VERSION);
    let table = NonNull::new(table.cast_mut()).expect("the library has its own version");
    // SAFETY: the table and the name are static, and nobody writes to the table.
    let capsule =
        unsafe { PyCapsule::new_with_pointer(module.py(), table.cast(), c"trunkline._core._C_API")? };
    module.add("_C_API", capsule)
}
