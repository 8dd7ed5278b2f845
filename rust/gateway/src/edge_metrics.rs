//! Figures of the gateway's edge: connections that were turned away, reloads, and what each API key has used.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use prometheus_client::collector::Collector;
use prometheus_client::encoding::{DescriptorEncoder, EncodeMetric};
use prometheus_client::metrics::MetricType;
use prometheus_client::metrics::counter::{ConstCounter, Counter};
use prometheus_client::metrics::family::Family;
use prometheus_client::registry::Registry;

use crate::edge::Edge;
use crate::keys::Key;

/// Counters of the edge.
#[derive(Debug)]
pub(crate) struct EdgeMetrics {
    /// TLS handshakes that failed or took too long.
    pub(crate) tls_failures: Counter,
    /// Connections over the limit of their client.
    pub(crate) refused_connections: Counter,
    reloads: [Counter; 2],
}

impl EdgeMetrics {
    /// Registers all of them.
    pub(crate) fn new(registry: &mut Registry, edge: Arc<Edge>) -> Self {
        let (tls_failures, refused_connections) = (Counter::default(), Counter::default());
        registry.register(
            "tls_handshake_failures",
            "TLS handshakes of clients that failed or took too long",
            tls_failures.clone(),
        );
        registry.register(
            "refused_connections",
            "Connections closed at once because their client had as many as it may",
            refused_connections.clone(),
        );
        let results = Family::<[(&'static str, &'static str); 1], Counter>::default();
        let reloads = ["ok", "refused"].map(|result| results.get_or_create(&[("result", result)]).clone());
        registry.register("config_reloads", "Changed configurations, by what became of them", results);
        registry.register_collector(Box::new(PerKey { edge }));
        Self { tls_failures, refused_connections, reloads }
    }

    /// Counts a reload.
    pub(crate) fn reloaded(&self, ok: bool) {
        self.reloads[usize::from(!ok)].inc();
    }
}

/// What keys have used, by their names; never the keys.
#[derive(Debug)]
struct PerKey {
    edge: Arc<Edge>,
}

impl Collector for PerKey {
    fn encode(&self, mut out: DescriptorEncoder<'_>) -> fmt::Result {
        let Some(keys) = self.edge.keys.load_full() else { return Ok(()) };
        let mut counter = |name: &str, help: &str, of: fn(&Key) -> u64| -> fmt::Result {
            let mut metric = out.encode_descriptor(name, help, None, MetricType::Counter)?;
            for key in keys.iter() {
                ConstCounter::new(of(key)).encode(metric.encode_family(&[("key", key.name.as_str())])?)?;
            }
            Ok(())
        };
        counter("key_requests", "Requests admitted, by API key", |key| {
            key.requests_total.load(Ordering::Relaxed)
        })?;
        counter("key_tokens", "Tokens counted against an API key's limit", |key| {
            key.tokens_total.load(Ordering::Relaxed)
        })
    }
}
