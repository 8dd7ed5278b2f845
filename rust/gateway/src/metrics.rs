//! Counters, and how they are written for Prometheus.
//!
//! What a request touches are plain atomics. Figures per worker live with the worker and are read when somebody asks,
//! so a removed worker takes its series along. Labels are few and bounded: workers, status codes from a list, path
//! classes.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use http::StatusCode;
use prometheus_client::collector::Collector;
use prometheus_client::encoding::{DescriptorEncoder, EncodeMetric, text};
use prometheus_client::metrics::MetricType;
use prometheus_client::metrics::counter::{ConstCounter, Counter};
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::ConstGauge;
use prometheus_client::metrics::histogram::Histogram;
use prometheus_client::registry::Registry;
use trunkline_core::{Reason, WorkerView};

use crate::edge::Edge;
use crate::edge_metrics::EdgeMetrics;
use crate::fleet::Fleet;
use crate::path::PathClass;
use crate::pulse::Standing;
use crate::trial::{TrialMetrics, Trials};

/// Status codes with a label of their own, and the rest by their hundred.
const CODES: [&str; 20] = [
    "200", "202", "204", "400", "401", "403", "404", "405", "408", "413", "422", "429", "499", "500", "502",
    "503", "504", "2xx", "4xx", "5xx",
];

/// The code in metrics of a client that left before the head of its answer, as nginx has it.
pub(crate) const CLIENT_CLOSED: u16 = 499;

fn code_index(code: u16) -> usize {
    let exact = CODES.iter().position(|label| label.parse() == Ok(code));
    exact.unwrap_or(match code {
        ..400 => 17,
        400..500 => 18,
        500.. => 19,
    })
}

/// Requests by path class and status code.
#[derive(Debug)]
pub(crate) struct RequestTable([[AtomicU64; CODES.len()]; PathClass::ALL.len()]);

impl Default for RequestTable {
    fn default() -> Self {
        Self(std::array::from_fn(|_| std::array::from_fn(|_| AtomicU64::new(0))))
    }
}

impl RequestTable {
    /// Counts one request.
    pub(crate) fn count(&self, class: PathClass, code: u16) {
        // The common case does not search.
        let index = if code == StatusCode::OK.as_u16() { 0 } else { code_index(code) };
        self.0[class as usize][index].fetch_add(1, Ordering::Relaxed);
    }

    /// Visits what was counted at least once.
    fn visit(&self, mut visit: impl FnMut(PathClass, &'static str, u64) -> fmt::Result) -> fmt::Result {
        for (class, row) in PathClass::ALL.into_iter().zip(&self.0) {
            for (code, count) in CODES.into_iter().zip(row) {
                match count.load(Ordering::Relaxed) {
                    0 => {}
                    count => visit(class, code, count)?,
                }
            }
        }
        Ok(())
    }
}

/// Why a request was sent once more.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
pub(crate) enum Cause {
    /// A pooled connection had been closed by the worker; the same worker is asked on a new one.
    Stale,
    Connect,
    Timeout,
    Closed,
    Malformed,
    /// 500, 502 or 504.
    Error,
    /// 429 or 503.
    Busy,
}

impl Cause {
    const LABELS: [&'static str; 7] = ["stale", "connect", "timeout", "closed", "malformed", "error", "busy"];
}

/// Why a worker was chosen, as metrics and headers call it: the router's reasons, and [`BY_LOAD`].
const REASONS: usize = Reason::ALL.len() + 1;

/// The reason of a request without a prompt: the lightest worker.
pub(crate) const BY_LOAD: &str = "no_prompt";

/// The gateway's own figures.
pub(crate) struct Metrics {
    registry: Registry,
    retries: [Counter; Cause::LABELS.len()],
    decisions: [Counter; REASONS],
    /// Requests answered without a worker.
    pub(crate) own_answers: Arc<RequestTable>,
    /// Clients that left before their answer was complete.
    pub(crate) client_disconnects: Counter,
    /// Answers that a worker cut after their first byte.
    pub(crate) cut_answers: Counter,
    /// Requests that were not sent again because the retry budget was used up.
    pub(crate) retries_denied: Counter,
    /// Requests that were turned away because the queue was full, and because their time in it was over.
    pub(crate) queue_full: Counter,
    pub(crate) queue_timeouts: Counter,
    queue_time: Histogram,
    ttft: Histogram,
    pub(crate) edge: EdgeMetrics,
}

impl fmt::Debug for Metrics {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.debug_struct("Metrics").finish_non_exhaustive()
    }
}

impl Metrics {
    /// Figures of a gateway with this fleet, this edge and these trials.
    pub(crate) fn new(fleet: Arc<Fleet>, edge: Arc<Edge>, trials: Arc<Trials>) -> Self {
        let mut registry = Registry::with_prefix("trunkline");
        let family = |label: &'static str, values: &[&'static str]| {
            let family = Family::<[(&'static str, &'static str); 1], Counter>::default();
            let counters: Vec<Counter> =
                values.iter().map(|value| family.get_or_create(&[(label, *value)]).clone()).collect();
            (family, counters)
        };
        let (retries_family, retries) = family("cause", &Cause::LABELS);
        let mut reasons = Reason::ALL.map(Reason::as_str).to_vec();
        reasons.push(BY_LOAD);
        let (decisions_family, decisions) = family("reason", &reasons);
        registry.register(
            "retries",
            "Attempts after the first one of a request, by what was wrong with the one before",
            retries_family,
        );
        registry.register("decisions", "Choices of a worker by their reason", decisions_family);
        let (client_disconnects, cut_answers) = (Counter::default(), Counter::default());
        registry.register(
            "client_disconnects",
            "Clients that left before their answer was complete",
            client_disconnects.clone(),
        );
        registry.register(
            "cut_answers",
            "Answers that a worker cut after their first byte",
            cut_answers.clone(),
        );
        let retries_denied = Counter::default();
        registry.register(
            "retries_denied",
            "Requests that were not sent again because the retry budget was used up",
            retries_denied.clone(),
        );
        let (refusals_family, refusals) = family("reason", &["full", "timeout"]);
        registry.register(
            "queue_refusals",
            "Requests turned away because the queue was full or their time in it was over",
            refusals_family,
        );
        let [queue_full, queue_timeouts] = refusals.try_into().expect("one counter per reason");
        let times = || {
            Histogram::new([
                0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0,
            ])
        };
        let (queue_time, ttft) = (times(), times());
        registry.register(
            "queue_seconds",
            "Time that requests waited because all workers were busy, those that did",
            queue_time.clone(),
        );
        registry.register(
            "ttft_seconds",
            "Time from a request to the first token of its answer",
            ttft.clone(),
        );
        let own_answers = Arc::new(RequestTable::default());
        fleet.exact.outcomes.register(&mut registry, Arc::clone(&fleet));
        registry.register_collector(Box::new(PerWorker { fleet, own_answers: Arc::clone(&own_answers) }));
        registry.register_collector(Box::new(TrialMetrics(trials)));
        Self {
            edge: EdgeMetrics::new(&mut registry, edge),
            registry,
            retries: retries.try_into().expect("one counter per cause"),
            decisions: decisions.try_into().expect("one counter per reason"),
            own_answers,
            client_disconnects,
            cut_answers,
            retries_denied,
            queue_full,
            queue_timeouts,
            queue_time,
            ttft,
        }
    }

    /// Counts one more attempt.
    pub(crate) fn retried(&self, cause: Cause) {
        self.retries[cause as usize].inc();
    }

    /// Counts a choice; `None` is one without a prompt.
    pub(crate) fn decided(&self, reason: Option<Reason>) {
        let index = reason.and_then(|reason| Reason::ALL.iter().position(|other| *other == reason));
        self.decisions[index.unwrap_or(REASONS - 1)].inc();
    }

    /// Notes a time to first token.
    pub(crate) fn first_token(&self, after: Duration) {
        self.ttft.observe(after.as_secs_f64());
    }

    /// Notes how long a request was queued.
    pub(crate) fn queued(&self, for_time: Duration) {
        self.queue_time.observe(for_time.as_secs_f64());
    }

    /// All figures in the OpenMetrics text format. Cost: O(workers).
    pub(crate) fn render(&self) -> String {
        let mut page = String::with_capacity(16 << 10);
        text::encode(&mut page, &self.registry).expect("writing to a String does not fail");
        page
    }
}

/// Figures that live elsewhere and are read when somebody asks.
#[derive(Debug)]
struct PerWorker {
    fleet: Arc<Fleet>,
    own_answers: Arc<RequestTable>,
}

impl Collector for PerWorker {
    fn encode(&self, mut out: DescriptorEncoder<'_>) -> fmt::Result {
        let snapshot = self.fleet.snapshot();
        self.fleet.look(&snapshot, self.fleet.now());
        let mut requests = out.encode_descriptor(
            "requests",
            "Requests answered, by worker, path and status",
            None,
            MetricType::Counter,
        )?;
        let mut table = |worker: &str, table: &RequestTable| {
            table.visit(|class, code, count| {
                let labels = [("worker", worker), ("path", class.label()), ("code", code)];
                ConstCounter::new(count).encode(requests.encode_family(&labels)?)
            })
        };
        table("", &self.own_answers)?;
        for worker in &snapshot.workers {
            table(&worker.endpoint.url, &worker.requests)?;
        }

        let mut gauge = |name: &str, help: &str, of: &dyn Fn(&crate::fleet::Worker) -> i64| -> fmt::Result {
            let mut metric = out.encode_descriptor(name, help, None, MetricType::Gauge)?;
            for worker in &snapshot.workers {
                ConstGauge::new(of(worker))
                    .encode(metric.encode_family(&[("worker", worker.endpoint.url.as_str())])?)?;
            }
            Ok(())
        };
        gauge("in_flight", "Requests sent and not finished", &|worker| {
            worker.in_flight.load(Ordering::Relaxed).into()
        })?;
        gauge("worker_up", "Whether the worker is in rotation", &|worker| worker.is_live().into())?;
        gauge(
            "worker_suspect",
            "Whether requests wait at the worker and no byte comes: it hangs",
            &|worker| (worker.pulse.standing() == Standing::Silent).into(),
        )?;

        let views = self.fleet.router.workers();
        let mut counter = |name: &str, help: &str, of: fn(&WorkerView) -> u64| -> fmt::Result {
            let mut metric = out.encode_descriptor(name, help, None, MetricType::Counter)?;
            for view in &views {
                ConstCounter::new(of(view))
                    .encode(metric.encode_family(&[("worker", view.name.as_str())])?)?;
            }
            Ok(())
        };
        counter("prompt_tokens", "Prompt tokens sent, as estimated", |view| view.prompt_tokens)?;
        counter("matched_tokens", "Prompt tokens believed cached when they were sent", |view| {
            view.matched_tokens
        })?;
        counter("reported_prompt_tokens", "Prompt tokens that answers reported", |view| {
            view.reported_prompt_tokens
        })?;
        counter("cached_tokens", "Cached prompt tokens that answers reported", |view| {
            view.reported_cached_tokens
        })?;

        let stats = self.fleet.router.stats();
        for (name, help, value) in [
            ("index_bytes", "Memory of the prefix index", stats.index_bytes),
            ("index_blocks", "Blocks in the prefix index", stats.index_blocks),
            ("queue_length", "Requests that wait because all workers are busy", self.fleet.queue.len()),
        ] {
            let metric = out.encode_descriptor(name, help, None, MetricType::Gauge)?;
            ConstGauge::new(i64::try_from(value).unwrap_or(i64::MAX)).encode(metric)?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use trunkline_core::{Router, RouterConfig};

    use super::*;
    use crate::sagemaker::Layout;

    #[test]
    fn codes_fold_into_a_bounded_set() {
        for code in [200, 404, 429, 499, 503] {
            assert_eq!(CODES[code_index(code)], code.to_string());
        }
        assert_eq!([201, 302, 418, 599].map(|code| CODES[code_index(code)]), ["2xx", "2xx", "4xx", "5xx"]);
    }

    #[test]
    fn the_page_has_every_figure_and_drops_removed_workers() {
        let fleet = Arc::new(Fleet::new(
            Arc::new(Router::new(RouterConfig::default()).unwrap()),
            1,
            Arc::default(),
            Layout::default(),
            crate::exact::Exact::default(),
            &crate::config::GatewayConfig::default(),
        ));
        let worker = fleet.add("http://a:1", None).unwrap();
        let metrics = Metrics::new(Arc::clone(&fleet), Arc::new(Edge::new(Arc::default())), Arc::default());
        worker.requests.count(PathClass::Chat, 200);
        metrics.own_answers.count(PathClass::Other, 413);
        metrics.retried(Cause::Busy);
        metrics.decided(Some(Reason::Home));
        metrics.decided(None);
        metrics.first_token(Duration::from_millis(3));
        let page = metrics.render();
        for line in [
            r#"trunkline_requests_total{worker="http://a:1",path="chat",code="200"} 1"#,
            r#"trunkline_requests_total{worker="",path="other",code="413"} 1"#,
            r#"trunkline_retries_total{cause="busy"} 1"#,
            r#"trunkline_decisions_total{reason="home"} 1"#,
            r#"trunkline_decisions_total{reason="no_prompt"} 1"#,
            r#"trunkline_ttft_seconds_bucket{le="0.005"} 1"#,
            r#"trunkline_in_flight{worker="http://a:1"} 0"#,
            r#"trunkline_worker_up{worker="http://a:1"} 1"#,
            r#"trunkline_prompt_tokens_total{worker="http://a:1"} 0"#,
            r#"trunkline_cached_tokens_total{worker="http://a:1"} 0"#,
            "trunkline_client_disconnects_total 0",
            "trunkline_index_blocks 0",
            "trunkline_queue_length 0",
            r#"trunkline_queue_refusals_total{reason="full"} 0"#,
            "trunkline_retries_denied_total 0",
            r#"trunkline_worker_suspect{worker="http://a:1"} 0"#,
        ] {
            assert!(page.lines().any(|other| other == line), "{line} not in\n{page}");
        }
        fleet.remove("http://a:1").unwrap();
        assert!(!metrics.render().contains("http://a:1"));
    }
}
