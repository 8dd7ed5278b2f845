//! CPU time of the calling thread as criterion's measurement: on a shared machine it counts our work, not our turn.

use std::time::Duration;

use criterion::Throughput;
use criterion::measurement::{Measurement, ValueFormatter};
use rustix::time::{ClockId, clock_gettime};

/// CPU time that the calling thread has used so far.
#[must_use]
pub fn now() -> Duration {
    let time = clock_gettime(ClockId::ThreadCPUTime);
    Duration::new(time.tv_sec as u64, time.tv_nsec as u32)
}

/// What reading the clock twice costs, for short stretches: the median of 1,001 empty ones.
#[must_use]
pub fn reading() -> Duration {
    let mut empty: Vec<Duration> = (0..1001)
        .map(|_| {
            let start = now();
            now() - start
        })
        .collect();
    empty.sort_unstable();
    empty[empty.len() / 2]
}

/// Measures [`now`], in nanoseconds.
#[derive(Debug, Clone, Copy)]
pub struct ThreadCpu;

impl Measurement for ThreadCpu {
    type Intermediate = Duration;
    type Value = Duration;

    fn start(&self) -> Duration {
        now()
    }

    fn end(&self, start: Duration) -> Duration {
        now() - start
    }

    fn add(&self, first: &Duration, second: &Duration) -> Duration {
        *first + *second
    }

    fn zero(&self) -> Duration {
        Duration::ZERO
    }

    fn to_f64(&self, value: &Duration) -> f64 {
        value.as_nanos() as f64
    }

    fn formatter(&self) -> &dyn ValueFormatter {
        &Nanoseconds
    }
}

struct Nanoseconds;

impl ValueFormatter for Nanoseconds {
    fn scale_values(&self, typical: f64, values: &mut [f64]) -> &'static str {
        let (divisor, unit) = match typical {
            ..1e3 => (1.0, "ns CPU"),
            ..1e6 => (1e3, "us CPU"),
            _ => (1e6, "ms CPU"),
        };
        values.iter_mut().for_each(|value| *value /= divisor);
        unit
    }

    fn scale_throughputs(&self, _: f64, throughput: &Throughput, values: &mut [f64]) -> &'static str {
        let (amount, unit) = match *throughput {
            Throughput::Elements(amount) | Throughput::ElementsAndBytes { elements: amount, .. } => {
                (amount, "M/s")
            }
            Throughput::Bytes(amount) | Throughput::BytesDecimal(amount) => (amount, "MB/s"),
            Throughput::Bits(amount) => (amount, "Mbit/s"),
        };
        values.iter_mut().for_each(|value| *value = amount as f64 * 1e3 / *value);
        unit
    }

    fn scale_for_machines(&self, _: &mut [f64]) -> &'static str {
        "ns"
    }
}
