//! What operators are told of trials, as JSON. Rates are 0..1, times are seconds; an interval of 95 % is `low` to `high`, `null`
//! where the data give no bound.

use serde_json::{Value, json};
use trunkline_core::Router;

use super::assign::Arm;
use super::config::TrialBy;
use super::estimate::{Estimate, Level, difference, quotient};
use super::ramp::{P90, RampPlan};
use super::record::{Count, Figures};
use super::running::{Look, Ramping, Standing, Trial};
use super::shadow::{Shadow, ShadowLook};
use crate::server::Shared;

/// Answer to `GET /admin/trial`. Cost: about a millisecond.
pub(crate) fn report(shared: &Shared) -> Value {
    let (trials, router) = (&shared.trials, &shared.fleet.router);
    let seconds = |since: u64| shared.now().0.saturating_sub(since) as f64 / 1e3;
    json!({
        "trial": trials.trial().map(|trial| {
            let look = trial.look();
            of_trial(&trial, &look, router, seconds(look.since.0))
        }),
        "shadow": trials.shadow().map(|shadow| of_shadow(&shadow, router)),
    })
}

fn of_trial(trial: &Trial, look: &Look, router: &Router, elapsed_s: f64) -> Value {
    let [a, b] = look.arms.each_ref().map(Rates::of);
    let config = &trial.config;
    let standing = match &look.standing {
        Standing::Off => json!({"state": "off"}),
        Standing::Split => json!({"state": "split"}),
        Standing::Done => json!({"state": "done"}),
        Standing::Ramping(ramping) => json!({"state": "ramping", "ramp": of_ramp(ramping)}),
        Standing::Stopped { worse, at } => {
            json!({"state": "stopped", "stopped": {"reason": worse.to_string(), "share": at.as_f64()}})
        }
    };
    let mut told = json!({
        "share": look.share.as_f64(),
        "by": match config.by { TrialBy::Tenant => "tenant", TrialBy::Request => "request" },
        "pool": config.pool,
        "elapsed_s": elapsed_s,
        "ramp": null,
        "stopped": null,
        "arms": {
            "a": of_arm(router.policy().name(), &look.arms[Arm::A as usize], &a),
            "b": of_arm(config.policy.unwrap_or(router.policy()).name(), &look.arms[Arm::B as usize], &b),
        },
        "difference": {
            "hit_rate": apart(a.hit, b.hit),
            "expected_hit": apart(a.expected_hit, b.expected_hit),
            "spill_rate": apart(a.spill, b.spill),
            "error_rate": apart(a.error, b.error),
            "ttft_p50_ratio": times(a.p50, b.p50),
            "ttft_p90_ratio": times(a.p90, b.p90),
        },
    });
    for (key, value) in standing.as_object().into_iter().flatten() {
        told[key] = value.clone();
    }
    told
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
