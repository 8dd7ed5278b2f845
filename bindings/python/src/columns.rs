//! Arrays of results: numpy arrays where numpy is installed, typed memoryviews elsewhere. Numpy is not needed to build.

use bytemuck::Pod;
use pyo3::prelude::*;
use pyo3::sync::PyOnceLock;
use pyo3::types::PyByteArray;

/// An item type that both numpy and memoryview know.
pub(crate) trait Column: Pod {
    /// Its name in numpy.
    const DTYPE: &'static str;
    /// Its letter in `struct`.
    const FORMAT: &'static str;
}

impl Column for u8 {
    const DTYPE: &'static str = "uint8";
    const FORMAT: &'static str = "B";
}

impl Column for i32 {
    const DTYPE: &'static str = "int32";
    const FORMAT: &'static str = "i";
}

impl Column for u32 {
    const DTYPE: &'static str = "uint32";
    const FORMAT: &'static str = "I";
}

impl Column for u64 {
    const DTYPE: &'static str = "uint64";
    const FORMAT: &'static str = "Q";
}

/// The values as an array of shape `(len,)` that owns its memory.
pub(crate) fn column<T: Column>(py: Python<'_>, values: &[T]) -> PyResult<Py<PyAny>> {
    let memory = PyByteArray::new(py, bytemuck::cast_slice(values));
    let array = match from_buffer(py) {
        Some(from_buffer) => from_buffer.bind(py).call1((memory, T::DTYPE))?,
        None => py
            .import("builtins")?
            .getattr("memoryview")?
            .call1((memory,))?
            .call_method1("cast", (T::FORMAT,))?,
    };
    Ok(array.unbind())
}

/// `numpy.frombuffer`, imported by the first batch.
fn from_buffer(py: Python<'_>) -> Option<&Py<PyAny>> {
    static FROM_BUFFER: PyOnceLock<Option<Py<PyAny>>> = PyOnceLock::new();
    FROM_BUFFER
        .get_or_init(py, || {
            py.import("numpy").and_then(|numpy| numpy.getattr("frombuffer")).ok().map(Bound::unbind)
        })
        .as_ref()
}
