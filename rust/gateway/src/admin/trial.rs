//! The trial as operators see and change it.

use std::time::Duration;

use axum::body::Bytes;
use axum::extract::State;
use axum::extract::rejection::BytesRejection;
use http::StatusCode;
use serde::Deserialize;
use serde_json::Value;

use super::Shareds;
use super::refused::Refused;
use crate::error::Error;
use crate::trial::{Denied, RampPlan, Share, report};

/// `GET /admin/trial`.
pub(super) async fn show(State(shared): Shareds) -> axum::Json<Value> {
    axum::Json(report(&shared))
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Wanted {
    share: f64,
}

/// `POST /admin/trial/share`.
pub(super) async fn share(
    State(shared): Shareds,
    body: Result<Bytes, BytesRejection>,
) -> Result<axum::Json<Value>, Refused> {
    let Wanted { share } = read(&body?)?;
    let wanted = of_share("share", share)?;
    let trial = shared.trials.trial().ok_or(Denied::NoTrial)?;
    trial.set_share(wanted)?;
    Ok(axum::Json(report(&shared)))
}

/// A ramp's settings; what is left out is as in [`RampPlan::default`].
#[derive(Deserialize)]
#[serde(default, deny_unknown_fields)]
struct WantedRamp {
    stages: Vec<f64>,
    settle_s: f64,
    stage_s: f64,
    min_requests: u64,
    ttft_margin: f64,
    error_margin: f64,
}

impl Default for WantedRamp {
    fn default() -> Self {
        let RampPlan { stages, settle, stage, min_requests, ttft_margin, error_margin } = RampPlan::default();
        Self {
            stages: stages.into_iter().map(Share::as_f64).collect(),
            settle_s: settle.as_secs_f64(),
            stage_s: stage.as_secs_f64(),
            min_requests,
            ttft_margin,
            error_margin,
        }
    }
}

impl TryFrom<WantedRamp> for RampPlan {
    type Error = Error;

    fn try_from(wanted: WantedRamp) -> Result<Self, Error> {
        let time = |key, seconds: f64| {
            let allowed = "0 to 604800";
            let refused = |_| Error::Config { key, value: seconds.to_string(), allowed };
            Duration::try_from_secs_f64(seconds).map_err(refused)
        };
        let WantedRamp { stages, settle_s, stage_s, min_requests, ttft_margin, error_margin } = wanted;
        let plan = Self {
            stages: stages.into_iter().map(|share| of_share("stages", share)).collect::<Result<_, _>>()?,
            settle: time("settle_s", settle_s)?,
            stage: time("stage_s", stage_s)?,
            min_requests,
            ttft_margin,
            error_margin,
        };
        plan.check()?;
        Ok(plan)
    }
}

/// `POST /admin/trial/ramp`.
pub(super) async fn ramp(
    State(shared): Shareds,
    body: Result<Bytes, BytesRejection>,
) -> Result<axum::Json<Value>, Refused> {
    let body = body?;
    let wanted: WantedRamp = if body.is_empty() { WantedRamp::default() } else { read(&body)? };
    shared.ramp_trial(wanted.try_into()?)?;
    Ok(axum::Json(report(&shared)))
}

/// `POST /admin/trial/stop`.
pub(super) async fn stop(State(shared): Shareds) -> Result<axum::Json<Value>, Refused> {
    shared.trials.trial().ok_or(Denied::NoTrial)?.stop();
    Ok(axum::Json(report(&shared)))
}

/// `POST /admin/trial/reset`.
pub(super) async fn reset(State(shared): Shareds) -> Result<axum::Json<Value>, Refused> {
    shared.trials.trial().ok_or(Denied::NoTrial)?.reset(shared.now());
    Ok(axum::Json(report(&shared)))
}

fn read<'b, T: Deserialize<'b>>(body: &'b Bytes) -> Result<T, Refused> {
    serde_json::from_slice(body).map_err(|error| Refused::bad(&format!("the body: {error}")))
}

fn of_share(key: &'static str, share: f64) -> Result<Share, Error> {
    Share::new(share).ok_or_else(|| Error::Config { key, value: share.to_string(), allowed: "0 to 1" })
}

impl From<Denied> for Refused {
    fn from(denied: Denied) -> Self {
        let message = match denied {
            Denied::NoTrial => {
                "There is no trial: the gateway's settings name no trial_policy and no trial_pool.".to_owned()
            }
            Denied::NothingToCompare => {
                "The ramp would begin with all of the traffic in arm b and nothing to compare it with: give arm b a \
                 smaller share, or the ramp a smaller stage, first."
                    .to_owned()
            }
            Denied::Stopped(worse) => format!("The ramp stopped by itself: {worse}. Reset the trial first."),
        };
        Self { status: StatusCode::CONFLICT, message }
    }
}
