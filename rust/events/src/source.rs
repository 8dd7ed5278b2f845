//! Where a worker's events come from: endpoints in ZeroMQ's spelling, and the list of them that an engine answers with.

use std::collections::{BTreeMap, HashMap};
use std::path::PathBuf;

use serde::Deserialize;

use crate::Error;

/// One publisher: a worker, or one of its data-parallel ranks.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Source {
    /// The worker's name, as the caller knows it.
    pub worker: String,
    /// The data-parallel rank, if the engine has several; each has a cache of its own.
    pub rank: Option<u32>,
    /// Where its messages come from.
    pub endpoint: Endpoint,
    /// Where it answers with messages that it sent before.
    pub replay: Option<Endpoint>,
    /// The beginning of the topics that are wanted; empty for all.
    pub topic: String,
    /// Whether the publisher connects to `endpoint` and we listen there. One source for each such endpoint.
    pub bind: bool,
}

/// An address of a ZeroMQ socket.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum Endpoint {
    /// `tcp://host:port`.
    Tcp {
        /// A name or an address, an IPv6 one without brackets.
        host: String,
        /// The port.
        port: u16,
    },
    /// `ipc://path`: a Unix socket.
    Ipc(PathBuf),
}

impl Endpoint {
    /// Reads `tcp://host:port` or `ipc://path`; a wildcard host (`*`, `0.0.0.0`, `[::]`) stands for `host`, that of the worker.
    ///
    /// # Errors
    /// [`Error::Endpoint`] for anything else.
    pub fn parse(endpoint: &str, host: &str) -> Result<Self, Error> {
        let wrong = || Error::Endpoint { endpoint: endpoint.to_owned() };
        if let Some(path) = endpoint.strip_prefix("ipc://") {
            return if path.is_empty() { Err(wrong()) } else { Ok(Self::Ipc(path.into())) };
        }
        let address = endpoint.strip_prefix("tcp://").ok_or_else(wrong)?;
        let (own, port) = address.rsplit_once(':').ok_or_else(wrong)?;
        let port = port.parse().ok().filter(|&port| port > 0).ok_or_else(wrong)?;
        let own = match own {
            "*" | "0.0.0.0" | "[::]" | "::" => host,
            own => own,
        };
        let bare = own.strip_prefix('[').and_then(|own| own.strip_suffix(']')).unwrap_or(own);
        if bare.is_empty() || bare.contains(['/', '[', ']', '@', ' ']) {
            return Err(wrong());
        }
        Ok(Self::Tcp { host: bare.to_owned(), port })
    }

    /// The endpoint of the rank `rank` of an engine that names one for all of them.
    fn of_rank(self, rank: u32) -> Option<Self> {
        match self {
            Self::Tcp { host, port } => {
                let port = u16::try_from(u32::from(port).checked_add(rank)?).ok()?;
                Some(Self::Tcp { host, port })
            }
            Self::Ipc(_) => None,
        }
    }
}

#[derive(Deserialize)]
struct Entry {
    #[serde(default = "yes")]
    enable_kv_cache_events: bool,
    publisher: Option<String>,
    endpoint: Option<String>,
    replay_endpoint: Option<String>,
    topic: Option<String>,
}

fn yes() -> bool {
    true
}

/// Whether an engine of vLLM's family binds this endpoint. It connects to all others, which are a collector's.
fn publisher_binds(endpoint: &str) -> bool {
    endpoint.contains('*')
        || endpoint.contains("::")
        || endpoint.starts_with("tcp://0.0.0.0:")
        || endpoint.starts_with("ipc://")
}

/// Reads an engine's answer to `GET /kv_event_sources`: an object of one entry for each data-parallel rank. `worker` names the
/// worker, `host` is where it runs, for endpoints that say "all interfaces". Ranks that publish nothing are left out; where
/// several name the same endpoint, each listens as many ports above it as its rank, as vLLM's do.
///
/// # Errors
/// [`Error::Sources`] for other JSON, [`Error::Endpoint`] for an endpoint that cannot be used.
pub fn read(json: &[u8], worker: &str, host: &str) -> Result<Vec<Source>, Error> {
    let entries: BTreeMap<u32, Entry> =
        serde_json::from_slice(json).map_err(|error| Error::Sources { reason: error.to_string() })?;
    let several = entries.len() > 1;
    let mut shared = HashMap::new();
    for endpoint in entries.values().flat_map(|entry| [&entry.endpoint, &entry.replay_endpoint]).flatten() {
        *shared.entry(endpoint.clone()).or_insert(0) += 1;
    }
    let place = |endpoint: &str, rank| {
        let parsed = Endpoint::parse(endpoint, host)?;
        if shared.get(endpoint).is_none_or(|&times| times < 2) {
            return Ok(parsed);
        }
        parsed.of_rank(rank).ok_or_else(|| Error::Endpoint { endpoint: endpoint.to_owned() })
    };
    let mut sources = Vec::new();
    for (rank, entry) in entries {
        let publishes = entry.enable_kv_cache_events && entry.publisher.is_none_or(|name| name == "zmq");
        let (Some(endpoint), true) = (entry.endpoint, publishes) else { continue };
        sources.push(Source {
            worker: worker.to_owned(),
            rank: several.then_some(rank),
            bind: !publisher_binds(&endpoint),
            endpoint: place(&endpoint, rank)?,
            replay: entry.replay_endpoint.map(|endpoint| place(&endpoint, rank)).transpose()?,
            topic: entry.topic.unwrap_or_default(),
        });
    }
    Ok(sources)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tcp(host: &str, port: u16) -> Endpoint {
        Endpoint::Tcp { host: host.to_owned(), port }
    }

    #[test]
    fn wildcards_stand_for_the_workers_host() {
        for (endpoint, host, expected) in [
            ("tcp://*:5557", "10.0.0.1", tcp("10.0.0.1", 5557)),
            ("tcp://0.0.0.0:5557", "gpu-1.example", tcp("gpu-1.example", 5557)),
            ("tcp://[::]:5557", "[fd00::1]", tcp("fd00::1", 5557)),
            ("tcp://[::ffff:127.0.0.1]:9", "x", tcp("::ffff:127.0.0.1", 9)),
            ("tcp://10.0.0.5:65535", "x", tcp("10.0.0.5", 65535)),
            ("ipc:///run/kv.sock", "x", Endpoint::Ipc("/run/kv.sock".into())),
        ] {
            assert_eq!(Endpoint::parse(endpoint, host), Ok(expected), "{endpoint}");
        }
        for wrong in [
            "",
            "tcp://",
            "tcp://*",
            "tcp://*:0",
            "tcp://*:99999",
            "tcp://:1",
            "udp://a:1",
            "inproc://a",
            "ipc://",
            "tcp://a/b:1",
        ] {
            assert_eq!(Endpoint::parse(wrong, "h"), Err(Error::Endpoint { endpoint: wrong.to_owned() }));
        }
    }

    #[test]
    fn one_entry_is_a_worker_without_ranks() {
        let json = br#"{"0": {"enable_kv_cache_events": true, "publisher": "zmq", "endpoint": "tcp://*:5557",
            "replay_endpoint": "tcp://*:5558", "buffer_steps": 10000, "hwm": 100000, "max_queue_size": 100000, "topic": "kv@w0"}}"#;
        let expected = Source {
            worker: "w".to_owned(),
            rank: None,
            endpoint: tcp("h", 5557),
            replay: Some(tcp("h", 5558)),
            topic: "kv@w0".to_owned(),
            bind: false,
        };
        assert_eq!(read(json, "w", "h"), Ok(vec![expected]));
    }

    #[test]
    fn ranks_that_share_an_endpoint_listen_side_by_side() {
        let json = |second: &str| {
            format!(
                r#"{{"0": {{"endpoint": "tcp://*:5557", "replay_endpoint": "tcp://*:6000"}},
                    "1": {{"endpoint": "{second}", "replay_endpoint": "tcp://*:6000"}}, "2": {{"publisher": "null", "endpoint": "tcp://*:1"}}}}"#
            )
        };
        let ports = |second: &str| {
            let sources = read(json(second).as_bytes(), "w", "h").expect("good");
            sources
                .into_iter()
                .map(|source| (source.rank, source.endpoint, source.replay))
                .collect::<Vec<_>>()
        };
        let expected = |second| {
            [
                (Some(0), tcp("h", 5557), Some(tcp("h", 6000))),
                (Some(1), tcp("h", second), Some(tcp("h", 6001))),
            ]
        };
        assert_eq!(ports("tcp://*:5557"), expected(5558));
        assert_eq!(ports("tcp://*:7000"), expected(7000));
    }

    #[test]
    fn other_addresses_are_ours_to_bind() {
        let source = |endpoint| {
            let json = format!(r#"{{"0": {{"endpoint": "{endpoint}"}}}}"#);
            read(json.as_bytes(), "w", "h").expect("good").remove(0)
        };
        assert!(source("tcp://10.0.0.5:5557").bind);
        for bound in ["tcp://*:1", "tcp://[::1]:1", "tcp://0.0.0.0:1", "ipc:///tmp/x"] {
            assert!(!source(bound).bind, "{bound}");
        }
    }

    #[test]
    fn what_is_not_the_answer_is_refused() {
        for wrong in [&b"[]"[..], b"{\"a\": {}}", b"{\"0\": 3}", b"<html>", b""] {
            assert!(matches!(read(wrong, "w", "h"), Err(Error::Sources { .. })));
        }
        assert_eq!(read(b"{\"0\": {\"enable_kv_cache_events\": false}}", "w", "h"), Ok(vec![]));
        let wrong = read(br#"{"0": {"endpoint": "inproc://x"}}"#, "w", "h");
        assert!(matches!(wrong, Err(Error::Endpoint { .. })));
    }
}
