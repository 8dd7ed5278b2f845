//! Who gets which arm: a stable hash of the tenant, or a share of the requests.
//!
//! Each tenant has a point between 0 and 1, and is in arm B if it lies below B's share. So the answer never depends on a clock,
//! on a table or on the replica, and a share that grows moves tenants from A to B and none back. Another trial has other
//! points: those who were the first last time are not the first for ever.

use serde::Serialize;
use xxhash_rust::xxh3::{xxh3_64, xxh3_64_with_seed};

use super::estimate::GROUPS;

/// Shares are kept in millionths.
const WHOLE: u32 = 1_000_000;

/// One of the two that are compared.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
#[repr(usize)]
pub(crate) enum Arm {
    /// What there was before.
    A,
    /// What is tried.
    B,
}

impl Arm {
    pub(crate) const BOTH: [Self; 2] = [Self::A, Self::B];

    /// Its name in metrics, headers and answers.
    pub(crate) fn as_str(self) -> &'static str {
        match self {
            Self::A => "a",
            Self::B => "b",
        }
    }

    pub(crate) fn other(self) -> Self {
        match self {
            Self::A => Self::B,
            Self::B => Self::A,
        }
    }
}

/// Arm B's share, in millionths.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Default)]
pub(crate) struct Share(pub(crate) u32);

impl Share {
    /// A share from 0 to 1; `None` for any other number. Only 0 is nobody, and only 1 everybody.
    pub(crate) fn new(share: f64) -> Option<Self> {
        let millionths = match share {
            0.0 => 0,
            1.0 => WHOLE,
            0.0..1.0 => ((share * f64::from(WHOLE)).round() as u32).clamp(1, WHOLE - 1),
            _ => return None,
        };
        Some(Self(millionths))
    }

    pub(crate) fn as_f64(self) -> f64 {
        f64::from(self.0) / f64::from(WHOLE)
    }

    pub(crate) fn is_all(self) -> bool {
        self.0 == WHOLE
    }
}

/// What decides for a request: a hash of its tenant, or of its number.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Unit(u64);

impl Unit {
    /// Of a tenant, in a trial of this salt.
    pub(crate) fn of_tenant(tenant: &[u8], salt: u64) -> Self {
        Self(xxh3_64_with_seed(tenant, salt))
    }

    /// Of something that was hashed already, or of the number of a request.
    pub(crate) fn of_number(number: u64, salt: u64) -> Self {
        Self(xxh3_64_with_seed(&number.to_le_bytes(), salt))
    }

    /// Its arm. Cost: O(1).
    pub(crate) fn arm(self, share: Share) -> Arm {
        let point = (u128::from(self.0) * u128::from(WHOLE)) >> 64;
        if point < u128::from(share.0) { Arm::B } else { Arm::A }
    }

    /// The group that its figures are added to; independent of its arm.
    pub(crate) fn group(self) -> usize {
        xxh3_64(&self.0.to_le_bytes()) as usize % GROUPS
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn shares_are_kept_and_groups_do_not_follow_arms() {
        let share = Share::new(0.01).unwrap();
        let units = (0..100_000).map(|number| Unit::of_number(number, 7));
        let in_b: Vec<Unit> = units.filter(|unit| unit.arm(share) == Arm::B).collect();
        assert!((900..1100).contains(&in_b.len()), "{}", in_b.len());
        let groups: std::collections::HashSet<usize> = in_b.iter().map(|unit| unit.group()).collect();
        assert_eq!(groups.len(), GROUPS);
    }

    #[test]
    fn another_trial_begins_with_others() {
        let share = Share::new(0.5).unwrap();
        let same = (0..1000u64).filter(|tenant| {
            let arm = |salt| Unit::of_tenant(&tenant.to_le_bytes(), salt).arm(share);
            arm(1) == arm(2)
        });
        assert!((400..600).contains(&same.count()));
    }

    #[test]
    fn what_is_no_share_is_none() {
        for odd in [-0.1, 1.1, f64::NAN, f64::INFINITY] {
            assert_eq!(Share::new(odd), None, "{odd}");
        }
        assert!(Share::new(1.0).unwrap().is_all());
        assert_eq!(
            [0.0, -0.0, 1e-9, 1.0 - 1e-9].map(|share| Share::new(share).unwrap().0),
            [0, 0, 1, WHOLE - 1]
        );
        assert_eq!(Share::new(0.25).unwrap().as_f64(), 0.25);
    }

    proptest! {
        #[test]
        fn a_share_that_grows_moves_nobody_back(tenant in ".{0,30}", salt: u64, a in 0.0..=1.0, b in 0.0..=1.0) {
            let unit = Unit::of_tenant(tenant.as_bytes(), salt);
            let arm = |share: f64| unit.arm(Share::new(share).unwrap());
            let (low, high) = if a < b { (a, b) } else { (b, a) };
            prop_assert!(arm(low) == Arm::A || arm(high) == Arm::B);
            prop_assert_eq!((arm(0.0), arm(1.0)), (Arm::A, Arm::B));
        }
    }
}
