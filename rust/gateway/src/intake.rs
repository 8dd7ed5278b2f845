//! Heads of requests that are put right before anything else looks at them.

use http::Version;
use http::header::{self, HeaderMap, HeaderValue};
use http::request::Parts;

/// Puts a head right. Cost: nothing for HTTP/1, a look-up for HTTP/2.
pub(crate) fn normalise(parts: &mut Parts) {
    if parts.version == Version::HTTP_2 {
        join_cookies(&mut parts.headers);
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
