//! The histogram of times to first token, with vLLM's buckets.

/// Upper bounds of the buckets, in seconds.
pub(crate) const BUCKETS_S: [f64; 22] = [
    0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5, 10.0, 20.0, 40.0,
    80.0, 160.0, 640.0, 2_560.0,
];

/// Counts observations by bucket.
#[derive(Clone, Debug, Default)]
pub(crate) struct Histogram {
    counts: [u64; BUCKETS_S.len()],
    count: u64,
    sum_s: f64,
}

impl Histogram {
    pub(crate) fn observe(&mut self, value_s: f64) {
        self.count += 1;
        self.sum_s += value_s;
        if let Some(bucket) = BUCKETS_S.iter().position(|&bound_s| value_s <= bound_s) {
            self.counts[bucket] += 1;
        }
    }

    /// Upper bound of each bucket, and observations up to it.
    pub(crate) fn cumulative(&self) -> impl Iterator<Item = (f64, u64)> {
        let running = self.counts.iter().scan(0, |sum, &count| {
            *sum += count;
            Some(*sum)
        });
        BUCKETS_S.into_iter().zip(running)
    }

    pub(crate) fn count(&self) -> u64 {
        self.count
    }

    pub(crate) fn sum_s(&self) -> f64 {
        self.sum_s
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counts_are_cumulative_and_the_rest_is_in_the_total_only() {
        let mut histogram = Histogram::default();
        for value_s in [0.001, 0.03, 0.03, 5_000.0] {
            histogram.observe(value_s);
        }
        let at = |bound_s: f64| histogram.cumulative().find(|&(bound, _)| bound == bound_s).unwrap().1;
        assert_eq!((at(0.001), at(0.02), at(0.04), at(2_560.0)), (1, 1, 3, 3));
        assert_eq!(histogram.count(), 4);
        assert!((histogram.sum_s() - 5_000.061).abs() < 1e-9);
    }
}
