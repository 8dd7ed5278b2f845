//! API keys of clients: who may call, in whose name prefixes are kept apart, and how much.
//!
//! The file has a key per line; `#` begins a comment:
//!
//! ```text
//! name=acme sha256=ba78... tenant=acme requests_per_minute=600 tokens_per_minute=1000000
//! ```
//!
//! `sha256` is the hash of the token. `tenant` (the name unless given) goes into the key of every prefix, so that no tenant
//! learns from routing, or from its timing, what another one has asked; keys of one tenant share. The limits are optional.
//! Requests are counted when they come; tokens when their answer is over, as it reports them (its prompt as estimated if it
//! reports none), so a tenant may go over once and waits longer after that.

use std::collections::HashMap;
use std::num::NonZeroU32;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use http::header::{self, HeaderMap, HeaderName, HeaderValue};
use trunkline_core::{Millis, Usage};

use crate::digest::Digest;
use crate::error::{Error, FileFault};
use crate::rate::Bucket;

/// The other header that clients put a key into.
pub(crate) const X_API_KEY: HeaderName = HeaderName::from_static("x-api-key");

/// A client's key. All methods may be called from any thread.
#[derive(Debug)]
pub(crate) struct Key {
    pub(crate) name: String,
    pub(crate) tenant: String,
    digest: Digest,
    requests: Option<Bucket>,
    tokens: Option<Bucket>,
    pub(crate) requests_total: AtomicU64,
    pub(crate) tokens_total: AtomicU64,
}

/// Why a request is not admitted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Denied {
    /// No key, or one that is not in the file.
    Unknown,
    /// The key has used up its requests for now.
    Requests { wait: Duration },
    /// The key has used up its tokens for now.
    Tokens { wait: Duration },
}

/// A request that was admitted.
#[derive(Debug)]
pub(crate) struct Admitted {
    pub(crate) key: Arc<Key>,
    /// The headers that held it.
    in_authorization: bool,
    in_x_api_key: bool,
}

impl Admitted {
    /// Whether this header holds our key, which is nobody else's business.
    pub(crate) fn ends_here(&self, name: &HeaderName) -> bool {
        (self.in_authorization && *name == header::AUTHORIZATION) || (self.in_x_api_key && *name == X_API_KEY)
    }
}

impl Key {
    /// The request is over. `estimated` is the size of its prompt if the answer did not say.
    pub(crate) fn charge(&self, now: Millis, usage: Option<Usage>, estimated_prompt_tokens: u64) {
        let tokens = usage.map_or(estimated_prompt_tokens, |usage| {
            u64::from(usage.prompt_tokens) + u64::from(usage.completion_tokens)
        });
        self.tokens_total.fetch_add(tokens, Ordering::Relaxed);
        if let Some(bucket) = &self.tokens {
            bucket.charge(now, tokens);
        }
    }

    fn admit(&self, now: Millis) -> Result<(), Denied> {
        if let Some(bucket) = &self.tokens {
            bucket.peek(now).map_err(|wait| Denied::Tokens { wait })?;
        }
        if let Some(bucket) = &self.requests {
            bucket.take(now).map_err(|wait| Denied::Requests { wait })?;
        }
        self.requests_total.fetch_add(1, Ordering::Relaxed);
        Ok(())
    }

    fn is_like(&self, other: &Self) -> bool {
        let limit = |bucket: &Option<Bucket>| bucket.as_ref().map(|bucket| bucket.per_minute);
        self.name == other.name
            && self.tenant == other.tenant
            && limit(&self.requests) == limit(&other.requests)
            && limit(&self.tokens) == limit(&other.tokens)
            && self.digest.equals(&other.digest)
    }
}

/// All keys of a gateway, by the start of their hashes. That a look-up may tell this start by its time helps nobody: it says
/// nothing about the token.
#[derive(Debug)]
pub(crate) struct Keys(HashMap<u64, Arc<Key>>);

impl Keys {
    /// Reads a file of keys.
    pub(crate) fn read(path: &Path) -> Result<Self, Error> {
        let refuse = |source| Error::File { key: "api_keys_file", path: path.to_owned(), source };
        let text = std::fs::read_to_string(path).map_err(|source| refuse(source.into()))?;
        Self::parse(&text).map_err(refuse)
    }

    fn parse(text: &str) -> Result<Self, FileFault> {
        let mut keys = HashMap::new();
        for (number, line) in (1..).zip(text.lines()) {
            let line = line.trim();
            if line.is_empty() || line.starts_with('#') {
                continue;
            }
            let refuse = |wanted| FileFault::Line { number, wanted };
            let key = Key::parse(line).map_err(refuse)?;
            let is_known_name = keys.values().any(|other: &Arc<Key>| other.name == key.name);
            if is_known_name || keys.insert(key.digest.start(), Arc::new(key)).is_some() {
                return Err(refuse("a name and a hash that no line before has"));
            }
        }
        Ok(Self(keys))
    }

    /// Takes over from `before` every key that has not changed, with what it has used of its limits.
    pub(crate) fn succeeding(mut self, before: Option<&Self>) -> Self {
        for (start, key) in &mut self.0 {
            if let Some(same) = before.and_then(|before| before.0.get(start)).filter(|old| old.is_like(key)) {
                *key = Arc::clone(same);
            }
        }
        self
    }

    /// The keys, in no order.
    pub(crate) fn iter(&self) -> impl Iterator<Item = &Arc<Key>> {
        self.0.values()
    }

    /// Admits a request with these headers, and counts it. Cost: a hash of the token.
    pub(crate) fn admit(&self, headers: &HeaderMap, now: Millis) -> Result<Admitted, Denied> {
        // Whichever line holds it: none of them goes on to a worker.
        let lines = |name| headers.get_all(name).iter().map(HeaderValue::as_bytes);
        let by_bearer = lines(&header::AUTHORIZATION).filter_map(bearer).find_map(|token| self.find(token));
        let by_name = lines(&X_API_KEY).find_map(|token| self.find(token.trim_ascii()));
        let key = by_bearer.or(by_name).ok_or(Denied::Unknown)?;
        key.admit(now)?;
        Ok(Admitted {
            key: Arc::clone(key),
            in_authorization: by_bearer.is_some(),
            in_x_api_key: by_name.is_some(),
        })
    }

    fn find(&self, token: &[u8]) -> Option<&Arc<Key>> {
        let digest = Digest::of(token);
        self.0.get(&digest.start()).filter(|key| key.digest.equals(&digest))
    }
}

/// The token of a value of `Authorization`.
pub(crate) fn bearer(value: &[u8]) -> Option<&[u8]> {
    let (scheme, token) = value.split_at_checked(7)?;
    scheme.eq_ignore_ascii_case(b"bearer ").then(|| token.trim_ascii())
}

impl Key {
    fn parse(line: &str) -> Result<Self, &'static str> {
        let (mut name, mut tenant, mut digest) = (None, None, None);
        let (mut requests, mut tokens) = (None, None);
        for word in line.split_ascii_whitespace() {
            let (field, value) = word.split_once('=').ok_or("words like name=value")?;
            let limit = || value.parse::<NonZeroU32>().map_err(|_| "a whole number from 1 as a limit");
            let is_new = match field {
                "name" => name.replace(value.to_owned()).is_none(),
                "tenant" => tenant.replace(value.to_owned()).is_none(),
                "sha256" => {
                    let hash = Digest::from_hex(value).ok_or("64 hexadecimal digits as sha256")?;
                    digest.replace(hash).is_none()
                }
                "requests_per_minute" => requests.replace(limit()?).is_none(),
                "tokens_per_minute" => tokens.replace(limit()?).is_none(),
                _ => return Err("name, sha256, tenant, requests_per_minute or tokens_per_minute"),
            };
            if !is_new {
                return Err("each word once");
            }
        }
        let name = name.filter(|name| !name.is_empty()).ok_or("a name")?;
        Ok(Self {
            tenant: tenant.unwrap_or_else(|| name.clone()),
            digest: digest.ok_or("a sha256")?,
            name,
            requests: requests.map(Bucket::new),
            tokens: tokens.map(Bucket::new),
            requests_total: AtomicU64::new(0),
            tokens_total: AtomicU64::new(0),
        })
    }
}

#[cfg(test)]
mod tests {

    use super::*;

    /// The hash of `abc`.
    const ABC: &str = "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad";

    fn keys(text: &str) -> Keys {
        Keys::parse(text).unwrap()
    }

    fn headers(name: &'static str, value: &'static str) -> HeaderMap {
        HeaderMap::from_iter([(HeaderName::from_static(name), HeaderValue::from_static(value))])
    }

    #[test]
    fn a_key_is_found_in_either_header() {
        let keys = keys(&format!("# ours\n\n name=acme sha256={ABC} tenant=t1\n"));
        for (name, value, wanted) in [
            ("authorization", "Bearer abc", Some(header::AUTHORIZATION)),
            ("authorization", "bearer  abc ", Some(header::AUTHORIZATION)),
            ("x-api-key", "abc", Some(X_API_KEY)),
            ("authorization", "abc", None),
            ("authorization", "Basic abc", None),
            ("authorization", "Bearer abd", None),
            ("authorization", "Bearer", None),
            ("x-api-key", "", None),
        ] {
            let found = keys.admit(&headers(name, value), Millis(0));
            match wanted {
                Some(credential) => {
                    let admitted = found.unwrap();
                    assert_eq!(admitted.key.tenant, "t1");
                    let ends = [header::AUTHORIZATION, X_API_KEY].map(|name| admitted.ends_here(&name));
                    assert_eq!(ends, [credential == header::AUTHORIZATION, credential == X_API_KEY]);
                }
                None => assert_eq!(found.unwrap_err(), Denied::Unknown, "{name}: {value}"),
            }
        }
        assert_eq!(keys.iter().next().unwrap().requests_total.load(Ordering::Relaxed), 3);
    }

    #[test]
    fn every_line_that_may_hold_our_key_is_looked_at() {
        let keys = keys(&format!("name=acme sha256={ABC}\n"));
        let mut lines = headers("authorization", "Bearer other");
        lines.append(header::AUTHORIZATION, HeaderValue::from_static("Bearer abc"));
        lines.append(X_API_KEY, HeaderValue::from_static("abc"));
        let admitted = keys.admit(&lines, Millis(0)).unwrap();
        assert!(admitted.ends_here(&header::AUTHORIZATION) && admitted.ends_here(&X_API_KEY));
    }

    #[test]
    fn limits_hold_and_survive_a_reload_unless_they_changed() {
        let text = format!("name=a sha256={ABC} requests_per_minute=1 tokens_per_minute=100");
        let first = keys(&text);
        let ask = |keys: &Keys, at| keys.admit(&headers("x-api-key", "abc"), Millis(at));
        ask(&first, 0).unwrap();
        assert!(matches!(ask(&first, 0), Err(Denied::Requests { wait }) if wait == Duration::from_secs(60)));
        let second = keys(&text).succeeding(Some(&first));
        assert!(ask(&second, 0).is_err(), "a reload forgives nothing");
        let usage = Usage { prompt_tokens: 150, cached_tokens: None, completion_tokens: 50 };
        ask(&second, 60_000).unwrap().key.charge(Millis(60_000), Some(usage), 7);
        assert!(matches!(ask(&second, 90_000), Err(Denied::Tokens { .. })));
        let changed = keys(&text.replace("minute=1 ", "minute=2 ")).succeeding(Some(&second));
        ask(&changed, 90_000).unwrap();
    }

    #[test]
    fn a_bad_line_is_named() {
        for (line, wanted) in [
            ("acme", "words like"),
            ("name=a", "a sha256"),
            (&format!("sha256={ABC}"), "a name"),
            (&format!("name= sha256={ABC}"), "a name"),
            ("name=a sha256=12", "64 hex"),
            (&format!("name=a sha256={ABC} color=red"), "name, sha256"),
            (&format!("name=a name=b sha256={ABC}"), "once"),
            (&format!("name=a sha256={ABC} requests_per_minute=0"), "from 1"),
        ] {
            let text = format!("# first\n{line}\n");
            match Keys::parse(&text) {
                Err(FileFault::Line { number: 2, wanted: said }) => assert!(said.contains(wanted), "{said}"),
                other => panic!("{line}: {other:?}"),
            }
        }
        let twice = format!("name=a sha256={ABC}\nname=b sha256={ABC}");
        assert!(matches!(Keys::parse(&twice), Err(FileFault::Line { number: 2, .. })));
        assert!(Keys::parse("").unwrap().iter().next().is_none(), "an empty file admits nobody");
    }
}
