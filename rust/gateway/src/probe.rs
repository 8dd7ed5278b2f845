//! What we ask workers on our own account: are they well, what do they serve, how much cache have they.
//!
//! Each question is a GET on a connection of its own, so that it also finds out whether the worker still accepts any.

use std::{fmt, io};

use bytes::Bytes;
use http::{HeaderValue, Method, Request, StatusCode, header};
use http_body_util::{BodyExt, Full, Limited};
use serde::Deserialize;
use serde_json::value::RawValue;

use crate::endpoint::Endpoint;
use crate::fleet::Model;
use crate::health::is_local;
use crate::link::{self, Sender};
use crate::profile::Capacity;

/// Largest answer that is read: a page of metrics has some 100 KB.
const MAX_ANSWER_BYTES: usize = 8 << 20;

/// Why a probe failed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Failure {
    /// Nobody listens there.
    Refused,
    /// The connection ended before an answer.
    Broken,
    /// It says that it is not well.
    Unhealthy,
    /// No answer in time.
    Timeout,
    /// This machine has no descriptor or port left to ask with.
    Local,
}

impl fmt::Display for Failure {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.write_str(match self {
            Self::Refused => "it refuses connections",
            Self::Broken => "it broke the connection",
            Self::Unhealthy => "it says that it is not well",
            Self::Timeout => "no answer in time",
            Self::Local => "this machine has no descriptor or port left",
        })
    }
}

impl From<io::Error> for Failure {
    fn from(error: io::Error) -> Self {
        match error.kind() {
            io::ErrorKind::ConnectionRefused => Self::Refused,
            _ if is_local(&error) => Self::Local,
            _ => Self::Broken,
        }
    }
}

/// Asks `/health`; an engine without it is asked for its models, and one without those is well if it speaks HTTP.
pub(crate) async fn is_healthy(endpoint: &Endpoint) -> Result<(), Failure> {
    let (mut status, _) = get(endpoint, "/health").await?;
    if is_missing(status) {
        (status, _) = get(endpoint, "/v1/models").await?;
    }
    if status.is_server_error() && !is_missing(status) { Err(Failure::Unhealthy) } else { Ok(()) }
}

fn is_missing(status: StatusCode) -> bool {
    matches!(status, StatusCode::NOT_FOUND | StatusCode::METHOD_NOT_ALLOWED | StatusCode::NOT_IMPLEMENTED)
}

/// The worker's `/v1/models`, entry by entry.
pub(crate) async fn models(endpoint: &Endpoint) -> Result<Vec<Model>, Failure> {
    let (status, body) = get(endpoint, "/v1/models").await?;
    if status != StatusCode::OK {
        return Err(Failure::Unhealthy);
    }
    read_models(&body).map_err(|_| Failure::Unhealthy)
}

fn read_models(body: &[u8]) -> serde_json::Result<Vec<Model>> {
    #[derive(Deserialize)]
    struct List {
        data: Vec<Box<RawValue>>,
    }
    #[derive(Deserialize)]
    struct Named {
        id: String,
        parent: Option<String>,
    }
    let list: List = serde_json::from_slice(body)?;
    let named = |entry: Box<RawValue>| {
        let Named { id, parent } = serde_json::from_str(entry.get())?;
        Ok(Model { id, parent, entry })
    };
    list.data.into_iter().map(named).collect()
}

/// Where the worker's KV events come from, as its engine tells it; `None` if it does not.
pub(crate) async fn event_sources(endpoint: &Endpoint) -> Result<Option<Bytes>, Failure> {
    let (status, body) = get(endpoint, "/kv_event_sources").await?;
    Ok((status == StatusCode::OK).then_some(body))
}

/// The answer to a POST of this body, if it is a good one.
pub(crate) async fn ask(endpoint: &Endpoint, path: &str, body: Bytes) -> Result<Bytes, Failure> {
    let mut request = Request::new(Full::new(body));
    *request.method_mut() = Method::POST;
    request.headers_mut().insert(header::CONTENT_TYPE, HeaderValue::from_static("application/json"));
    match exchange(endpoint, path, request).await? {
        (StatusCode::OK, answer) => Ok(answer),
        _ => Err(Failure::Unhealthy),
    }
}

/// The worker's page of metrics; empty if it has none.
pub(crate) async fn metrics(endpoint: &Endpoint) -> Result<String, Failure> {
    let (status, body) = get(endpoint, "/metrics").await?;
    Ok(if status == StatusCode::OK { String::from_utf8_lossy(&body).into_owned() } else { String::new() })
}

/// The size of the worker's KV cache in tokens, from where its engine tells it; `None` if it does not.
pub(crate) async fn capacity_tokens(
    endpoint: &Endpoint,
    source: Capacity,
    metrics: &str,
) -> Result<Option<u64>, Failure> {
    let tokens = match source {
        Capacity::Labels(metric) => read_labels(metrics, metric),
        Capacity::Gauge(metric) => read_gauge(metrics, metric),
        Capacity::Info(field) => {
            let (status, body) = get(endpoint, "/info").await?;
            let info: Option<serde_json::Value> = serde_json::from_slice(&body).ok();
            info.filter(|_| status == StatusCode::OK).and_then(|info| info.get(field)?.as_u64())
        }
        Capacity::Untold => None,
    };
    Ok(tokens.filter(|&tokens| tokens > 0))
}

/// Whether the engine says that it keeps no prefixes.
pub(crate) fn keeps_no_prefixes(metrics: &str) -> bool {
    let told = |(labels, _)| label(labels, "enable_prefix_caching") == Some("False");
    samples(metrics, "vllm:cache_config_info").any(told)
}

/// Sums over the engines (data-parallel ranks) of one worker.
fn read_labels(metrics: &str, metric: &str) -> Option<u64> {
    samples(metrics, metric).filter_map(|(labels, _)| engine_capacity(labels)).reduce(u64::saturating_add)
}

fn engine_capacity(labels: &str) -> Option<u64> {
    let number = |name| label(labels, name)?.parse::<u64>().ok();
    number("kv_cache_size_tokens").or_else(|| number("num_gpu_blocks")?.checked_mul(number("block_size")?))
}

/// Sums over data-parallel ranks; what tensor-parallel ranks of one of them report is the same cache.
fn read_gauge(metrics: &str, metric: &str) -> Option<u64> {
    let mut ranks: Vec<(&str, u64)> = Vec::new();
    for (labels, value) in samples(metrics, metric) {
        let Ok(tokens) = value.parse::<f64>() else { continue };
        let rank = label(labels, "dp_rank").unwrap_or_default();
        match ranks.iter_mut().find(|(other, _)| *other == rank) {
            Some((_, most)) => *most = (*most).max(tokens as u64),
            None => ranks.push((rank, tokens as u64)),
        }
    }
    ranks.into_iter().map(|(_, tokens)| tokens).reduce(u64::saturating_add)
}

/// Sum of a metric over all that it is told of; `None` if it is not told.
pub(crate) fn read_sum(metrics: &str, metric: &str) -> Option<f64> {
    samples(metrics, metric).filter_map(|(_, value)| value.parse().ok()).reduce(|a: f64, b| a + b)
}

/// Labels and value of each sample of a metric.
fn samples<'m>(metrics: &'m str, metric: &str) -> impl Iterator<Item = (&'m str, &'m str)> {
    metrics.lines().filter_map(move |line| {
        let rest = line.strip_prefix(metric)?;
        match rest.strip_prefix('{') {
            Some(labelled) => labelled.rsplit_once("} "),
            None => rest.strip_prefix(' ').map(|value| ("", value)),
        }
    })
}

fn label<'l>(labels: &'l str, name: &str) -> Option<&'l str> {
    let (_, rest) = labels.split_once(&format!("{name}=\""))?;
    rest.split('"').next()
}

/// The connection of one question. Dropping it ends it, so that a question that is given up leaves nothing behind.
struct Asking(Sender);

impl Drop for Asking {
    fn drop(&mut self) {
        self.0.cut();
    }
}

async fn get(endpoint: &Endpoint, path: &str) -> Result<(StatusCode, Bytes), Failure> {
    exchange(endpoint, path, Request::new(Full::new(Bytes::new()))).await
}

async fn exchange(
    endpoint: &Endpoint,
    path: &str,
    mut request: Request<Full<Bytes>>,
) -> Result<(StatusCode, Bytes), Failure> {
    let mut asking = Asking(link::dial(endpoint).await?);
    let target = path.parse().map_err(|_| Failure::Broken)?;
    *request.uri_mut() = endpoint.target(&target, path);
    let headers = request.headers_mut();
    headers.insert(header::HOST, endpoint.host_header.clone());
    if matches!(asking.0, Sender::Http1(..)) {
        headers.insert(header::CONNECTION, HeaderValue::from_static("close"));
    }
    if let Some(token) = endpoint.outbound.token() {
        headers.insert(header::AUTHORIZATION, HeaderValue::clone(&token));
    }
    let answer = asking.0.send(endpoint, request).await.map_err(|_| Failure::Broken)?;
    let status = answer.status();
    let body = Limited::new(answer.into_body(), MAX_ANSWER_BYTES).collect().await;
    Ok((status, body.map_err(|_| Failure::Broken)?.to_bytes()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reads_vllms_cache_size() {
        let read = |metrics: &str| read_labels(metrics, "vllm:cache_config_info");
        let line = r#"vllm:cache_config_info{block_size="32",cache_dtype="auto",engine="0",num_gpu_blocks="200"} 1.0"#;
        assert_eq!(read(&format!("# HELP x\n{line}\n")), Some(6400));
        let told =
            r#"vllm:cache_config_info{block_size="32",kv_cache_size_tokens="7000",num_gpu_blocks="200"} 1.0"#;
        assert_eq!(read(told), Some(7000));
        assert_eq!(read(&format!("{line}\n{told}")), Some(13_400), "two engines");
        for odd in ["", "vllm:cache_config_info{block_size=\"None\"} 1", "vllm:cache_config_info_x 1"] {
            assert_eq!(read(odd), None, "{odd}");
        }
    }

    #[test]
    fn reads_sglangs_cache_size() {
        let read = |metrics: &str| read_gauge(metrics, "sglang:max_total_num_tokens");
        let rank = |dp: u32, tp: u32, tokens: f64| {
            format!("sglang:max_total_num_tokens{{dp_rank=\"{dp}\",tp_rank=\"{tp}\"}} {tokens:?}\n")
        };
        assert_eq!(read("sglang:max_total_num_tokens 471258.0"), Some(471_258));
        assert_eq!(read(&(rank(0, 0, 1e5) + &rank(0, 1, 1e5) + &rank(1, 0, 2e5))), Some(300_000));
        assert_eq!(read("sglang:max_total_num_tokens_x 5\nsglang:max_total_num_tokens many"), None);
    }

    #[test]
    fn an_engine_without_prefix_caching_says_so() {
        let line = |value| {
            format!("vllm:cache_config_info{{block_size=\"16\",enable_prefix_caching=\"{value}\"}} 1.0")
        };
        assert!(keeps_no_prefixes(&line("False")));
        assert!(!keeps_no_prefixes(&line("True")) && !keeps_no_prefixes(""));
    }

    #[test]
    fn sums_a_metric_over_its_samples() {
        let page = "x{engine=\"0\"} 3.0\nx{engine=\"1\"} 4\nx_by_reason 9\ny 1";
        assert_eq!(
            (read_sum(page, "x"), read_sum(page, "y"), read_sum(page, "z")),
            (Some(7.0), Some(1.0), None)
        );
    }

    #[test]
    fn reads_model_lists() {
        let models = read_models(br#"{"object":"list","data":[{"id":"a","x": 1.0},{"id":"b"}]}"#).unwrap();
        assert_eq!(
            models.iter().map(|model| (model.id.as_str(), model.entry.get())).collect::<Vec<_>>(),
            [("a", r#"{"id":"a","x": 1.0}"#), ("b", r#"{"id":"b"}"#)]
        );
        for odd in ["", "[]", r#"{"data":[{}]}"#, r#"{"data":7}"#] {
            assert!(read_models(odd.as_bytes()).is_err(), "{odd}");
        }
    }
}
