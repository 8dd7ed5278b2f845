//! Headers on their way through: what stops here, what is replaced, what is added.
//!
//! End-to-end headers pass as they are, in their order, repeats and odd bytes included. What belongs to one
//! connection only stops here (RFC 9110, section 7.6.1): the names below, and those that `Connection` lists.

use http::header::{self, HeaderMap, HeaderName, HeaderValue};
use smallvec::SmallVec;
use trunkline_core::Decision;

use crate::trial::Arm;

/// Names the worker that answered.
pub(crate) const WORKER: HeaderName = HeaderName::from_static("x-trunkline-worker");
/// Says why that worker was chosen: `reason;matched_tokens/prompt_tokens`.
pub(crate) const DECISION: HeaderName = HeaderName::from_static("x-trunkline-decision");

fn is_hop_by_hop(name: &HeaderName) -> bool {
    match *name {
        header::CONNECTION
        | header::TE
        | header::TRAILER
        | header::TRANSFER_ENCODING
        | header::UPGRADE
        | header::PROXY_AUTHENTICATE
        | header::PROXY_AUTHORIZATION => true,
        _ => matches!(name.as_str(), "keep-alive" | "proxy-connection"),
    }
}

/// Removes from a request what belongs to the client's connection. What stays keeps its order.
///
/// `Expect` stops here as well: we have read the whole body, so nobody needs to be asked whether it is welcome. So does
/// a header that holds a key of ours.
pub(crate) fn strip_request(headers: &mut HeaderMap, is_ours: impl Fn(&HeaderName) -> bool) {
    strip(headers, |name| is_hop_by_hop(name) || *name == header::EXPECT || is_ours(name));
}

/// Removes from an answer what belongs to the worker's connection. What stays keeps its order.
///
/// A length beside a transfer encoding goes as well: the encoding counts (RFC 9112, section 6.3).
pub(crate) fn strip_answer(headers: &mut HeaderMap) {
    let encoded = headers.contains_key(header::TRANSFER_ENCODING);
    strip(headers, |name| is_hop_by_hop(name) || (encoded && *name == header::CONTENT_LENGTH));
}

fn strip(headers: &mut HeaderMap, stops_here: impl Fn(&HeaderName) -> bool) {
    if !headers.keys().any(&stops_here) {
        return;
    }
    let listed: SmallVec<[HeaderName; 2]> = headers
        .get_all(header::CONNECTION)
        .iter()
        .flat_map(|value| value.as_bytes().split(|&byte| byte == b','))
        .filter_map(|name| HeaderName::from_bytes(name.trim_ascii()).ok())
        .collect();
    // Removing from a HeaderMap moves its last entry, so what stays is put into a new one.
    let mut kept = HeaderMap::with_capacity(headers.len());
    let mut name = None;
    for (next, value) in headers.drain() {
        // A repeat comes without its name.
        if let Some(next) = next {
            name = (!stops_here(&next) && !listed.contains(&next)).then_some(next);
        }
        if let Some(name) = &name {
            kept.append(name.clone(), value);
        }
    }
    *headers = kept;
}

/// The value of [`DECISION`]: `reason;matched/total`, `;told=N` where events count, with what these alone said, and `;arm=b` in a
/// trial.
pub(crate) fn decision_value(reason: &'static str, decision: &Decision, arm: Option<Arm>) -> HeaderValue {
    let mut digits = itoa::Buffer::new();
    let mut text = SmallVec::<[u8; 64]>::new();
    text.extend_from_slice(reason.as_bytes());
    text.push(b';');
    text.extend_from_slice(digits.format(decision.matched_tokens).as_bytes());
    text.push(b'/');
    text.extend_from_slice(digits.format(decision.prompt_tokens).as_bytes());
    if let Some(told) = decision.told_tokens {
        text.extend_from_slice(b";told=");
        text.extend_from_slice(digits.format(told).as_bytes());
    }
    if let Some(arm) = arm {
        text.extend_from_slice(b";arm=");
        text.extend_from_slice(arm.as_str().as_bytes());
    }
    HeaderValue::from_bytes(&text).expect("a reason and numbers are visible ASCII")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn map(lines: &[(&'static str, &[u8])]) -> HeaderMap {
        let mut headers = HeaderMap::new();
        for (name, value) in lines {
            headers.append(HeaderName::from_static(name), HeaderValue::from_bytes(value).unwrap());
        }
        headers
    }

    fn lines(headers: &HeaderMap) -> Vec<(&str, &[u8])> {
        headers.iter().map(|(name, value)| (name.as_str(), value.as_bytes())).collect()
    }

    #[test]
    fn end_to_end_headers_keep_order_repeats_and_bytes() {
        let mut headers = map(&[
            ("host", b"a"),
            ("connection", b"keep-alive, X-Secret"),
            ("x-repeated", b"one"),
            ("x-latin", b"caf\xe9"),
            ("keep-alive", b"timeout=5"),
            ("x-repeated", b"two"),
            ("te", b"trailers"),
            ("x-secret", b"1"),
            ("x-secret", b"2"),
            ("x-empty", b""),
            ("transfer-encoding", b"chunked"),
            ("cookie", b"a=b; c=d"),
        ]);
        strip_answer(&mut headers);
        let wanted: [(&str, &[u8]); 6] = [
            ("host", b"a"),
            ("x-repeated", b"one"),
            ("x-repeated", b"two"),
            ("x-latin", b"caf\xe9"),
            ("x-empty", b""),
            ("cookie", b"a=b; c=d"),
        ];
        assert_eq!(lines(&headers), wanted);
    }

    #[test]
    fn several_connection_headers_and_odd_names_in_them() {
        let mut headers = map(&[
            ("connection", b"x-a,,  x-b ,b\xe4d name"),
            ("x-a", b"1"),
            ("x-b", b"1"),
            ("connection", b"x-c"),
            ("x-c", b"1"),
            ("x-d", b"1"),
        ]);
        strip_answer(&mut headers);
        assert_eq!(lines(&headers), [("x-d", b"1".as_slice())]);
    }

    #[test]
    fn expect_stops_with_the_request_only() {
        let mut headers = map(&[("expect", b"100-continue"), ("a", b"1")]);
        strip_answer(&mut headers);
        assert_eq!(headers.len(), 2);
        strip_request(&mut headers, |_| false);
        assert_eq!(lines(&headers), [("a", b"1".as_slice())]);
        strip_request(&mut headers, |name| name == "a");
        assert!(headers.is_empty());
    }

    #[test]
    fn nothing_to_strip_changes_nothing() {
        let before = map(&[("b", b"1"), ("a", b"2"), ("b", b"3")]);
        let mut headers = before.clone();
        strip_answer(&mut headers);
        assert_eq!(lines(&headers), lines(&before));
    }
}
