//! The ranges of the settings: a value outside of its range stops the start and is named with what is allowed.

use std::sync::Arc;
use std::time::Duration;

use super::{GatewayConfig, MAX_CAP};
use crate::endpoint::Endpoint;
use crate::error::Error;
use crate::sagemaker;

impl GatewayConfig {
    /// Refuses values outside their range.
    pub(crate) fn check(&self) -> Result<(), Error> {
        let refuse = |key, value: String, allowed| Err(Error::Config { key, value, allowed });
        if self.threads > 256 {
            return refuse("threads", self.threads.to_string(), "0 to 256");
        }
        if !(1 << 10..=4 << 30).contains(&self.max_body_bytes) {
            return refuse("max_body_bytes", self.max_body_bytes.to_string(), "1 KiB to 4 GiB");
        }
        let minute = Duration::from_secs(60);
        if !(Duration::from_millis(1)..=minute).contains(&self.connect_timeout) {
            return refuse("connect_timeout", format!("{:?}", self.connect_timeout), "1 ms to 60 s");
        }
        if self.first_byte_timeout.is_some_and(|timeout| timeout < Duration::from_millis(1)) {
            return refuse(
                "first_byte_timeout",
                format!("{:?}", self.first_byte_timeout),
                "at least 1 ms, or none",
            );
        }
        if !(Duration::from_millis(20)..=minute).contains(&self.probe_interval) {
            return refuse("probe_interval", format!("{:?}", self.probe_interval), "20 ms to 60 s");
        }
        if !(8 << 10..=1 << 20).contains(&self.max_header_bytes) {
            return refuse("max_header_bytes", self.max_header_bytes.to_string(), "8 KiB to 1 MiB");
        }
        if !(1..=10_000).contains(&self.max_headers) {
            return refuse("max_headers", self.max_headers.to_string(), "1 to 10000");
        }
        if self.max_connections_per_client == Some(0) {
            return refuse("max_connections_per_client", "0".into(), "1 or more, or none");
        }
        let shortest = Duration::from_millis(10);
        if !(shortest..=60 * minute).contains(&self.header_timeout) {
            return refuse("header_timeout", format!("{:?}", self.header_timeout), "10 ms to 1 h");
        }
        if !(shortest..=24 * 60 * minute).contains(&self.client_idle_timeout) {
            return refuse("client_idle_timeout", format!("{:?}", self.client_idle_timeout), "10 ms to 24 h");
        }
        if !(1..=10_000).contains(&self.max_streams) {
            return refuse("max_streams", self.max_streams.to_string(), "1 to 10000");
        }
        if self.idle_timeout.is_some_and(|timeout| timeout < Duration::from_millis(10)) {
            return refuse("idle_timeout", format!("{:?}", self.idle_timeout), "at least 10 ms, or none");
        }
        if self.max_in_flight.is_some_and(|cap| !(1..=MAX_CAP).contains(&cap)) {
            return refuse("max_in_flight", format!("{:?}", self.max_in_flight), "1 to 1000000, or none");
        }
        for (url, cap) in &self.worker_caps {
            Endpoint::parse(url, &Arc::default())?;
            if *cap > MAX_CAP {
                return refuse("worker_caps", format!("{url} = {cap}"), "0 to 1000000");
            }
        }
        if self.max_queued > MAX_CAP as usize {
            return refuse("max_queued", self.max_queued.to_string(), "0 to 1000000");
        }
        if !(Duration::from_millis(1)..=60 * minute).contains(&self.queue_timeout) {
            return refuse("queue_timeout", format!("{:?}", self.queue_timeout), "1 ms to 1 h");
        }
        if !(0.0..=1.0).contains(&self.retry_budget) {
            return refuse("retry_budget", self.retry_budget.to_string(), "0 to 1");
        }
        if self.slow_start > 10 * minute {
            return refuse("slow_start", format!("{:?}", self.slow_start), "0 to 10 min");
        }
        sagemaker::check(&self.endpoints)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn defaults_are_within_their_ranges() {
        GatewayConfig::default().check().unwrap();
    }

    #[test]
    fn names_the_setting_that_is_out_of_range() {
        let base = GatewayConfig::default;
        let cases = [
            ("threads", GatewayConfig { threads: 257, ..base() }),
            ("max_body_bytes", GatewayConfig { max_body_bytes: 0, ..base() }),
            ("connect_timeout", GatewayConfig { connect_timeout: Duration::ZERO, ..base() }),
            ("first_byte_timeout", GatewayConfig { first_byte_timeout: Some(Duration::ZERO), ..base() }),
            ("idle_timeout", GatewayConfig { idle_timeout: Some(Duration::ZERO), ..base() }),
            ("max_in_flight", GatewayConfig { max_in_flight: Some(0), ..base() }),
            ("worker_caps", GatewayConfig { worker_caps: vec![("http://a".into(), MAX_CAP + 1)], ..base() }),
            ("worker", GatewayConfig { worker_caps: vec![("a:1".into(), 1)], ..base() }),
            ("max_queued", GatewayConfig { max_queued: 1_000_001, ..base() }),
            ("queue_timeout", GatewayConfig { queue_timeout: Duration::ZERO, ..base() }),
            ("retry_budget", GatewayConfig { retry_budget: f64::NAN, ..base() }),
            ("slow_start", GatewayConfig { slow_start: Duration::from_secs(601), ..base() }),
            ("probe_interval", GatewayConfig { probe_interval: Duration::from_secs(61), ..base() }),
            ("max_header_bytes", GatewayConfig { max_header_bytes: 1 << 12, ..base() }),
            ("max_headers", GatewayConfig { max_headers: 0, ..base() }),
            ("max_connections_per_client", GatewayConfig { max_connections_per_client: Some(0), ..base() }),
            ("header_timeout", GatewayConfig { header_timeout: Duration::ZERO, ..base() }),
            ("client_idle_timeout", GatewayConfig { client_idle_timeout: Duration::ZERO, ..base() }),
            ("max_streams", GatewayConfig { max_streams: 0, ..base() }),
        ];
        for (wanted, config) in cases {
            match config.check() {
                Err(Error::Config { key, .. }) => assert_eq!(key, wanted),
                other => panic!("{wanted}: {other:?}"),
            }
        }
    }
}
