//! A worker's URL, taken apart once.

use std::net::{IpAddr, SocketAddr};
use std::time::Duration;

use http::Uri;
use http::header::HeaderValue;
use http::uri::PathAndQuery;

use socket2::{SockRef, TcpKeepalive};

use crate::error::Error;

/// Longest target of a request that is forwarded, and longest prefix of a worker: together they fit into a target.
pub(crate) const MAX_TARGET_BYTES: usize = 32 << 10;
const MAX_PREFIX_BYTES: usize = 2 << 10;
/// Silence on a connection after which the kernel asks whether anybody is there.
const KEEPALIVE: Duration = Duration::from_secs(15);

/// Where a worker listens and what stands before its paths.
#[derive(Debug, Clone)]
pub(crate) struct Endpoint {
    /// `http://host:port/prefix` without a slash at its end: the worker's name in the router, in metrics and in
    /// answers.
    pub(crate) url: String,
    /// The `Host` header it gets.
    pub(crate) host_header: HeaderValue,
    /// `url` as a header value.
    pub(crate) url_header: HeaderValue,
    host: String,
    port: u16,
    /// Its address when the host is no name.
    address: Option<SocketAddr>,
    /// `/prefix`, or nothing.
    prefix: String,
}

impl Endpoint {
    /// Reads `http://host[:port][/prefix]`.
    pub(crate) fn parse(url: &str) -> Result<Self, Error> {
        let refuse =
            || Error::Config { key: "worker", value: url.to_owned(), allowed: "http://host[:port][/prefix]" };
        let uri: Uri = url.parse().map_err(|_| refuse())?;
        let authority = uri.authority().ok_or_else(refuse)?;
        let plain =
            uri.scheme_str() == Some("http") && uri.query().is_none() && !authority.as_str().contains('@');
        // What follows the host is a port or a mistake.
        let has_port = authority.as_str() != authority.host();
        if !plain || has_port != authority.port_u16().is_some() || authority.host().is_empty() {
            return Err(refuse());
        }
        let port = authority.port_u16().unwrap_or(80);
        let host = authority.host().trim_start_matches('[').trim_end_matches(']').to_owned();
        let prefix = uri.path().trim_end_matches('/').to_owned();
        if prefix.len() > MAX_PREFIX_BYTES {
            return Err(refuse());
        }
        let url = format!("http://{authority}{prefix}");
        Ok(Self {
            host_header: HeaderValue::from_str(authority.as_str()).map_err(|_| refuse())?,
            url_header: HeaderValue::from_str(&url).map_err(|_| refuse())?,
            address: host.parse::<IpAddr>().ok().map(|ip| SocketAddr::new(ip, port)),
            url,
            host,
            port,
            prefix,
        })
    }

    /// Connects. A name is resolved anew each time, so that a moved worker is found.
    pub(crate) async fn connect(&self) -> std::io::Result<tokio::net::TcpStream> {
        let stream = match self.address {
            Some(address) => tokio::net::TcpStream::connect(address).await?,
            None => tokio::net::TcpStream::connect((self.host.as_str(), self.port)).await?,
        };
        stream.set_nodelay(true)?;
        // A worker whose machine is gone answers no packet: its streams end instead of waiting for ever.
        let keepalive = TcpKeepalive::new().with_time(KEEPALIVE).with_interval(KEEPALIVE / 3).with_retries(3);
        SockRef::from(&stream).set_tcp_keepalive(&keepalive)?;
        Ok(stream)
    }

    /// The target of a request for `path` (what the worker serves) in place of `target` (what the client wrote).
    pub(crate) fn target(&self, target: &PathAndQuery, path: &str) -> Uri {
        if self.prefix.is_empty() && path == target.path() {
            return Uri::from(target.clone());
        }
        let text = match target.query() {
            Some(query) => format!("{}{path}?{query}", self.prefix),
            None => format!("{}{path}", self.prefix),
        };
        Uri::try_from(text).expect("parts of valid targets within their limits join to a valid target")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_normal_and_targets_are_joined() {
        let plain = Endpoint::parse("http://127.0.0.1:8000/").unwrap();
        assert_eq!(plain.url, "http://127.0.0.1:8000");
        assert_eq!(plain.address, Some(([127, 0, 0, 1], 8000).into()));
        let target: PathAndQuery = "/v1/a%20b?x=1&y".parse().unwrap();
        let joined = |endpoint: &Endpoint, path| endpoint.target(&target, path).to_string();
        assert_eq!(joined(&plain, target.path()), "/v1/a%20b?x=1&y");
        assert_eq!(joined(&plain, "/z"), "/z?x=1&y");

        let under = Endpoint::parse("http://gpu-7/models/a/").unwrap();
        assert_eq!((under.url.as_str(), under.port, under.address), ("http://gpu-7/models/a", 80, None));
        assert_eq!(joined(&under, target.path()), "/models/a/v1/a%20b?x=1&y");
        let longest = format!("http://gpu-7/{}", "p".repeat(MAX_PREFIX_BYTES - 1));
        let long: PathAndQuery = format!("/{}", "a".repeat(MAX_TARGET_BYTES - 1)).parse().unwrap();
        Endpoint::parse(&longest).unwrap().target(&long, long.path());
        assert!(Endpoint::parse(&format!("{longest}p")).is_err());
        assert_eq!(under.host_header, "gpu-7");

        let six = Endpoint::parse("http://[::1]:9").unwrap();
        assert_eq!((six.url.as_str(), six.host_header.to_str().unwrap()), ("http://[::1]:9", "[::1]:9"));
        assert_eq!(six.address, Some("[::1]:9".parse().unwrap()));
    }

    #[test]
    fn refuses_what_is_no_endpoint() {
        for url in [
            "",
            "127.0.0.1:8000",
            "https://a",
            "ftp://a",
            "http://",
            "http://a:b",
            "http://a:99999",
            "http://a:",
            "http://u@a",
            "http://a?x=1",
            "/v1",
            "http://a b",
        ] {
            assert!(matches!(Endpoint::parse(url), Err(Error::Config { key: "worker", .. })), "{url}");
        }
    }
}
