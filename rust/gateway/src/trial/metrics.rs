//! Figures of trials for Prometheus, by arm. Without a trial there are none.

use std::fmt;
use std::sync::Arc;

use prometheus_client::collector::Collector;
use prometheus_client::encoding::{DescriptorEncoder, EncodeMetric, NoLabelSet};
use prometheus_client::metrics::MetricType;
use prometheus_client::metrics::counter::ConstCounter;
use prometheus_client::metrics::gauge::ConstGauge;

use super::Trials;
use super::assign::Arm;
use super::record::Count;
use super::running::Standing;

/// Reads the figures when somebody asks.
#[derive(Debug)]
pub(crate) struct TrialMetrics(pub(crate) Arc<Trials>);

const COUNTERS: [(&str, &str, Count); 6] = [
    ("trial_requests", "Requests of a trial, by arm", Count::Requests),
    ("trial_errors", "Requests of a trial that failed somewhere, by arm", Count::Errors),
    ("trial_crossed", "Requests of a trial that the other arm's workers took", Count::Crossed),
    ("trial_spills", "Requests of a trial that left a worker over its bound", Count::Spills),
    ("trial_prompt_tokens", "Prompt tokens that answers of a trial reported", Count::ReportedTokens),
    ("trial_cached_tokens", "Cached prompt tokens that answers of a trial reported", Count::CachedTokens),
];

/// Upper ends of the buckets, as those of `trunkline_ttft_seconds`.
const BUCKETS: [f64; 15] =
    [0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0];

impl Collector for TrialMetrics {
    fn encode(&self, mut out: DescriptorEncoder<'_>) -> fmt::Result {
        self.trial(&mut out)?;
        self.shadow(&mut out)
    }
}

impl TrialMetrics {
    fn trial(&self, out: &mut DescriptorEncoder<'_>) -> fmt::Result {
        let Some(trial) = self.0.trial() else { return Ok(()) };
        let figures = Arm::BOTH.map(|arm| (arm.as_str(), trial.record(arm).figures()));
        for (name, help, count) in COUNTERS {
            let mut metric = out.encode_descriptor(name, help, None, MetricType::Counter)?;
            for (arm, figures) in &figures {
                ConstCounter::new(figures.total(count)).encode(metric.encode_family(&[("arm", *arm)])?)?;
            }
        }
        let mut metric = out.encode_descriptor(
            "trial_ttft_seconds",
            "Time to first token of a trial's requests, by arm",
            None,
            MetricType::Histogram,
        )?;
        for (arm, figures) in &figures {
            let (mut counts, mut before) = (Vec::with_capacity(BUCKETS.len() + 1), 0);
            for end in BUCKETS {
                let within = figures.timed_within(end);
                counts.push((end, within - before));
                before = within;
            }
            counts.push((f64::MAX, figures.timed() - before));
            let sum = figures.total(Count::TtftMicros) as f64 / 1e6;
            metric.encode_family(&[("arm", *arm)])?.encode_histogram::<NoLabelSet>(
                sum,
                figures.timed(),
                &counts,
                None,
            )?;
        }
        let share =
            out.encode_descriptor("trial_share", "Arm B's share of a trial", None, MetricType::Gauge)?;
        ConstGauge::new(trial.share().as_f64()).encode(share)?;
        let is_stopped = matches!(trial.standing(), Standing::Stopped { .. });
        let stopped = out.encode_descriptor(
            "trial_stopped",
            "Whether a trial's ramp stopped by itself",
            None,
            MetricType::Gauge,
        )?;
        ConstGauge::new(i64::from(is_stopped)).encode(stopped)
    }

    fn shadow(&self, out: &mut DescriptorEncoder<'_>) -> fmt::Result {
        let Some(shadow) = self.0.shadow() else { return Ok(()) };
        let counters = shadow.counters();
        for (name, help, value) in [
            ("shadow_requests", "Requests that a policy in the shadow decided for", counters.requests),
            ("shadow_agreed", "Of these, those that went where it would have sent them", counters.agreed),
        ] {
            let metric = out.encode_descriptor(name, help, None, MetricType::Counter)?;
            ConstCounter::new(value).encode(metric)?;
        }
        for (name, help, values) in [
            ("shadow_spills", "Spills of these requests, live and in the shadow", counters.spills),
            (
                "shadow_matched_tokens",
                "Prompt tokens of these requests believed cached, live and in the shadow",
                counters.matched_tokens,
            ),
        ] {
            let mut metric = out.encode_descriptor(name, help, None, MetricType::Counter)?;
            for (arm, value) in ["live", "shadow"].into_iter().zip(values) {
                ConstCounter::new(value).encode(metric.encode_family(&[("arm", arm)])?)?;
            }
        }
        Ok(())
    }
}
