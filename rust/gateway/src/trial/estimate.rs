//! What a figure is worth: estimates with intervals, for figures that are sums over groups of tenants.
//!
//! Requests of one tenant are alike, so an interval that counts them as independent is too narrow. Tenants are therefore
//! hashed into [`GROUPS`] groups that are independent of each other, and all that is kept are sums per group (random groups;
//! Wolter, *Introduction to Variance Estimation*, 2007, chapter 2). From these follow
//!
//! - ratios of sums, by the delta method over groups (Deng, Knoblich and Lu, KDD 2018);
//! - proportions, by Wilson's interval (1927) at the effective number of requests (Korn and Graubard, 1998), because it holds
//!   for rates near 0, where errors and spills are;
//! - quantiles, by the interval of the share below them, read back through the distribution (Woodruff, 1952);
//! - differences and quotients of two arms, from their intervals (MOVER: Newcombe, 1998; Zou and Donner, 2008).
//!
//! The functions are pure. A [`Level`] says for how many looks an interval has to hold.

use serde::Serialize;

/// Groups into which tenants are hashed. With 64, each with its own sums and times, an arm takes 100 KiB, and Student's t is
/// within 2 % of the normal distribution.
pub(crate) const GROUPS: usize = 64;

/// Groups with requests below which their spread says too little to print an interval.
pub(crate) const MIN_GROUPS: usize = 8;

/// The two-sided 95 % point of the normal distribution.
const Z95: f64 = 1.959_963_985;

/// For which looks an interval holds.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) enum Level {
    /// 95 %, for somebody who looks once.
    Once,
    /// Whoever looks at all times is misled with a chance of at most `alpha`; sharpest after `planned` requests. Two groups are
    /// enough, as a stop must not wait for more tenants; in a single one requests count as independent, which errs towards
    /// seeing a difference.
    ///
    /// Source: asymptotic confidence sequences, Waudby-Smith, Arbour, Sinha, Kennedy and Ramdas, *Annals of Statistics*, 2024.
    Always { alpha: f64, planned: f64 },
}

impl Level {
    /// Half the width of an interval in standard errors, after `n` requests in so many groups.
    fn width(self, n: f64, groups: usize) -> f64 {
        match self {
            Self::Once => student95(groups.saturating_sub(1)),
            Self::Always { alpha, planned } => {
                let log = -2.0 * alpha.ln();
                let rate = n * (log + log.ln_1p()) / planned;
                let normal = (2.0 * (rate + 1.0) / rate * ((rate + 1.0).sqrt() / alpha).ln()).sqrt();
                let few = if groups < self.min_groups() { 1.0 } else { student95(groups - 1) / Z95 };
                normal * few
            }
        }
    }

    /// Groups whose spread is taken for that of tenants.
    fn min_groups(self) -> usize {
        match self {
            Self::Once => MIN_GROUPS,
            Self::Always { .. } => 2,
        }
    }

    /// Whether an interval is wanted although the groups say too little.
    fn takes_one_group(self) -> bool {
        matches!(self, Self::Always { .. })
    }
}

/// The two-sided 95 % point of Student's t; within 0.1 % from 7 degrees of freedom on, and 3 % from 2 on. Source: Abramowitz and Stegun, 26.7.5.
fn student95(degrees: usize) -> f64 {
    let (z, v) = (Z95, degrees.max(1) as f64);
    let (z3, z5, z7) = (z.powi(3), z.powi(5), z.powi(7));
    z + (z3 + z) / (4.0 * v)
        + (5.0 * z5 + 16.0 * z3 + 3.0 * z) / (96.0 * v * v)
        + (3.0 * z7 + 19.0 * z5 + 17.0 * z3 - 15.0 * z) / (384.0 * v.powi(3))
}

/// A figure and its interval. A bound that the data do not give is `None`.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub(crate) struct Estimate {
    pub(crate) value: f64,
    pub(crate) low: Option<f64>,
    pub(crate) high: Option<f64>,
}

impl Estimate {
    /// A figure without an interval.
    pub(crate) fn bare(value: f64) -> Self {
        Self { value, low: None, high: None }
    }

    /// With bounds no farther out than the figure can be.
    pub(crate) fn within(self, low: f64, high: f64) -> Self {
        let clamp = |bound: Option<f64>| bound.map(|bound| bound.clamp(low, high));
        Self { low: clamp(self.low), high: clamp(self.high), ..self }
    }
}

/// A part and its whole in one group.
pub(crate) type Pair = (f64, f64);

/// What the sums over groups say of `sum(part) / sum(whole)`.
#[derive(Debug, Clone, Copy)]
struct Ratio {
    value: f64,
    whole: f64,
    /// `None` with too few groups.
    variance: Option<f64>,
    groups: usize,
}

impl Ratio {
    /// Linearised around the ratio; `None` for a whole of nothing.
    fn of(pairs: &[Pair], level: Level) -> Option<Self> {
        let whole: f64 = pairs.iter().map(|pair| pair.1).sum();
        if whole <= 0.0 {
            return None;
        }
        let value = pairs.iter().map(|pair| pair.0).sum::<f64>() / whole;
        let groups = pairs.iter().filter(|pair| pair.1 > 0.0).count();
        let variance = (groups >= level.min_groups()).then(|| {
            let squares: f64 = pairs.iter().map(|(part, all)| (part - value * all).powi(2)).sum();
            groups as f64 / (groups - 1) as f64 * squares / (whole * whole)
        });
        Some(Self { value, whole, variance, groups })
    }
}

/// `sum(part) / sum(whole)` over groups, such as cached tokens of prompt tokens. `None` for a whole of nothing.
pub(crate) fn ratio(pairs: &[Pair], level: Level) -> Option<Estimate> {
    let ratio = Ratio::of(pairs, level)?;
    let half = ratio.variance.map(|variance| level.width(ratio.whole, ratio.groups) * variance.sqrt());
    Some(Estimate {
        value: ratio.value,
        low: half.map(|half| ratio.value - half),
        high: half.map(|half| ratio.value + half),
    })
}

/// The share of requests of which something is true, such as an error; pairs are (those, all). `None` for no requests.
pub(crate) fn proportion(pairs: &[Pair], level: Level) -> Option<Estimate> {
    let ratio = Ratio::of(pairs, level)?;
    if ratio.variance.is_none() && !level.takes_one_group() {
        return Some(Estimate::bare(ratio.value));
    }
    let (p, n) = (ratio.value, ratio.whole);
    let independent = p * (1.0 - p) / n;
    let design = match ratio.variance {
        Some(variance) if independent > 0.0 => (variance / independent).max(1.0),
        _ => 1.0,
    };
    let (n, z) = (n / design, level.width(n, ratio.groups));
    let centre = (p + z * z / (2.0 * n)) / (1.0 + z * z / n);
    let half = z / (1.0 + z * z / n) * (p * (1.0 - p) / n + z * z / (4.0 * n * n)).sqrt();
    // Rounding must not put the figure outside of its interval.
    let (low, high) = ((centre - half).min(p), (centre + half).max(p));
    Some(Estimate { value: p, low: Some(low), high: Some(high) }.within(0.0, 1.0))
}

/// A distribution that tells shares below a value, and values below which a share is.
pub(crate) trait Distribution {
    /// For each group how many values are at most `value`, and how many there are.
    fn below(&self, value: f64) -> Vec<Pair>;
    /// The value below which this share of all is; `None` if there is none.
    fn at(&self, share: f64) -> Option<f64>;
}

/// The value below which a share `p` is. A bound that lies beyond the values seen is `None`.
pub(crate) fn quantile(values: &impl Distribution, p: f64, level: Level) -> Option<Estimate> {
    let value = values.at(p)?;
    let ratio = Ratio::of(&values.below(value), level)?;
    let independent = p * (1.0 - p) / ratio.whole;
    let variance = match ratio.variance {
        // Less than chance alone would give is chance itself.
        Some(variance) => variance.max(independent),
        None if level.takes_one_group() => independent,
        None => return Some(Estimate::bare(value)),
    };
    let half = level.width(ratio.whole, ratio.groups) * variance.sqrt();
    let bound = |share: f64| if (0.0..1.0).contains(&share) { values.at(share) } else { None };
    Some(Estimate { value, low: bound(p - half), high: bound(p + half) })
}

/// `b - a`.
pub(crate) fn difference(a: Estimate, b: Estimate) -> Estimate {
    let value = b.value - a.value;
    let away = |bound: Option<f64>, of: Estimate| Some((bound? - of.value).powi(2));
    let join = |x: Option<f64>, y: Option<f64>| Some((x? + y?).sqrt());
    Estimate {
        value,
        low: join(away(b.low, b), away(a.high, a)).map(|half| value - half),
        high: join(away(b.high, b), away(a.low, a)).map(|half| value + half),
    }
}

/// `b / a`, of positive figures: the difference of their logarithms. `None` unless both are positive.
pub(crate) fn quotient(a: Estimate, b: Estimate) -> Option<Estimate> {
    let log = |figure: Estimate| {
        let positive = |value: f64| (value > 0.0).then(|| value.ln());
        Some(Estimate {
            value: positive(figure.value)?,
            low: figure.low.and_then(positive),
            high: figure.high.and_then(positive),
        })
    };
    let Estimate { value, low, high } = difference(log(a)?, log(b)?);
    Some(Estimate { value: value.exp(), low: low.map(f64::exp), high: high.map(f64::exp) })
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn close(a: f64, b: f64, tolerance: f64) {
        assert!((a - b).abs() <= tolerance, "{a} is not {b}");
    }

    #[test]
    fn students_t_is_that_of_the_tables() {
        for (degrees, wanted) in [(7, 2.3646), (10, 2.2281), (30, 2.0423), (63, 1.9983)] {
            close(student95(degrees), wanted, 2.5e-3);
        }
    }

    #[test]
    fn wilsons_interval_is_that_of_its_paper() {
        // Independent requests: 10 groups of equal shares. Newcombe (1998), table I: 81 of 263.
        let z = student95(9);
        let pairs: Vec<Pair> = (0..10).map(|_| (8.1, 26.3)).collect();
        let found = proportion(&pairs, Level::Once).unwrap();
        let n = 263.0;
        let centre = (0.308 + z * z / (2.0 * n)) / (1.0 + z * z / n);
        close((found.low.unwrap() + found.high.unwrap()) / 2.0, centre, 1e-4);
        let none = proportion(&[(0.0, 10.0); 8], Level::Once).unwrap();
        assert_eq!((none.value, none.low), (0.0, Some(0.0)));
        assert!(none.high.unwrap() > 0.03, "no error in 80 requests is no proof of none");
    }

    #[test]
    fn few_groups_say_nothing_of_their_spread() {
        let pairs = [(10.0, 20.0); MIN_GROUPS - 1];
        for found in [ratio(&pairs, Level::Once), proportion(&pairs, Level::Once)] {
            assert_eq!(found, Some(Estimate::bare(0.5)));
        }
        let always = Level::Always { alpha: 0.05, planned: 100.0 };
        assert!(
            proportion(&pairs[..1], always).unwrap().low.is_some(),
            "a stop must not wait for more tenants"
        );
        assert_eq!(ratio(&[(0.0, 0.0); 64], Level::Once), None);
    }

    #[test]
    fn tenants_that_differ_widen_the_interval() {
        let width = |pairs: &[Pair]| {
            let found = proportion(pairs, Level::Once).unwrap();
            found.high.unwrap() - found.low.unwrap()
        };
        let alike: Vec<Pair> = (0..20).map(|_| (50.0, 100.0)).collect();
        let apart: Vec<Pair> =
            (0..20).map(|group| (if group % 2 == 0 { 90.0 } else { 10.0 }, 100.0)).collect();
        assert!(width(&apart) > 5.0 * width(&alike), "{} {}", width(&apart), width(&alike));
    }

    #[test]
    fn differences_are_newcombes() {
        // Newcombe (1998), method 10, his first example: 56/70 against 48/80.
        let wilson = |hits: f64, n: f64| {
            let (p, z) = (hits / n, Z95);
            let (centre, scale) = ((p + z * z / (2.0 * n)) / (1.0 + z * z / n), 1.0 + z * z / n);
            let half = z / scale * (p * (1.0 - p) / n + z * z / (4.0 * n * n)).sqrt();
            Estimate { value: p, low: Some(centre - half), high: Some(centre + half) }
        };
        let found = difference(wilson(48.0, 80.0), wilson(56.0, 70.0));
        close(found.value, 0.2, 1e-9);
        close(found.low.unwrap(), 0.0524, 1e-4);
        close(found.high.unwrap(), 0.3339, 1e-4);
    }

    #[test]
    fn a_quotient_needs_positive_figures_and_is_one_of_equals() {
        let figure = Estimate { value: 0.2, low: Some(0.1), high: Some(0.4) };
        let found = quotient(figure, figure).unwrap();
        close(found.value, 1.0, 1e-12);
        close(found.low.unwrap() * found.high.unwrap(), 1.0, 1e-9);
        assert_eq!(quotient(Estimate::bare(0.0), figure), None);
        assert_eq!(quotient(Estimate::bare(1.0), figure).unwrap().low, None);
    }

    #[test]
    fn looking_always_costs_width_and_is_cheapest_as_planned() {
        let always = Level::Always { alpha: 0.05, planned: 1000.0 };
        let at = |n: f64| always.width(n, GROUPS) / student95(GROUPS - 1);
        assert!(at(1000.0) > 1.3 && at(1000.0) < 1.8, "{}", at(1000.0));
        assert!(at(10.0) > at(1000.0) && at(1e7) > at(1000.0));
    }

    /// How often of 400 times an interval holds the truth, for 200 tenants who differ much.
    fn coverage(truth: f64, figure: impl Fn(&[Pair], Level) -> Option<Estimate>) -> f64 {
        let mut state = 9u64;
        let mut chance = || {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            (state >> 11) as f64 / (1u64 << 53) as f64
        };
        let mut holds = 0;
        for _ in 0..400 {
            let mut pairs = [(0.0, 0.0); GROUPS];
            for _ in 0..200 {
                let (group, own_rate) = ((chance() * GROUPS as f64) as usize, 2.0 * truth * chance());
                let requests = 1.0 + (20.0 * chance()).floor();
                let hits = (0..requests as usize).filter(|_| chance() < own_rate).count();
                pairs[group].0 += hits as f64;
                pairs[group].1 += requests;
            }
            let found = figure(&pairs, Level::Once).unwrap();
            holds += i32::from(found.low.unwrap() <= truth && truth <= found.high.unwrap());
        }
        f64::from(holds) / 400.0
    }

    #[test]
    fn intervals_hold_the_truth_as_often_as_they_say() {
        for (name, found) in [
            ("ratio", coverage(0.5, ratio)),
            ("proportion", coverage(0.5, proportion)),
            ("rare", coverage(0.02, proportion)),
        ] {
            assert!((0.92..=0.985).contains(&found), "{name}: {found} instead of 0.95");
        }
    }

    proptest! {
        #[test]
        fn a_figure_is_within_its_interval(
            pairs in proptest::collection::vec((0u32..50, 0u32..50), 1..GROUPS),
        ) {
            let pairs: Vec<Pair> =
                pairs.into_iter().map(|(a, b)| (f64::from(a.min(b)), f64::from(b))).collect();
            for level in [Level::Once, Level::Always { alpha: 0.01, planned: 200.0 }] {
                for found in [proportion(&pairs, level), ratio(&pairs, level)].into_iter().flatten() {
                    prop_assert!(found.low.is_none_or(|low| low <= found.value), "{found:?}");
                    prop_assert!(found.high.is_none_or(|high| high >= found.value), "{found:?}");
                }
                let share = proportion(&pairs, level);
                prop_assert!(share.is_none_or(|share| (0.0..=1.0).contains(&share.value)));
                if let Some(share) = share {
                    let none = difference(share, share);
                    prop_assert_eq!(none.value, 0.0);
                    prop_assert!(none.low.is_none_or(|low| low <= 0.0));
                }
            }
        }
    }
}
