//! Chance, the same for the same seed: uniform numbers of `fastrand` and the three distributions that workloads need.

/// A source of chance.
#[derive(Debug, Clone)]
pub struct Rng(fastrand::Rng);

impl Rng {
    /// The source of this seed; `stream` parts uses of one seed.
    #[must_use]
    pub fn new(seed: u64, stream: u64) -> Self {
        Self(fastrand::Rng::with_seed(mix(seed ^ mix(stream.wrapping_add(0x9e37_79b9_7f4a_7c15)))))
    }

    /// In `0..1`.
    pub fn unit(&mut self) -> f64 {
        self.0.f64()
    }

    /// In `0..bound`; 0 if the bound is 0.
    pub fn below(&mut self, bound: usize) -> usize {
        if bound == 0 { 0 } else { self.0.usize(..bound) }
    }

    /// In `low..=high`.
    pub fn between(&mut self, low: u32, high: u32) -> u32 {
        self.0.u32(low..=high.max(low))
    }

    /// Exponential with this mean: gaps of a Poisson process.
    pub fn exponential(&mut self, mean: f64) -> f64 {
        -mean * (1.0 - self.unit()).ln()
    }

    /// Log-normal with this median and this sigma, cut to `low..=high`.
    pub fn log_normal(&mut self, median: f64, sigma: f64, low: u32, high: u32) -> u32 {
        let value = median * (sigma * self.normal()).exp();
        value.clamp(f64::from(low), f64::from(high)) as u32
    }

    /// Normal with mean 0 and deviation 1 (Box and Muller).
    pub fn normal(&mut self) -> f64 {
        let radius = (-2.0 * (1.0 - self.unit()).ln()).sqrt();
        radius * (std::f64::consts::TAU * self.unit()).cos()
    }

    /// Any order, all equally likely.
    pub fn shuffle<T>(&mut self, items: &mut [T]) {
        self.0.shuffle(items);
    }
}

/// The finaliser of splitmix64: spreads numbers that are alike.
#[inline]
pub(crate) const fn mix(value: u64) -> u64 {
    let value = (value ^ (value >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let value = (value ^ (value >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    value ^ (value >> 31)
}

/// Numbers `0..n` with weight `1 / (i + 1)^exponent`.
#[derive(Debug, Clone)]
pub(crate) struct Zipf(Vec<f64>);

impl Zipf {
    pub(crate) fn new(n: usize, exponent: f64) -> Self {
        let mut sum = 0.0;
        Self(
            (1..=n)
                .map(|rank| {
                    sum += (rank as f64).powf(-exponent);
                    sum
                })
                .collect(),
        )
    }

    pub(crate) fn draw(&self, rng: &mut Rng) -> usize {
        let at = rng.unit() * self.0.last().copied().unwrap_or(0.0);
        self.0.partition_point(|&sum| sum < at).min(self.0.len().saturating_sub(1))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_seed_gives_the_same_numbers_and_a_stream_others() {
        let draw = |seed, stream| {
            let mut rng = Rng::new(seed, stream);
            [rng.unit(), rng.normal(), rng.exponential(2.0)]
        };
        assert_eq!(draw(1, 1), draw(1, 1));
        assert_ne!(draw(1, 1), draw(1, 2));
        assert_ne!(draw(1, 1), draw(2, 1));
    }

    #[test]
    fn means_are_those_of_the_distributions() {
        let (mut rng, n) = (Rng::new(7, 0), 100_000);
        let mean = |values: Vec<f64>| values.iter().sum::<f64>() / f64::from(n);
        assert!((mean((0..n).map(|_| rng.exponential(3.0)).collect()) - 3.0).abs() < 0.05);
        assert!(mean((0..n).map(|_| rng.normal()).collect()).abs() < 0.02);
        let zipf = Zipf::new(2, 1.0);
        assert!((mean((0..n).map(|_| zipf.draw(&mut rng) as f64).collect()) - 1.0 / 3.0).abs() < 0.01);
    }
}
