//! What the process keeps in memory, to check what the index says of itself: its arenas come from no allocator.

/// Bytes that are resident now.
///
/// # Panics
/// Where there is no `/proc`.
#[must_use]
pub fn resident() -> usize {
    let status = std::fs::read_to_string("/proc/self/status").expect("Linux tells");
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).expect("Linux tells");
    let kib: usize = line.trim().trim_end_matches(" kB").parse().expect("a number of kB");
    kib << 10
}
