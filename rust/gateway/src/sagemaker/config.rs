//! Settings of SageMaker-shaped endpoints: names, production variants, the workers behind them.
//!
//! Names and ranges are those of SageMaker's `CreateEndpointConfig`, so that a configuration can be carried over.

use std::collections::HashSet;
use std::sync::Arc;

use trunkline_core::Policy;

use crate::endpoint::Endpoint;
use crate::error::Error;

/// Longest name of an endpoint, a variant, a component or an instance.
const MAX_NAME_BYTES: usize = 63;
/// Largest weight of a variant.
const MAX_WEIGHT: u32 = 1_000_000;

/// An endpoint of SageMaker: what clients name in `/endpoints/{name}/...`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct EndpointConfig {
    /// Its name: 1 to 63 letters, digits and hyphens, a letter or digit first.
    pub name: String,
    /// What serves it: at least one variant. Each request goes to one of them, by weight, unless it names one.
    pub variants: Vec<VariantConfig>,
}

/// A production variant: a share of an endpoint's traffic and the workers that take it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct VariantConfig {
    /// Its name, which answers carry as `x-Amzn-Invoked-Production-Variant`. As an endpoint's.
    pub name: String,
    /// Its share of the requests that name no variant, relative to the others': 0 to 1,000,000. 0 serves only those who
    /// name it.
    pub weight: u32,
    /// How a worker is chosen among `workers`.
    pub policy: Policy,
    /// Its workers, at least one. Either all of them serve a component or none does.
    pub workers: Vec<VariantWorker>,
}

impl VariantConfig {
    /// The policy of a `RoutingStrategy`: `RANDOM`, `LEAST_OUTSTANDING_REQUESTS`, `PREFIX_AWARE` or `KV_AWARE`. `PrefixLength`
    /// (1,024 to 65,536) and `ConcurrencyThreshold` (1 to 1,024) are `PREFIX_AWARE`'s, which needs both.
    ///
    /// # Errors
    /// [`Error::Config`] for another name or a parameter that is missing or one too many, [`Error::Router`] for one out of
    /// range.
    pub fn routing_policy(
        strategy: &str,
        prefix_length: Option<u32>,
        concurrency_threshold: Option<u32>,
    ) -> Result<Policy, Error> {
        let policy = match (strategy, prefix_length, concurrency_threshold) {
            ("PREFIX_AWARE", Some(prefix_length), Some(_)) => {
                Policy::PrefixAware { prefix_length, concurrency_threshold }
            }
            ("RANDOM", None, None) => Policy::Random,
            ("LEAST_OUTSTANDING_REQUESTS", None, None) => Policy::LeastOutstanding,
            ("KV_AWARE", None, None) => Policy::KvAware,
            _ => {
                let allowed = "RANDOM, LEAST_OUTSTANDING_REQUESTS, KV_AWARE, or PREFIX_AWARE with prefix_length and \
                               concurrency_threshold";
                let value = strategy.to_owned();
                return Err(Error::Config { key: "routing_strategy", value, allowed });
            }
        };
        policy.check()?;
        Ok(policy)
    }
}

/// A worker of a variant: with a component, one copy of it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct VariantWorker {
    /// Its URL, as in the gateway's list of workers; one that is not in that list is added.
    pub url: String,
    /// The machine that it runs on, as any name. `prefix_aware` leaves a worker that is at its threshold for another one on
    /// the same machine first. `None`: a machine of its own.
    pub instance: Option<String>,
    /// The inference component that it is a copy of. Clients name the component, and its traffic stays on its copies.
    pub component: Option<String>,
}

/// Refuses endpoints that do not fit together.
pub(crate) fn check(endpoints: &[EndpointConfig]) -> Result<(), Error> {
    let mut names = HashSet::new();
    for endpoint in endpoints {
        check_name("endpoints.name", &endpoint.name)?;
        require(names.insert(&endpoint.name), "endpoints.name", &endpoint.name, "each name once")?;
        let empty = endpoint.variants.is_empty();
        require(!empty, "endpoints.variants", &endpoint.name, "at least one variant")?;
        let mut variants = HashSet::new();
        let mut components = HashSet::new();
        for variant in &endpoint.variants {
            let fresh = variants.insert(&variant.name);
            require(fresh, "endpoints.variants.name", &variant.name, "each name once in its endpoint")?;
            check_variant(variant)?;
            let own: HashSet<&String> = variant.workers.iter().filter_map(|w| w.component.as_ref()).collect();
            for component in own {
                let fresh = components.insert(component);
                let allowed = "each component in one variant of its endpoint";
                require(fresh, "endpoints.variants.workers.component", component, allowed)?;
            }
        }
        let weight: u64 = endpoint.variants.iter().map(|variant| u64::from(variant.weight)).sum();
        require(weight > 0, "endpoints.variants.weight", "0", "above 0 for at least one variant")?;
    }
    Ok(())
}

fn check_variant(variant: &VariantConfig) -> Result<(), Error> {
    check_name("endpoints.variants.name", &variant.name)?;
    let weight = variant.weight.to_string();
    require(variant.weight <= MAX_WEIGHT, "endpoints.variants.weight", &weight, "0 to 1000000")?;
    variant.policy.check()?;
    require(!variant.workers.is_empty(), "endpoints.variants.workers", &variant.name, "at least one worker")?;
    let with_component = variant.workers.iter().filter(|worker| worker.component.is_some()).count();
    require(
        [0, variant.workers.len()].contains(&with_component),
        "endpoints.variants.workers.component",
        &variant.name,
        "for all workers of a variant or for none",
    )?;
    let mut urls = HashSet::new();
    for worker in &variant.workers {
        let url = Endpoint::parse(&worker.url, &Arc::default())?.url;
        require(
            urls.insert(url),
            "endpoints.variants.workers.url",
            &worker.url,
            "each URL once in its variant",
        )?;
        for (key, name) in [
            ("endpoints.variants.workers.instance", &worker.instance),
            ("endpoints.variants.workers.component", &worker.component),
        ] {
            name.as_ref().map_or(Ok(()), |name| check_name(key, name))?;
        }
    }
    Ok(())
}

fn check_name(key: &'static str, name: &str) -> Result<(), Error> {
    let fits = (1..=MAX_NAME_BYTES).contains(&name.len())
        && !name.starts_with('-')
        && name.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'-');
    require(fits, key, name, "1 to 63 letters, digits and hyphens, a letter or digit first")
}

fn require(holds: bool, key: &'static str, value: &str, allowed: &'static str) -> Result<(), Error> {
    if holds { Ok(()) } else { Err(Error::Config { key, value: value.to_owned(), allowed }) }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn worker(url: &str, component: Option<&str>) -> VariantWorker {
        VariantWorker { url: url.into(), instance: None, component: component.map(str::to_owned) }
    }

    fn variant(name: &str, workers: Vec<VariantWorker>) -> VariantConfig {
        VariantConfig { name: name.into(), weight: 1, policy: Policy::KvAware, workers }
    }

    fn endpoint(name: &str, variants: Vec<VariantConfig>) -> EndpointConfig {
        EndpointConfig { name: name.into(), variants }
    }

    #[test]
    fn strategies_have_sagemakers_names_and_parameters() {
        let of = VariantConfig::routing_policy;
        assert_eq!(of("RANDOM", None, None).unwrap(), Policy::Random);
        assert_eq!(of("LEAST_OUTSTANDING_REQUESTS", None, None).unwrap(), Policy::LeastOutstanding);
        assert_eq!(of("KV_AWARE", None, None).unwrap(), Policy::KvAware);
        let wanted = Policy::PrefixAware { prefix_length: 1024, concurrency_threshold: Some(1) };
        assert_eq!(of("PREFIX_AWARE", Some(1024), Some(1)).unwrap(), wanted);
        for (strategy, length, threshold) in [
            ("PREFIX_AWARE", None, Some(10)),
            ("PREFIX_AWARE", Some(4096), None),
            ("PREFIX_AWARE", Some(1023), Some(10)),
            ("PREFIX_AWARE", Some(65_537), Some(10)),
            ("PREFIX_AWARE", Some(4096), Some(0)),
            ("PREFIX_AWARE", Some(4096), Some(1025)),
            ("RANDOM", Some(4096), None),
            ("random", None, None),
        ] {
            assert!(of(strategy, length, threshold).is_err(), "{strategy} {length:?} {threshold:?}");
        }
    }

    #[test]
    fn what_does_not_fit_is_refused_by_key() {
        let good = || variant("blue", vec![worker("http://a:1", None), worker("http://b:1", None)]);
        let refused = |endpoints: Vec<EndpointConfig>| match check(&endpoints) {
            Err(Error::Config { key, .. }) => key,
            Err(Error::Router(trunkline_core::Error::Config { key, .. })) => key,
            other => panic!("{other:?}"),
        };
        check(&[endpoint("llama-70b", vec![good(), variant("green", good().workers)])]).unwrap();
        let long = "x".repeat(64);
        for name in ["", "-a", "a/b", "a b", "\u{e9}", &long] {
            assert_eq!(refused(vec![endpoint(name, vec![good()])]), "endpoints.name", "{name}");
        }
        assert_eq!(refused(vec![endpoint("e", vec![good()]), endpoint("e", vec![good()])]), "endpoints.name");
        assert_eq!(refused(vec![endpoint("e", vec![])]), "endpoints.variants");
        assert_eq!(refused(vec![endpoint("e", vec![good(), good()])]), "endpoints.variants.name");
        let idle = VariantConfig { weight: 0, ..good() };
        assert_eq!(refused(vec![endpoint("e", vec![idle])]), "endpoints.variants.weight");
        let heavy = VariantConfig { weight: MAX_WEIGHT + 1, ..good() };
        assert_eq!(refused(vec![endpoint("e", vec![heavy])]), "endpoints.variants.weight");
        let policy = Policy::PrefixAware { prefix_length: 1000, concurrency_threshold: Some(10) };
        assert_eq!(refused(vec![endpoint("e", vec![VariantConfig { policy, ..good() }])]), "prefix_length");
        let of = |workers| vec![endpoint("e", vec![variant("blue", workers)])];
        assert_eq!(refused(of(vec![])), "endpoints.variants.workers");
        assert_eq!(refused(of(vec![worker("a:1", None)])), "worker");
        let twice = vec![worker("http://a:1", None), worker("http://a:1/", None)];
        assert_eq!(refused(of(twice)), "endpoints.variants.workers.url");
        let mixed = vec![worker("http://a:1", Some("chat")), worker("http://b:1", None)];
        assert_eq!(refused(of(mixed)), "endpoints.variants.workers.component");
        let chat = |name| variant(name, vec![worker("http://a:1", Some("chat"))]);
        let spread = vec![endpoint("e", vec![chat("blue"), chat("green")])];
        assert_eq!(refused(spread), "endpoints.variants.workers.component");
    }
}
