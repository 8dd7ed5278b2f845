//! What differs between engines, as data: how each is recognised, where it tells the size of its KV cache, and what its
//! answers mean.
//!
//! All probing is here in the gateway, so the profiles are as well: a second copy in Python could only disagree. What does
//! not differ is no field: all four engines answer `/health`, and the words of their usage (see [`crate::usage`]) do not
//! collide, so every answer is searched for all of them.
//!
//! | | vLLM | SGLang | TensorRT-LLM | TGI |
//! | --- | --- | --- | --- | --- |
//! | native path | `/inference/v1/generate` | `/generate` | | `/generate`, `/generate_stream` |
//! | no room | 503 | 503 | 429, 503 | 429 |
//! | cached tokens | `prompt_tokens_details` | the same, or `meta_info` | `prompt_tokens_details` | not told |
//!
//! Sources: the engines' own servers, read and (vLLM) run; see the field's comments.

use std::fmt;
use std::sync::atomic::{AtomicU8, Ordering};

use http::StatusCode;
use serde::Deserialize;
use trunkline_events::{Source, source};

use crate::endpoint::Endpoint;
use crate::error::Error;
use crate::trial::is_pool;

/// An engine's ways.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Profile {
    /// The name in the option `engine=`, in the admin API and in metrics.
    pub(crate) name: &'static str,
    /// `owned_by` in its list of models.
    owner: Option<&'static str>,
    /// What the names of its metrics begin with.
    metrics: Option<&'static str>,
    /// Where it tells the size of its KV cache.
    pub(crate) capacity: Capacity,
    /// How it tells of its cache.
    pub(crate) events: EventSource,
    /// Metrics whose sum is the requests that it has, running and waiting.
    pub(crate) requests: &'static [&'static str],
    /// Statuses that mean "no room now": another worker may have some.
    busy: &'static [u16],
    /// Statuses that mean "this worker failed": another one may do better.
    failed: &'static [u16],
    /// What the body of a 500 contains when the worker is shutting down; it starts nothing new.
    draining: Option<&'static str>,
    /// Whether it refuses a model that it does not list. The others serve whatever name they are asked for.
    pub(crate) checks_model: bool,
}

/// How an engine tells of its cache.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum EventSource {
    /// It publishes, and says where at `/kv_event_sources`.
    Published,
    /// It hands events out at `/kv_cache_events`, once to whoever asks.
    Polled,
    /// Not at all, unless somebody says where.
    Untold,
}

/// Where an engine tells how many tokens its KV cache holds.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Capacity {
    /// In the metric of this name, as labels: tokens, or blocks and their size.
    Labels(&'static str),
    /// As the value of the metric of this name, for each rank.
    Gauge(&'static str),
    /// In this field of the document at `/info`.
    Info(&'static str),
    /// Nowhere that may be read without taking something from others.
    Untold,
}

/// An engine of which nothing is known.
pub(crate) static ANY: Profile = Profile {
    name: "unknown",
    owner: None,
    metrics: None,
    capacity: Capacity::Labels("vllm:cache_config_info"),
    events: EventSource::Published,
    requests: &["vllm:num_requests_running", "vllm:num_requests_waiting"],
    busy: &[429, 503],
    failed: &[500, 502, 504],
    draining: None,
    checks_model: false,
};

static ENGINES: [Profile; 4] = [
    Profile {
        name: "vllm",
        owner: Some("vllm"),
        metrics: Some("vllm:"),
        // A drain cannot be seen from /health, which stays 200 all through it.
        draining: Some("cannot schedule new futures after shutdown"),
        checks_model: true,
        ..ANY
    },
    Profile {
        name: "sglang",
        owner: Some("sglang"),
        metrics: Some("sglang:"),
        // With --enable-metrics.
        capacity: Capacity::Gauge("sglang:max_total_num_tokens"),
        requests: &["sglang:num_running_reqs", "sglang:num_queue_reqs"],
        ..ANY
    },
    Profile {
        name: "trtllm",
        owner: Some("tensorrt_llm"),
        metrics: Some("trtllm_"),
        // Its /metrics hands out statistics of iterations and forgets them: they are somebody's monitoring.
        capacity: Capacity::Untold,
        events: EventSource::Polled,
        requests: &[],
        ..ANY
    },
    Profile {
        name: "tgi",
        metrics: Some("tgi_"),
        capacity: Capacity::Info("max_batch_total_tokens"),
        events: EventSource::Untold,
        requests: &["tgi_batch_current_size", "tgi_queue_size"],
        // 424 is "request failed during generation".
        failed: &[424, 500, 502, 504],
        ..ANY
    },
];

impl Profile {
    /// The profile of this name.
    fn named(name: &str) -> Option<&'static Self> {
        ENGINES.iter().find(|profile| profile.name == name)
    }

    /// Recognises an engine by what it says of itself: its list of models, or its metrics.
    pub(crate) fn recognise(owner: Option<&str>, metrics: &str) -> Option<&'static Self> {
        let by_owner = owner.and_then(|owner| ENGINES.iter().find(|profile| profile.owner == Some(owner)));
        by_owner.or_else(|| {
            let has = |prefix| metrics.lines().any(|line| line.starts_with(prefix));
            ENGINES.iter().find(|profile| profile.metrics.is_some_and(has))
        })
    }

    /// Whether an answer of this status says that there is no room.
    pub(crate) fn is_busy(&self, status: StatusCode) -> bool {
        self.busy.contains(&status.as_u16())
    }

    /// Whether an answer of this status says that the worker failed.
    pub(crate) fn is_failed(&self, status: StatusCode) -> bool {
        self.failed.contains(&status.as_u16())
    }

    /// Whether the body of an answer may say that the worker is shutting down.
    pub(crate) fn may_say_draining(&self, status: StatusCode) -> bool {
        self.draining.is_some() && status == StatusCode::INTERNAL_SERVER_ERROR
    }

    /// Whether this body says that the worker is shutting down.
    pub(crate) fn says_draining(&self, body: &[u8]) -> bool {
        self.draining.is_some_and(|sign| memchr::memmem::find(body, sign.as_bytes()).is_some())
    }
}

/// Which engine a worker is: as it was told, or as it was recognised. All methods may be called from any thread.
#[derive(Debug, Default)]
pub(crate) struct Recognised {
    told: Option<&'static Profile>,
    /// 1 + the place in [`ENGINES`]; 0 for none of them.
    number: AtomicU8,
}

impl Recognised {
    /// The profile that a worker was given, if it was.
    pub(crate) fn told(told: Option<&'static Profile>) -> Self {
        Self { told, number: AtomicU8::new(0) }
    }

    /// The profile in use.
    pub(crate) fn get(&self) -> &'static Profile {
        let found = || ENGINES.get(usize::from(self.number.load(Ordering::Relaxed)).checked_sub(1)?);
        self.told.or_else(found).unwrap_or(&ANY)
    }

    /// Notes what a probe found. Returns whether that changes the profile in use.
    pub(crate) fn note(&self, found: Option<&'static Profile>) -> bool {
        let place = found.and_then(|found| ENGINES.iter().position(|profile| profile == found));
        let number = place.map_or(0, |place| place as u8 + 1);
        self.number.swap(number, Ordering::Relaxed) != number && self.told.is_none()
    }
}

impl fmt::Display for Profile {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(self.name)
    }
}

/// What a worker's URL says of it besides where it is.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Told {
    pub(crate) engine: Option<&'static Profile>,
    /// The data-parallel rank that is meant, of an engine with several.
    pub(crate) rank: Option<u32>,
    /// Where its KV events come from, and its replays.
    events: Option<String>,
    replay: Option<String>,
    /// The pool that it belongs to in a trial.
    pub(crate) pool: Option<String>,
}

impl Told {
    /// Where the events of the worker at `endpoint` come from, if that was told.
    pub(crate) fn source(&self, endpoint: &Endpoint) -> Result<Option<Source>, Error> {
        let place = |address: &String| {
            source::Endpoint::parse(address, endpoint.host()).map_err(|_| Error::Config {
                key: "worker",
                value: format!("#events={address}"),
                allowed: "tcp://host:port or ipc:///path",
            })
        };
        let Some(events) = &self.events else { return Ok(None) };
        Ok(Some(Source {
            worker: endpoint.url.clone(),
            rank: self.rank,
            endpoint: place(events)?,
            replay: self.replay.as_ref().map(place).transpose()?,
            topic: String::new(),
            bind: false,
        }))
    }
}

/// Takes a worker's URL and its options apart: `http://host:port#engine=sglang&rank=1`. A fragment is never sent, so it can
/// hold what is meant for us.
///
/// # Errors
/// [`Error::Config`] for another option or engine.
pub(crate) fn of_url(url: &str) -> Result<(&str, Told), Error> {
    let mut told = Told::default();
    let Some((url, options)) = url.split_once('#') else { return Ok((url, told)) };
    for option in options.split('&') {
        let known = match option.split_once('=') {
            Some(("engine", name)) => {
                told.engine = Profile::named(name);
                told.engine.is_some()
            }
            Some(("rank", rank)) => {
                told.rank = rank.parse().ok();
                told.rank.is_some()
            }
            Some(("events", address)) => told.events.replace(address.to_owned()).is_none(),
            Some(("replay", address)) => told.replay.replace(address.to_owned()).is_none(),
            Some(("pool", name)) if is_pool(name) => told.pool.replace(name.to_owned()).is_none(),
            _ => false,
        };
        if !known {
            return Err(Error::Config {
                key: "worker",
                value: format!("#{option}"),
                allowed: "#engine=vllm, sglang, trtllm or tgi, rank=N, events=ADDRESS, replay=ADDRESS and pool=NAME after the URL, joined by &",
            });
        }
    }
    Ok((url, told))
}

/// `owned_by` of the first model in a list that says it.
pub(crate) fn owner<'m>(entries: impl Iterator<Item = &'m str>) -> Option<String> {
    #[derive(Deserialize)]
    struct Owned {
        owned_by: String,
    }
    entries.into_iter().find_map(|entry| Some(serde_json::from_str::<Owned>(entry).ok()?.owned_by))
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;

    #[test]
    fn engines_are_recognised_by_their_models_or_their_metrics() {
        let name = |owner, metrics| Profile::recognise(owner, metrics).map(|profile| profile.name);
        assert_eq!(name(Some("vllm"), ""), Some("vllm"));
        assert_eq!(name(Some("sglang"), "vllm:x 1"), Some("sglang"), "what it says itself counts first");
        assert_eq!(name(Some("tensorrt_llm"), ""), Some("trtllm"));
        assert_eq!(name(Some("somebody"), "# HELP\nvllm:num_requests_running{} 0\n"), Some("vllm"));
        assert_eq!(name(None, "tgi_queue_size 0"), Some("tgi"));
        assert_eq!(name(None, "process_cpu_seconds_total 1"), None);
        assert_eq!(
            owner([r#"{"id":"a"}"#, r#"{"owned_by":"sglang"}"#].into_iter()).as_deref(),
            Some("sglang")
        );
    }

    #[test]
    fn what_was_told_outlasts_what_was_found() {
        let (vllm, tgi) = (Profile::named("vllm"), Profile::named("tgi"));
        let found = Recognised::default();
        assert_eq!(found.get().name, "unknown");
        assert!(found.note(tgi) && !found.note(tgi));
        assert_eq!(found.get().name, "tgi");
        assert!(found.note(None));
        assert_eq!(found.get().name, "unknown", "another engine may stand in its place");
        let told = Recognised::told(vllm);
        assert!(!told.note(tgi));
        assert_eq!(told.get().name, "vllm");
    }

    #[test]
    fn an_option_names_the_engine() {
        let of = |url| of_url(url).map(|(url, told)| (url, told.engine.map(|profile| profile.name)));
        assert_eq!(of("http://a:1").unwrap(), ("http://a:1", None));
        assert_eq!(of("http://a:1/x#engine=tgi").unwrap(), ("http://a:1/x", Some("tgi")));
        let (url, told) =
            of_url("http://a:1#rank=3&engine=vllm&events=tcp://*:5557&replay=tcp://b:5558").unwrap();
        assert_eq!(
            (url, told.rank, told.engine.map(|profile| profile.name)),
            ("http://a:1", Some(3), Some("vllm"))
        );
        let endpoint = Endpoint::parse(url, &Arc::default()).unwrap().of_rank(told.rank);
        assert_eq!(endpoint.url, "http://a:1#rank=3");
        let source = told.source(&endpoint).unwrap().unwrap();
        let tcp = |host: &str, port| source::Endpoint::Tcp { host: host.into(), port };
        assert_eq!((source.endpoint, source.replay), (tcp("a", 5557), Some(tcp("b", 5558))));
        assert_eq!(of_url("http://a:1#pool=new").unwrap().1.pool.as_deref(), Some("new"));
        let (_, odd) = of_url("http://a:1#events=a:5557").unwrap();
        assert!(odd.source(&endpoint).is_err());
        for odd in [
            "http://a:1#",
            "http://a:1#rank=x",
            "http://a:1#rank=1&",
            "http://a:1#engine=",
            "http://a:1#engine=llama",
            "http://a:1#weight=2",
            "http://a:1#pool=",
            "http://a:1#pool=a&pool=b",
        ] {
            assert!(matches!(of(odd), Err(Error::Config { key: "worker", .. })), "{odd}");
        }
    }

    #[test]
    fn statuses_mean_what_the_engine_means() {
        let status = |code| StatusCode::from_u16(code).unwrap();
        let tgi = Profile::named("tgi").unwrap();
        assert!(tgi.is_failed(status(424)) && !ANY.is_failed(status(424)));
        for profile in ENGINES.iter().chain([&ANY]) {
            assert!(profile.is_busy(status(429)) && profile.is_busy(status(503)), "{profile}");
            assert!(profile.is_failed(status(500)) && !profile.is_failed(status(400)), "{profile}");
        }
        let vllm = Profile::named("vllm").unwrap();
        assert!(vllm.may_say_draining(status(500)) && !tgi.may_say_draining(status(500)));
        assert!(vllm.says_draining(br#"{"message":"cannot schedule new futures after shutdown"}"#));
        assert!(!vllm.says_draining(b"EngineCore encountered an issue"));
    }
}
