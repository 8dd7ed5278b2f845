//! Figures of the gateway's edge: connections that were turned away.

use prometheus_client::metrics::counter::Counter;
use prometheus_client::registry::Registry;

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
    pub(crate) fn new(registry: &mut Registry) -> Self {
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
        Self { tls_failures, refused_connections }
    }
}
