//! Heads of requests that are refused or put right before anything else looks at them.
//!
//! hyper has refused already what cannot be parsed: a space before a colon, folded lines, sizes and lengths that are no
//! numbers or contradict each other, a transfer encoding that does not end with `chunked`. Left over is what parses but
//! means different things to different readers. Nothing of the framing reaches a worker: its requests are framed anew.

use http::header::{self, HeaderMap, HeaderValue};
use http::request::Parts;
use http::{Method, Version};

use crate::answer::Refusal;

/// Checks a head and puts it right. Cost: two look-ups for HTTP/1, one for HTTP/2.
pub(crate) fn check(parts: &mut Parts, max_headers: usize) -> Result<(), Refusal> {
    if parts.method == Method::CONNECT {
        return Err(Refusal::Method);
    }
    if parts.version == Version::HTTP_2 {
        // hyper counts the header lines of HTTP/1 only.
        if parts.headers.len() > max_headers {
            return Err(Refusal::LargeHead);
        }
        join_cookies(&mut parts.headers);
        return Ok(());
    }
    let mut hosts = parts.headers.get_all(header::HOST).iter();
    let has_host = hosts.next().is_some();
    // RFC 9112, section 3.2: exactly one, which HTTP/1.0 may leave out.
    if hosts.next().is_some() || (!has_host && parts.version != Version::HTTP_10) {
        return Err(Refusal::Host);
    }
    let mut codings = parts.headers.get_all(header::TRANSFER_ENCODING).iter();
    // We take the coding off, so it must be one that we know.
    match (codings.next(), codings.next()) {
        (None, _) => Ok(()),
        (Some(only), None) if only.as_bytes().trim_ascii().eq_ignore_ascii_case(b"chunked") => Ok(()),
        _ => Err(Refusal::TransferCoding),
    }
}

/// HTTP/2 may send each cookie in a line of its own, HTTP/1.1 must not (RFC 9113, section 8.2.3).
fn join_cookies(headers: &mut HeaderMap) {
    let mut cookies = headers.get_all(header::COOKIE).iter();
    let (Some(first), Some(second)) = (cookies.next(), cookies.next()) else { return };
    let mut joined = first.as_bytes().to_vec();
    for cookie in std::iter::once(second).chain(cookies) {
        joined.extend_from_slice(b"; ");
        joined.extend_from_slice(cookie.as_bytes());
    }
    let joined = HeaderValue::from_bytes(&joined).expect("header values joined by \"; \" are a header value");
    headers.insert(header::COOKIE, joined);
}

#[cfg(test)]
mod tests {
    use http::Request;

    use super::*;

    fn head(version: Version, lines: &[(&str, &str)]) -> Parts {
        let mut request = Request::builder().version(version);
        for (name, value) in lines {
            request = request.header(*name, *value);
        }
        request.body(()).unwrap().into_parts().0
    }

    #[test]
    fn one_host_and_no_unknown_coding() {
        let check = |version, lines: &[(&str, &str)]| check(&mut head(version, lines), 100);
        check(Version::HTTP_11, &[("host", "a")]).unwrap();
        check(Version::HTTP_10, &[]).unwrap();
        check(Version::HTTP_11, &[("host", "a"), ("transfer-encoding", " Chunked")]).unwrap();
        for lines in [[].as_slice(), &[("host", "a"), ("host", "a")], &[("host", "a"), ("host", "b")]] {
            assert!(matches!(check(Version::HTTP_11, lines), Err(Refusal::Host)), "{lines:?}");
        }
        for coding in ["gzip, chunked", "identity", "chunked, chunked", "xchunked", ""] {
            let lines = [("host", "a"), ("transfer-encoding", coding)];
            assert!(matches!(check(Version::HTTP_11, &lines), Err(Refusal::TransferCoding)), "{coding}");
        }
        let twice = [("host", "a"), ("transfer-encoding", "chunked"), ("transfer-encoding", "chunked")];
        assert!(matches!(check(Version::HTTP_11, &twice), Err(Refusal::TransferCoding)));
    }

    #[test]
    fn http2_heads_are_counted_and_their_cookies_joined() {
        let mut parts = head(Version::HTTP_2, &[("cookie", "a=1"), ("x", "y"), ("cookie", "b=2")]);
        check(&mut parts, 3).unwrap();
        assert_eq!(parts.headers.get_all("cookie").iter().collect::<Vec<_>>(), ["a=1; b=2"]);
        assert!(matches!(check(&mut parts, 1), Err(Refusal::LargeHead)));
    }
}
