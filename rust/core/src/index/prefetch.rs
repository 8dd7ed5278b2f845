//! A hint to the CPU that a cache line will be read soon.

/// Asks for the cache line of `item`. Nothing is read, and nothing happens on a CPU for which no instruction is known here.
#[inline]
#[allow(unsafe_code)]
pub(super) fn prefetch<T>(item: &T) {
    #[cfg(target_arch = "x86_64")]
    {
        use core::arch::x86_64::{_MM_HINT_T0, _mm_prefetch};
        // SAFETY: every x86-64 CPU has the instruction; it cannot fault, whatever the address, and this one is valid.
        unsafe { _mm_prefetch::<_MM_HINT_T0>(std::ptr::from_ref(item).cast()) };
    }
    #[cfg(not(target_arch = "x86_64"))]
    let _ = item;
}
