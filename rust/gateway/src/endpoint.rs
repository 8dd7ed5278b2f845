//! A worker's URL, taken apart once, and the way to its socket.
//!
//! | URL | where it leads |
//! | --- | --- |
//! | `http://host[:port][/prefix]` | TCP, port 80 unless given |
//! | `https://host[:port][/prefix]` | TLS over TCP, port 443 unless given |
//! | `unix:/path[:/prefix]` | a Unix socket |
//!
//! Spellings that mean the same worker have one name: case of scheme and host, the scheme's own port, the way an
//! IPv6 address is written, and a slash at the end make no difference.

use std::io;
use std::net::{IpAddr, SocketAddr};
use std::path::PathBuf;
use std::sync::Arc;

use http::Uri;
use http::header::HeaderValue;
use http::uri::{Authority, PathAndQuery, Scheme};
use rustls::pki_types::ServerName;
use tokio::net::{TcpStream, UnixStream};

use crate::config::WorkerProtocol;
use crate::error::Error;
use crate::outbound::Outbound;
use crate::wire::Socket;

/// Longest target of a request that is forwarded, and longest prefix of a worker: together they fit into a target.
pub(crate) const MAX_TARGET_BYTES: usize = 32 << 10;
const MAX_PREFIX_BYTES: usize = 2 << 10;

/// Where a worker listens and what stands before its paths.
#[derive(Debug, Clone)]
pub(crate) struct Endpoint {
    /// The URL in its normal spelling: the worker's name in the router, in metrics and in answers.
    pub(crate) url: String,
    /// The `Host` header it gets.
    pub(crate) host_header: HeaderValue,
    /// `url` as a header value.
    pub(crate) url_header: HeaderValue,
    /// How it is reached, for all workers of a gateway.
    pub(crate) outbound: Arc<Outbound>,
    /// The name that its certificate must have; `None` without TLS.
    pub(crate) tls_name: Option<ServerName<'static>>,
    authority: Authority,
    place: Place,
    /// `/prefix`, or nothing.
    prefix: String,
}

/// Where its socket is.
#[derive(Debug, Clone, PartialEq, Eq)]
enum Place {
    Address(SocketAddr),
    /// Resolved anew for each connection, so that a moved worker is found.
    Name(String, u16),
    Unix(PathBuf),
}

impl Endpoint {
    /// Reads a worker's URL.
    pub(crate) fn parse(url: &str, outbound: &Arc<Outbound>) -> Result<Self, Error> {
        let parsed = match url.get(..5).filter(|scheme| scheme.eq_ignore_ascii_case("unix:")) {
            Some(_) => Self::parse_unix(&url[5..], outbound),
            None => Self::parse_network(url, outbound),
        };
        parsed.ok_or_else(|| Error::Config {
            key: "worker",
            value: url.to_owned(),
            allowed: "http://host[:port][/prefix], the same with https, or unix:/path[:/prefix]",
        })
    }

    /// The same for one data-parallel rank of the engine there, a worker of its own: `URL#rank=N`.
    pub(crate) fn of_rank(mut self, rank: Option<u32>) -> Self {
        if let Some(rank) = rank {
            self.url = format!("{}#rank={rank}", self.url);
            self.url_header = HeaderValue::try_from(&self.url).expect("a URL and a number are visible ASCII");
        }
        self
    }

    /// The host that it is on, for what else it tells to listen there: an address, a name, or this machine.
    pub(crate) fn host(&self) -> &str {
        match &self.place {
            Place::Address(_) | Place::Name(..) => self.authority.host(),
            Place::Unix(_) => "localhost",
        }
    }

    fn parse_network(url: &str, outbound: &Arc<Outbound>) -> Option<Self> {
        let uri: Uri = url.parse().ok()?;
        let authority = uri.authority()?;
        let (scheme, default_port) = match uri.scheme_str()? {
            "http" => ("http", 80),
            "https" => ("https", 443),
            _ => return None,
        };
        // What follows the host is a port or a mistake.
        let has_port = authority.as_str() != authority.host();
        if uri.query().is_some()
            || authority.as_str().contains('@')
            || has_port != authority.port_u16().is_some()
            || authority.host().is_empty()
        {
            return None;
        }
        let port = authority.port_u16().unwrap_or(default_port);
        let host = authority.host().trim_start_matches('[').trim_end_matches(']').to_ascii_lowercase();
        let ip = host.parse::<IpAddr>().ok();
        let name = match ip {
            Some(IpAddr::V6(ip)) => format!("[{ip}]"),
            _ => host.clone(),
        };
        let authority =
            if port == default_port { name.parse() } else { format!("{name}:{port}").parse() }.ok()?;
        let tls_name = (scheme == "https").then(|| ServerName::try_from(host.clone()).ok());
        let place = ip.map_or_else(|| Place::Name(host, port), |ip| Place::Address((ip, port).into()));
        let start = format!("{scheme}://{authority}");
        Self::new(&start, authority, place, uri.path(), tls_name, outbound)
    }

    fn parse_unix(rest: &str, outbound: &Arc<Outbound>) -> Option<Self> {
        let (path, prefix) = match rest.split_once(":/") {
            Some((path, prefix)) => (path, format!("/{prefix}")),
            None => (rest, String::new()),
        };
        let path = format!("/{}", path.strip_prefix('/')?.trim_start_matches('/'));
        let is_usable = std::os::unix::net::SocketAddr::from_pathname(&path).is_ok() && path.len() > 1;
        if !is_usable || (!prefix.is_empty() && prefix.parse::<PathAndQuery>().ok()?.query().is_some()) {
            return None;
        }
        let start = if prefix.trim_matches('/').is_empty() {
            format!("unix:{path}")
        } else {
            format!("unix:{path}:")
        };
        Self::new(
            &start,
            Authority::from_static("localhost"),
            Place::Unix(path.into()),
            &prefix,
            None,
            outbound,
        )
    }

    fn new(
        start: &str,
        authority: Authority,
        place: Place,
        prefix: &str,
        tls_name: Option<Option<ServerName<'static>>>,
        outbound: &Arc<Outbound>,
    ) -> Option<Self> {
        let prefix = prefix.trim_end_matches('/').to_owned();
        if prefix.len() > MAX_PREFIX_BYTES {
            return None;
        }
        let url = format!("{start}{prefix}");
        Some(Self {
            host_header: HeaderValue::from_str(authority.as_str()).ok()?,
            url_header: HeaderValue::from_str(&url).ok()?,
            outbound: Arc::clone(outbound),
            // A host that no certificate can name is refused.
            tls_name: match tls_name {
                Some(name) => Some(name?),
                None => None,
            },
            url,
            authority,
            place,
            prefix,
        })
    }

    /// Connects a socket; TLS is [`crate::link`]'s.
    pub(crate) async fn connect(&self) -> io::Result<Socket> {
        let socket = match &self.place {
            Place::Address(address) => Socket::Tcp(TcpStream::connect(address).await?),
            Place::Name(host, port) => Socket::Tcp(TcpStream::connect((host.as_str(), *port)).await?),
            Place::Unix(path) => Socket::Unix(UnixStream::connect(path).await?),
        };
        socket.set_nodelay()?;
        socket.set_keepalive()?;
        Ok(socket)
    }

    /// Whether its connections may turn out to carry many requests at once.
    pub(crate) fn may_share(&self) -> bool {
        self.outbound.protocol == WorkerProtocol::H2
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

    /// `target` with this worker's scheme and authority, as HTTP/2 wants it.
    pub(crate) fn absolute(&self, target: Uri) -> Uri {
        let mut parts = target.into_parts();
        parts.scheme = Some(if self.tls_name.is_some() { Scheme::HTTPS } else { Scheme::HTTP });
        parts.authority = Some(self.authority.clone());
        Uri::from_parts(parts).expect("a scheme, an authority and a path make a URI")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(url: &str) -> Result<Endpoint, Error> {
        Endpoint::parse(url, &Arc::default())
    }

    #[test]
    fn names_are_normal_and_targets_are_joined() {
        let plain = parse("http://127.0.0.1:8000/").unwrap();
        assert_eq!(plain.url, "http://127.0.0.1:8000");
        assert_eq!(plain.place, Place::Address(([127, 0, 0, 1], 8000).into()));
        let target: PathAndQuery = "/v1/a%20b?x=1&y".parse().unwrap();
        let joined = |endpoint: &Endpoint, path| endpoint.target(&target, path).to_string();
        assert_eq!(joined(&plain, target.path()), "/v1/a%20b?x=1&y");
        assert_eq!(joined(&plain, "/z"), "/z?x=1&y");
        assert_eq!(plain.absolute("/z?x".parse().unwrap()).to_string(), "http://127.0.0.1:8000/z?x");

        let under = parse("http://gpu-7/models/a/").unwrap();
        assert_eq!(
            (under.url.as_str(), &under.place),
            ("http://gpu-7/models/a", &Place::Name("gpu-7".into(), 80))
        );
        assert_eq!(joined(&under, target.path()), "/models/a/v1/a%20b?x=1&y");
        let longest = format!("http://gpu-7/{}", "p".repeat(MAX_PREFIX_BYTES - 1));
        let long: PathAndQuery = format!("/{}", "a".repeat(MAX_TARGET_BYTES - 1)).parse().unwrap();
        parse(&longest).unwrap().target(&long, long.path());
        assert!(parse(&format!("{longest}p")).is_err());
        assert_eq!(under.host_header, "gpu-7");

        let six = parse("http://[::1]:9").unwrap();
        assert_eq!((six.url.as_str(), six.host_header.to_str().unwrap()), ("http://[::1]:9", "[::1]:9"));
        assert_eq!(six.place, Place::Address("[::1]:9".parse().unwrap()));
    }

    #[test]
    fn equal_spellings_have_one_name() {
        for (spellings, name) in [
            (["HTTP://GPU-7:80/", "http://gpu-7//", "http://gpu-7"].as_slice(), "http://gpu-7"),
            (&["https://GPU-7:443", "https://gpu-7/"], "https://gpu-7"),
            (&["https://gpu-7:80"], "https://gpu-7:80"),
            (&["http://[0:0:0:0:0:0:0:1]:8000/", "http://[::1]:8000"], "http://[::1]:8000"),
            (&["http://gpu-7/Models/"], "http://gpu-7/Models"),
            (&["unix:/run/a.sock", "unix:///run/a.sock", "UNIX:/run/a.sock:/"], "unix:/run/a.sock"),
            (&["unix:/run/a.sock:/models/a/"], "unix:/run/a.sock:/models/a"),
        ] {
            for spelling in spellings {
                assert_eq!(parse(spelling).unwrap().url, name, "{spelling}");
                assert_eq!(parse(name).unwrap().url, name, "a name names itself");
            }
        }
    }

    #[test]
    fn sockets_have_a_path_and_perhaps_a_prefix() {
        let endpoint = parse("unix:/run/a.sock:/models/a").unwrap();
        assert_eq!(endpoint.place, Place::Unix("/run/a.sock".into()));
        assert_eq!(endpoint.host_header, "localhost");
        let target: PathAndQuery = "/v1?x".parse().unwrap();
        assert_eq!(endpoint.target(&target, "/v1").to_string(), "/models/a/v1?x");
    }

    #[test]
    fn refuses_what_is_no_endpoint() {
        for url in [
            "",
            "127.0.0.1:8000",
            "ftp://a",
            "http://",
            "https://",
            "https://a_b c",
            "http://a:b",
            "http://a:99999",
            "http://a:",
            "http://u@a",
            "http://a?x=1",
            "/v1",
            "http://a b",
            "unix:",
            "unix:/",
            "unix:relative.sock",
            "unix:/run/a.sock:/x?y",
            "unix:/run/\u{e4}\n.sock",
        ] {
            assert!(matches!(parse(url), Err(Error::Config { key: "worker", .. })), "{url}");
        }
        assert!(parse(&format!("unix:/{}", "p".repeat(200))).is_err());
    }
}
