//! What operators are told of trials, as JSON. Rates are 0..1, times are seconds; an interval of 95 % is `low` to `high`, `null`
//! where the data give no bound.

use serde_json::{Value, json};
use trunkline_core::{Millis, Router};

use super::assign::Arm;
use super::config::TrialBy;
use super::estimate::{Estimate, Level, difference, quotient};
use super::ramp::{P90, RampPlan, Stage};
use super::record::{Count, Figures};
use super::running::{Ramping, Standing, Trial};
use super::shadow::{Shadow, ShadowLook};
use crate::server::Shared;

/// Answer to `GET /admin/trial`. Cost: about a millisecond.
pub(crate) fn report(shared: &Shared) -> Value {
    let (trials, router) = (&shared.trials, &shared.fleet.router);
    json!({
        "trial": trials.trial().map(|trial| of_trial(&trial, router, shared.now())),
        "shadow": trials.shadow().map(|shadow| of_shadow(&shadow, router)),
    })
}

fn of_trial(trial: &Trial, router: &Router, now: Millis) -> Value {
    let look = trial.look(now);
    let config = &trial.config;
    let live = router.policy();
    let policies = [live.name(), config.policy.unwrap_or(live).name()];
    let standing = match &look.standing {
        Standing::Off => json!({"state": "off"}),
        Standing::Split => json!({"state": "split"}),
        Standing::Done => json!({"state": "done"}),
        Standing::Ramping(ramping) => json!({"state": "ramping", "ramp": of_ramp(ramping)}),
        Standing::Stopped { worse, at } => {
            json!({"state": "stopped", "stopped": {"reason": worse.to_string(), "share": at.as_f64()}})
        }
    };
    let (arms, difference) = compared(policies, &look.arms);
    let mut told = json!({
        "share": look.share.as_f64(),
        "by": match config.by { TrialBy::Tenant => "tenant", TrialBy::Request => "request" },
        "pool": config.pool,
        "elapsed_s": now.0.saturating_sub(look.since.0) as f64 / 1e3,
        "ramp": null,
        "stopped": null,
        "stage": look.stage.map(|stage| of_stage(policies, &stage)),
        "arms": arms,
        "difference": difference,
    });
    for (key, value) in standing.as_object().into_iter().flatten() {
        told[key] = value.clone();
    }
    told
}

fn of_stage(policies: [&str; 2], stage: &Stage) -> Value {
    let Stage { number, share, of_a, elapsed, arms } = stage;
    let (arms, difference) = compared(policies, arms);
    json!({
        "stage": number,
        "share": share.as_f64(),
        "a_of_stage": of_a,
        "elapsed_s": elapsed.as_secs_f64(),
        "arms": arms,
        "difference": difference,
    })
}

/// The figures of both arms, and the differences between them.
fn compared(policies: [&str; 2], figures: &[Figures; 2]) -> (Value, Value) {
    let [a, b] = figures.each_ref().map(Rates::of);
    let arms = json!({
        "a": of_arm(policies[Arm::A as usize], &figures[Arm::A as usize], &a),
        "b": of_arm(policies[Arm::B as usize], &figures[Arm::B as usize], &b),
    });
    let difference = json!({
        "hit_rate": apart(a.hit, b.hit),
        "expected_hit": apart(a.expected_hit, b.expected_hit),
        "spill_rate": apart(a.spill, b.spill),
        "error_rate": apart(a.error, b.error),
        "ttft_p50_ratio": times(a.p50, b.p50),
        "ttft_p90_ratio": times(a.p90, b.p90),
    });
    (arms, difference)
}

fn of_ramp(Ramping { plan, stage, hold }: &Ramping) -> Value {
    let RampPlan { stages, settle, stage: time, min_requests, ttft_margin, error_margin } = plan;
    json!({
        "stages": stages.iter().map(|share| share.as_f64()).collect::<Vec<_>>(),
        "stage": stage,
        "settle_s": settle.as_secs_f64(),
        "stage_s": time.as_secs_f64(),
        "min_requests": min_requests,
        "ttft_margin": ttft_margin,
        "error_margin": error_margin,
        "waits_for": hold.to_string(),
    })
}

/// One arm's figures with intervals for somebody who looks once.
struct Rates {
    hit: Option<Estimate>,
    expected_hit: Option<Estimate>,
    spill: Option<Estimate>,
    error: Option<Estimate>,
    p50: Option<Estimate>,
    p90: Option<Estimate>,
}

impl Rates {
    fn of(figures: &Figures) -> Self {
        Self {
            hit: figures.hit_rate(Level::Once),
            expected_hit: figures.expected_hit(Level::Once),
            spill: figures.spill_rate(Level::Once),
            error: figures.error_rate(Level::Once),
            p50: figures.ttft_s(0.5, Level::Once),
            p90: figures.ttft_s(P90, Level::Once),
        }
    }
}

fn of_arm(policy: &str, figures: &Figures, rates: &Rates) -> Value {
    json!({
        "policy": policy,
        "requests": figures.total(Count::Requests),
        "errors": figures.total(Count::Errors),
        "crossed": figures.total(Count::Crossed),
        "spills": figures.total(Count::Spills),
        "prompt_tokens": figures.total(Count::ReportedTokens),
        "cached_tokens": figures.total(Count::CachedTokens),
        "groups": figures.groups(),
        "hit_rate": rates.hit,
        "expected_hit": rates.expected_hit,
        "spill_rate": rates.spill,
        "error_rate": rates.error,
        "ttft_p50_s": rates.p50,
        "ttft_p90_s": rates.p90,
    })
}

fn apart(a: Option<Estimate>, b: Option<Estimate>) -> Option<Estimate> {
    Some(difference(a?, b?))
}

fn times(a: Option<Estimate>, b: Option<Estimate>) -> Option<Estimate> {
    quotient(a?, b?)
}

fn of_shadow(shadow: &Shadow, router: &Router) -> Value {
    let ShadowLook {
        requests,
        agreement,
        expected_hit,
        expected_hit_difference,
        spill_rate,
        spill_rate_difference,
        load_spread,
    } = shadow.look(router);
    let arm = |side: usize, policy: &str| {
        json!({
            "policy": policy,
            "expected_hit": expected_hit[side],
            "spill_rate": spill_rate[side],
            "load_spread": load_spread[side],
        })
    };
    json!({
        "requests": requests,
        "agreement": agreement,
        "live": arm(0, router.policy().name()),
        "shadow": arm(1, shadow.policy.name()),
        "difference": {"expected_hit": expected_hit_difference, "spill_rate": spill_rate_difference},
    })
}
