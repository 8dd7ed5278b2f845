//! What workers say of their load, to correct our own books: requests that others sent them.
//!
//! Our own requests we count ourselves, at once; what a worker says is a moment old. So only what exceeds our own count is taken
//! from it, and only for a few seconds. It comes from its metrics, read with each probe, and from the ORCA header of answers
//! (`endpoint-load-metrics`), which is asked for. Nothing waits for either.

use std::time::Duration;

use http::header::{HeaderMap, HeaderName, HeaderValue};
use trunkline_core::Millis;

use crate::config::LoadSignals;
use crate::fleet::{Fleet, Worker};
use crate::probe;

/// Asks an engine to say its load in an answer, and where it does.
const WANTED: HeaderName = HeaderName::from_static("endpoint-load-metrics-format");
const TOLD: HeaderName = HeaderName::from_static("endpoint-load-metrics");

/// A figure counts for so many probe intervals.
const COUNTS_FOR: u32 = 3;

/// Whether workers are asked for their load, and for how long an answer counts.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Signals {
    is_on: bool,
    counts_for: Duration,
}

impl Signals {
    /// `replicas` routers share the workers.
    pub(crate) fn new(wanted: LoadSignals, replicas: u32, probe_interval: Duration) -> Self {
        let is_on = match wanted {
            LoadSignals::Off => false,
            LoadSignals::Auto => replicas > 1,
            LoadSignals::On => true,
        };
        Self { is_on, counts_for: probe_interval * COUNTS_FOR }
    }

    /// Reads a worker's metrics and notes its load.
    pub(crate) async fn look(self, fleet: &Fleet, worker: &Worker, limit: Duration) {
        let names = worker.engine.get().requests;
        if !self.is_on || names.is_empty() {
            return;
        }
        let page = tokio::time::timeout(limit, probe::metrics(&worker.endpoint)).await;
        let Ok(Ok(page)) = page else { return };
        if let Some(requests) =
            names.iter().filter_map(|name| probe::read_sum(&page, name)).reduce(|a, b| a + b)
        {
            self.note(fleet, worker, requests);
        }
    }

    /// Has the engine say its load in the answer, unless the client has asked itself. Returns whether the answer is for us alone.
    pub(crate) fn ask(self, headers: &mut HeaderMap) -> bool {
        let asks = self.is_on && !headers.contains_key(&WANTED);
        if asks {
            headers.insert(WANTED, HeaderValue::from_static("TEXT"));
        }
        asks
    }

    /// Notes what an answer says of its worker's load; takes it out if nobody else asked.
    pub(crate) fn read(self, fleet: &Fleet, worker: &Worker, headers: &mut HeaderMap, is_ours: bool) {
        if !self.is_on {
            return;
        }
        let told = headers.get(&TOLD).and_then(|value| value.to_str().ok());
        if let Some(waiting) = told.and_then(waiting) {
            // Who waits behind others is preceded by them.
            self.note(fleet, worker, waiting);
        }
        if is_ours {
            headers.remove(&TOLD);
        }
    }

    fn note(self, fleet: &Fleet, worker: &Worker, requests: f64) {
        let own = worker.in_flight.load(std::sync::atomic::Ordering::Relaxed);
        let others = (requests as u32).saturating_sub(own);
        let until = Millis(fleet.now().0 + self.counts_for.as_millis() as u64);
        // An error means that the router's worker was removed by somebody else.
        let _ = fleet.router.set_other_load(worker.id, others, until);
    }
}

/// Requests that wait, in an ORCA report as text or JSON.
fn waiting(report: &str) -> Option<f64> {
    let (_, rest) = report.split_once("num_requests_waiting")?;
    let number = rest.trim_start_matches(['"', '=', ':', ' ']);
    let end = number.find(|letter: char| !letter.is_ascii_digit() && letter != '.').unwrap_or(number.len());
    number[..end].parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reports_are_read_as_text_and_as_json() {
        for (report, wanted) in [
            ("TEXT named_metrics.kv_cache_usage_perc=0.4, named_metrics.num_requests_waiting=6.0", Some(6.0)),
            (
                r#"JSON {"named_metrics": {"kv_cache_usage_perc": 0.4, "num_requests_waiting": 12}}"#,
                Some(12.0),
            ),
            ("TEXT named_metrics.num_requests_waiting=", None),
            ("", None),
        ] {
            assert_eq!(waiting(report), wanted, "{report}");
        }
    }

    #[test]
    fn the_client_keeps_what_it_asked_for() {
        let on = Signals::new(LoadSignals::Auto, 2, Duration::from_secs(1));
        let mut headers = HeaderMap::new();
        assert!(on.ask(&mut headers));
        assert_eq!(headers[&WANTED], "TEXT");
        assert!(!on.ask(&mut headers), "somebody has asked");
        assert!(!Signals::new(LoadSignals::Auto, 1, Duration::from_secs(1)).ask(&mut HeaderMap::new()));
    }
}
