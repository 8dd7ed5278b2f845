//! Figures of the gateway's edge: connections that were turned away, and what each API key has used.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use prometheus_client::collector::Collector;
use prometheus_client::encoding::{DescriptorEncoder, EncodeMetric};
use prometheus_client::metrics::MetricType;
use prometheus_client::metrics::counter::{ConstCounter, Counter};
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
        registry.register_collector(Box::new(PerKey { edge }));
        Self { tls_failures, refused_connections }
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
