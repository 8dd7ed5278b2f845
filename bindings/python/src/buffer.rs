//! A look into a Python buffer without copying it and without allocating.
//!
//! PyO3's own `PyBuffer` puts its `Py_buffer` on the heap; one call of `peek` is short enough for that to show. Here it
//! lives on the stack of [`with_buffer`], which is why the contents are lent to a closure: the exporter may have stored
//! pointers into the struct, so it must not move.

use std::ffi::CStr;
use std::mem::MaybeUninit;

use bytemuck::Pod;
use pyo3::ffi;
use pyo3::prelude::*;

use crate::error;

/// The contents of a one-dimensional, contiguous, native-endian buffer.
pub(crate) enum Items<'a> {
    /// Bytes of UTF-8 text.
    Bytes(&'a [u8]),
    /// Token ids, unsigned 32 bit.
    U32(&'a [u32]),
    /// Token ids, signed 32 bit.
    I32(&'a [i32]),
    /// Token ids or offsets, signed 64 bit.
    I64(&'a [i64]),
    /// Decision ids, unsigned 64 bit.
    U64(&'a [u64]),
}

/// Whether `object` supports the buffer protocol. Cost: two loads.
pub(crate) fn is_buffer(object: &Bound<'_, PyAny>) -> bool {
    // SAFETY: `object` is a live object and this thread is attached.
    unsafe { ffi::PyObject_CheckBuffer(object.as_ptr()) != 0 }
}

/// [`with_buffer`] for the argument `name`, which must be an array. Errors: `TypeError` that names it otherwise.
pub(crate) fn with_array<R>(
    object: &Bound<'_, PyAny>,
    name: &str,
    use_items: impl FnOnce(Items<'_>) -> PyResult<R>,
) -> PyResult<R> {
    if is_buffer(object) { with_buffer(object, use_items) } else { Err(error::not_a_buffer(object, name)) }
}

/// Lends the contents of `object`, which must support the buffer protocol, to `use_items`.
///
/// The exporter keeps the memory alive and in place until the closure returns. It cannot keep other threads from writing
/// to it: whoever writes to an array during a call that reads it gets a decision about a mixture of old and new.
///
/// Errors: `TypeError` for another item type or byte order, `ValueError` for another shape, stride or alignment.
pub(crate) fn with_buffer<R>(
    object: &Bound<'_, PyAny>,
    use_items: impl FnOnce(Items<'_>) -> PyResult<R>,
) -> PyResult<R> {
    let mut raw = MaybeUninit::<ffi::Py_buffer>::uninit();
    // Any layout is asked for, so that the refusal of an unfit one can say what is allowed.
    // SAFETY: `object` is a live object, and `raw` is valid for writes and stays where it is until it is released.
    if unsafe { ffi::PyObject_GetBuffer(object.as_ptr(), raw.as_mut_ptr(), ffi::PyBUF_FULL_RO) } != 0 {
        return Err(PyErr::fetch(object.py()));
    }
    // SAFETY: the call above succeeded, so it has filled the struct.
    let held = Held(unsafe { raw.assume_init_mut() });
    use_items(held.items(object)?)
}

/// A filled `Py_buffer`, given back when dropped. Lives only inside `with_buffer`, hence attached to the interpreter.
struct Held<'a>(&'a mut ffi::Py_buffer);

impl Drop for Held<'_> {
    fn drop(&mut self) {
        // SAFETY: filled by PyObject_GetBuffer and not released before.
        unsafe { ffi::PyBuffer_Release(self.0) }
    }
}

impl Held<'_> {
    fn items(&self, object: &Bound<'_, PyAny>) -> PyResult<Items<'_>> {
        let raw = &self.0;
        if raw.ndim != 1 {
            return Err(error::buffer_shape(object, raw.ndim));
        }
        // SAFETY: PyBUF_FULL_RO includes PyBUF_STRIDES: `strides` holds `ndim` numbers (null stands for contiguous).
        if !raw.strides.is_null() && raw.len > raw.itemsize && unsafe { *raw.strides } != raw.itemsize {
            return Err(error::buffer_strides(object));
        }
        let format = if raw.format.is_null() {
            c"B"
        } else {
            // SAFETY: PyBUF_FULL_RO includes PyBUF_FORMAT: a C string that lives as long as the buffer.
            unsafe { CStr::from_ptr(raw.format) }
        };
        let wrong = || error::buffer_format(object, format);
        // SAFETY (of the `slice` calls): the format names integers of that size, for which every bit pattern is valid.
        let items = match (format_code(format.to_bytes()), raw.itemsize) {
            (Some(b'b' | b'B' | b'c'), 1) => unsafe { self.slice() }.map(Items::Bytes),
            (Some(b'I' | b'L'), 4) => unsafe { self.slice() }.map(Items::U32),
            (Some(b'i' | b'l'), 4) => unsafe { self.slice() }.map(Items::I32),
            (Some(b'l' | b'q' | b'n'), 8) => unsafe { self.slice() }.map(Items::I64),
            (Some(b'L' | b'Q' | b'N'), 8) => unsafe { self.slice() }.map(Items::U64),
            _ => return Err(wrong()),
        };
        items.ok_or_else(|| error::buffer_alignment(object))
    }

    /// The memory as items, `None` if it is not aligned for them.
    ///
    /// # Safety
    /// The buffer is contiguous and holds items of the size of `T`.
    unsafe fn slice<T: Pod>(&self) -> Option<&[T]> {
        let count = self.0.len.unsigned_abs() / size_of::<T>();
        if count == 0 {
            return Some(&[]); // `buf` may be null
        }
        let start = self.0.buf.cast::<T>().cast_const();
        // SAFETY: the exporter promises `len` readable bytes at `buf`, and the pointer is aligned.
        start.is_aligned().then(|| unsafe { std::slice::from_raw_parts(start, count) })
    }
}

/// The type letter of a `struct` format of one native-endian item.
fn format_code(format: &[u8]) -> Option<u8> {
    const OTHER_ENDIAN: &[u8] = if cfg!(target_endian = "little") { b">!" } else { b"<" };
    match *format {
        [code] | [b'@' | b'=', code] => Some(code),
        [order @ (b'<' | b'>' | b'!'), code] if !OTHER_ENDIAN.contains(&order) => Some(code),
        _ => None,
    }
}
