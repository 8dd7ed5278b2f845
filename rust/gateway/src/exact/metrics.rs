//! Figures of the exact view: feeds, prompts, and whether the two agree.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use prometheus_client::collector::Collector;
use prometheus_client::encoding::{DescriptorEncoder, EncodeMetric};
use prometheus_client::metrics::MetricType;
use prometheus_client::metrics::counter::{ConstCounter, Counter};
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::ConstGauge;
use prometheus_client::registry::Registry;
use trunkline_core::CacheView;
use trunkline_events::{Health, Stats};

use super::feeds::{Counts, Following};
use super::watch::Watch;
use crate::fleet::Fleet;

type Labelled = Family<[(&'static str, &'static str); 1], Counter>;

/// What became of prompts, and of comparisons with the engine.
#[derive(Debug, Default)]
pub(crate) struct ExactMetrics {
    prompts: Labelled,
    samples: Labelled,
}

impl ExactMetrics {
    pub(super) fn rendered(&self, is_whole: bool) {
        let outcome = if is_whole { "whole" } else { "partial" };
        self.prompts.get_or_create(&[("outcome", outcome)]).inc();
    }

    pub(super) fn unsupported(&self, reason: &'static str) {
        self.prompts.get_or_create(&[("outcome", reason)]).inc();
    }

    pub(super) fn sampled(&self, result: &'static str) {
        self.samples.get_or_create(&[("result", result)]).inc();
    }

    /// Registers them, and those that are read when somebody asks.
    pub(crate) fn register(&self, registry: &mut Registry, fleet: Arc<Fleet>) {
        registry.register(
            "exact_prompts",
            "Prompts that were rendered as workers' events have them, or why they were not",
            self.prompts.clone(),
        );
        registry.register(
            "exact_samples",
            "Rendered prompts that were compared with the engine's own",
            self.samples.clone(),
        );
        registry.register_collector(Box::new(Feeds { fleet }));
    }
}

/// Why a worker's cache is known from where it is.
pub(crate) fn view_reason(view: CacheView, following: Option<&Following>) -> &'static str {
    let health = following.and_then(Following::look).map(|(health, _)| health);
    match (view, health) {
        (CacheView::Own, Some(Health::Live)) if following.is_some_and(Following::lacks) => "refused",
        (CacheView::None, _) => "keeps no prefixes",
        (_, None) => "no events",
        (_, Some(Health::Partial { reason })) => reason,
        (_, Some(health)) => health.name(),
    }
}

/// Figures that live with workers and models.
#[derive(Debug)]
struct Feeds {
    fleet: Arc<Fleet>,
}

impl Collector for Feeds {
    fn encode(&self, mut out: DescriptorEncoder<'_>) -> fmt::Result {
        let snapshot = self.fleet.snapshot();
        let views = self.fleet.router.workers();
        let mut metric = out.encode_descriptor(
            "worker_view",
            "From where the worker's cache is known, and why",
            None,
            MetricType::Gauge,
        )?;
        for view in &views {
            let following = snapshot.get(view.id).map(|worker| &worker.following);
            let labels = [
                ("worker", view.name.as_str()),
                ("view", view.cache_view.as_str()),
                ("reason", view_reason(view.cache_view, following)),
            ];
            ConstGauge::new(1i64).encode(metric.encode_family(&labels)?)?;
        }
        let followed: Vec<(&str, Counts, Stats)> = (snapshot.workers.iter())
            .filter_map(|worker| {
                let (_, stats) = worker.following.look()?;
                Some((worker.endpoint.url.as_str(), *worker.following.applied.lock(), stats))
            })
            .collect();
        let mut counter = |name: &str, help: &str, of: fn(&Counts, &Stats) -> u64| -> fmt::Result {
            let mut metric = out.encode_descriptor(name, help, None, MetricType::Counter)?;
            for (worker, counts, stats) in &followed {
                ConstCounter::new(of(counts, stats)).encode(metric.encode_family(&[("worker", *worker)])?)?;
            }
            Ok(())
        };
        counter("events_batches", "Messages of the worker's feed that were applied", |_, stats| {
            stats.batches
        })?;
        counter("events_blocks_stored", "Blocks that events added to the worker's view", |counts, _| {
            counts.stored
        })?;
        counter("events_blocks_removed", "Blocks that events took off the worker's view", |counts, _| {
            counts.removed
        })?;
        counter("events_orphans", "Blocks told before the block that they follow", |counts, _| {
            counts.orphans
        })?;
        counter("events_refused", "Blocks and events that could not be used", |counts, _| counts.refused)?;
        counter("events_resets", "Times that the worker's view was emptied and filled anew", |counts, _| {
            counts.resets
        })?;
        counter("events_gaps", "Times that messages were missing", |_, stats| stats.sequence.gaps)?;
        counter("events_replays", "Replays that were asked for", |_, stats| stats.sequence.replays)?;
        counter("events_restarts", "Times that the publisher began anew", |_, stats| {
            stats.sequence.restarts
        })?;
        counter("events_decode_errors", "Messages that could not be read", |_, stats| stats.decode_errors)?;
        let mut metric = out.encode_descriptor(
            "events_delay_seconds",
            "Age of the worker's events when they were applied, smoothed; the difference of the clocks is in it",
            None,
            MetricType::Gauge,
        )?;
        for (worker, _, stats) in &followed {
            ConstGauge::new(stats.delay_s).encode(metric.encode_family(&[("worker", *worker)])?)?;
        }
        self.encode_texts(&mut out)?;
        let stats = self.fleet.router.stats();
        for (name, help, value) in [
            ("events_bytes", "Memory of what events told", stats.events_bytes),
            ("events_blocks", "Distinct blocks that events told of", stats.events_blocks),
        ] {
            let metric = out.encode_descriptor(name, help, None, MetricType::Gauge)?;
            ConstGauge::new(i64::try_from(value).unwrap_or(i64::MAX)).encode(metric)?;
        }
        Ok(())
    }
}

impl Feeds {
    fn encode_texts(&self, out: &mut DescriptorEncoder<'_>) -> fmt::Result {
        let exact = &self.fleet.exact;
        let now = self.fleet.now();
        let mut counter = |name: &str, help: &str, of: fn(&Watch) -> &AtomicU64| -> fmt::Result {
            let mut metric = out.encode_descriptor(name, help, None, MetricType::Counter)?;
            for text in exact.texts() {
                let labels = [("model", text.model.as_deref().unwrap_or_default())];
                let value = of(&text.watch).load(Ordering::Relaxed);
                ConstCounter::new(value).encode(metric.encode_family(&labels)?)?;
            }
            Ok(())
        };
        counter("exact_checked", "Answers that told how much of an exact prompt was cached", |watch| {
            &watch.checked
        })?;
        counter("exact_equal", "Of these, answers where events had told exactly that", |watch| &watch.equal)?;
        counter("exact_told_tokens", "Prompt tokens that events told were cached", |watch| {
            &watch.told_tokens
        })?;
        counter("exact_cached_tokens", "Prompt tokens of these answers that were cached", |watch| {
            &watch.cached_tokens
        })?;
        counter("exact_switched_off", "Times that a model's exact prompts were found wrong", |watch| {
            &watch.switched_off
        })?;
        let mut metric = out.encode_descriptor(
            "exact_on",
            "Whether the model's prompts are rendered",
            None,
            MetricType::Gauge,
        )?;
        for text in exact.texts() {
            let labels = [("model", text.model.as_deref().unwrap_or_default())];
            ConstGauge::new(i64::from(text.watch.is_on(now))).encode(metric.encode_family(&labels)?)?;
        }
        Ok(())
    }
}
