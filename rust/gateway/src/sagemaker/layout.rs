//! Which workers a request to an endpoint may go to, and how one of them is chosen.
//!
//! The configuration is compiled once into a [`Layout`], in which each set of workers (a variant's, a component's) has a
//! number. A snapshot of the fleet turns these into [`Pool`]s of worker ids, so that a request only looks its pool up.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use http::header::HeaderValue;
use smallvec::SmallVec;
use trunkline_core::{Policy, WorkerId};
use xxhash_rust::xxh3::xxh3_64;

use super::config::{EndpointConfig, VariantConfig};
use super::refusal::Invalid;
use crate::endpoint;
use crate::error::Error;

/// Where a request to an endpoint goes: a set of workers and the rule of its variant.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Scope {
    /// The number of its pool; `None` means the whole fleet.
    pool: Option<usize>,
    /// `None` means the router's.
    pub(crate) policy: Option<Policy>,
    /// The worker that keeps the request's session.
    session_worker: Option<WorkerId>,
}

impl Scope {
    /// The number of its pool; `None` means the whole fleet.
    pub(crate) fn pool(&self) -> Option<usize> {
        self.pool
    }

    /// This scope (or, if there is none, the whole fleet) for a request of a session that `worker` keeps.
    pub(crate) fn of_session(scope: Option<Self>, worker: WorkerId) -> Self {
        let whole = Self { pool: None, policy: None, session_worker: None };
        Self { session_worker: Some(worker), ..scope.unwrap_or(whole) }
    }
}

/// Workers of one pool that are in the fleet, ascending.
#[derive(Debug, Default)]
pub(crate) struct Pool {
    pub(crate) ids: SmallVec<[WorkerId; 8]>,
    /// The machine of each.
    pub(crate) machines: SmallVec<[u32; 8]>,
}

impl Pool {
    fn filtered(&self, keep: impl Fn(WorkerId) -> bool) -> Self {
        let both = self.ids.iter().copied().zip(self.machines.iter().copied());
        let (ids, machines) = both.filter(|&(id, _)| keep(id)).unzip();
        Self { ids, machines }
    }
}

/// All pools at one moment, by number.
#[derive(Debug, Default)]
pub(crate) struct Pools(Vec<Pool>);

impl Pools {
    /// The workers of `scope` that are in `eligible`; of a session, its own worker alone while that one is live. `None` if
    /// the scope restricts nothing.
    pub(crate) fn narrow(
        &self,
        scope: &Scope,
        eligible: Option<&[WorkerId]>,
        is_live: impl Fn(WorkerId) -> bool,
    ) -> Option<Pool> {
        let pool = scope.pool.map(|number| &self.0[number]);
        if let Some(worker) = scope.session_worker
            && is_live(worker)
            && pool.is_none_or(|pool| pool.ids.contains(&worker))
        {
            return Some(Pool { ids: [worker].into_iter().collect(), machines: [0].into_iter().collect() });
        }
        Some(pool?.filtered(|id| eligible.is_none_or(|eligible| eligible.contains(&id))))
    }
}

/// The configured endpoints, compiled.
#[derive(Debug, Default)]
pub(crate) struct Layout {
    endpoints: Vec<Endpoint>,
    /// The workers of each pool: URL and machine.
    pools: Vec<Vec<(String, u32)>>,
    /// Counts the requests that left the choice of a variant to us.
    draws: AtomicU64,
}

#[derive(Debug)]
struct Endpoint {
    name: String,
    variants: Vec<Variant>,
    weight: u64,
}

#[derive(Debug)]
struct Variant {
    name: HeaderValue,
    weight: u32,
    policy: Policy,
    pool: usize,
    /// Its components, each with its pool. If there are any, a request has to name one.
    components: Vec<(String, usize)>,
}

impl Layout {
    /// Compiles endpoints that were checked.
    pub(crate) fn new(endpoints: &[EndpointConfig]) -> Result<Self, Error> {
        let mut layout = Self::default();
        for endpoint in endpoints {
            let variants: Vec<Variant> =
                endpoint.variants.iter().map(|variant| layout.variant(variant)).collect::<Result<_, _>>()?;
            let weight = variants.iter().map(|variant| u64::from(variant.weight)).sum();
            layout.endpoints.push(Endpoint { name: endpoint.name.clone(), variants, weight });
        }
        Ok(layout)
    }

    fn variant(&mut self, config: &VariantConfig) -> Result<Variant, Error> {
        let mut instances: Vec<Option<&String>> = Vec::new();
        let mut components: Vec<(String, usize)> = Vec::new();
        let pool = self.pools.len();
        self.pools.push(Vec::new());
        for worker in &config.workers {
            let known =
                instances.iter().position(|&other| other.is_some() && other == worker.instance.as_ref());
            let machine = known.unwrap_or_else(|| {
                instances.push(worker.instance.as_ref());
                instances.len() - 1
            });
            let place = (endpoint::Endpoint::parse(&worker.url, &Arc::default())?.url, machine as u32);
            if let Some(name) = &worker.component {
                let of_component = match components.iter().find(|(other, _)| other == name) {
                    Some(&(_, pool)) => pool,
                    None => {
                        self.pools.push(Vec::new());
                        components.push((name.clone(), self.pools.len() - 1));
                        self.pools.len() - 1
                    }
                };
                self.pools[of_component].push(place.clone());
            }
            self.pools[pool].push(place);
        }
        Ok(Variant {
            name: HeaderValue::from_str(&config.name).expect("a checked name is visible ASCII"),
            weight: config.weight,
            policy: config.policy,
            pool,
            components,
        })
    }

    /// The URLs of all workers, each once.
    pub(crate) fn urls(&self) -> Vec<&str> {
        let mut urls: Vec<&str> = self.pools.iter().flatten().map(|(url, _)| url.as_str()).collect();
        urls.sort_unstable();
        urls.dedup();
        urls
    }

    /// The pools, given the workers of the fleet.
    pub(crate) fn pools(&self, id_of: impl Fn(&str) -> Option<WorkerId>) -> Pools {
        let pool = |workers: &Vec<(String, u32)>| {
            let mut placed: Vec<(WorkerId, u32)> =
                workers.iter().filter_map(|(url, machine)| Some((id_of(url)?, *machine))).collect();
            placed.sort_unstable();
            let (ids, machines) = placed.into_iter().unzip();
            Pool { ids, machines }
        };
        Pools(self.pools.iter().map(pool).collect())
    }

    /// Where a request goes that names an endpoint and perhaps a variant or a component, and the variant's name.
    ///
    /// `None` if no endpoint is configured: then any name stands for the whole fleet.
    pub(crate) fn find(
        &self,
        endpoint: &str,
        variant: Option<&str>,
        component: Option<&str>,
    ) -> Result<Option<(Scope, HeaderValue)>, Invalid> {
        if self.endpoints.is_empty() {
            return Ok(None);
        }
        let found = self.endpoints.iter().find(|other| other.name == endpoint);
        let endpoint = found.ok_or(Invalid::UnknownEndpoint)?;
        let (variant, pool) = match component {
            Some(component) => endpoint.component(component, variant)?,
            None => {
                let variant = match variant {
                    Some(name) => endpoint.named(name)?,
                    None => endpoint.drawn(self.draws.fetch_add(1, Ordering::Relaxed)),
                };
                if !variant.components.is_empty() {
                    return Err(Invalid::ComponentNeeded);
                }
                (variant, variant.pool)
            }
        };
        let scope = Scope { pool: Some(pool), policy: Some(variant.policy), session_worker: None };
        Ok(Some((scope, variant.name.clone())))
    }
}

impl Endpoint {
    fn named(&self, name: &str) -> Result<&Variant, Invalid> {
        self.variants.iter().find(|variant| variant.name == name).ok_or(Invalid::UnknownVariant)
    }

    fn component(&self, name: &str, variant: Option<&str>) -> Result<(&Variant, usize), Invalid> {
        let all = self.variants.iter().flat_map(|variant| {
            variant.components.iter().map(move |(component, pool)| (variant, component, *pool))
        });
        let mut named = all.filter(|(_, component, _)| *component == name);
        let (found, _, pool) = named.next().ok_or(Invalid::UnknownComponent)?;
        if variant.is_some_and(|variant| found.name != variant) {
            return Err(Invalid::UnknownVariant);
        }
        Ok((found, pool))
    }

    /// A variant by weight. The hash of a counter: even over any run of requests, and without a pattern that clients could
    /// fall into step with.
    fn drawn(&self, draw: u64) -> &Variant {
        let mut at = ((u128::from(xxh3_64(&draw.to_le_bytes())) * u128::from(self.weight)) >> 64) as u64;
        for variant in &self.variants {
            match at.checked_sub(u64::from(variant.weight)) {
                Some(rest) => at = rest,
                None => return variant,
            }
        }
        unreachable!("a draw is below the sum of the weights")
    }
}

#[cfg(test)]
mod tests {
    use super::super::config::VariantWorker;
    use super::*;

    fn worker(host: &str, instance: Option<&str>, component: Option<&str>) -> VariantWorker {
        let owned = |text: Option<&str>| text.map(str::to_owned);
        VariantWorker {
            url: format!("http://{host}:1"),
            instance: owned(instance),
            component: owned(component),
        }
    }

    fn variant(name: &str, weight: u32, workers: Vec<VariantWorker>) -> VariantConfig {
        VariantConfig { name: name.into(), weight, policy: Policy::Random, workers }
    }

    fn layout() -> Layout {
        let components = vec![
            worker("d", Some("i-1"), Some("chat")),
            worker("e", Some("i-2"), Some("chat")),
            worker("f", Some("i-1"), Some("chat")),
            worker("g", Some("i-2"), Some("code")),
        ];
        let endpoints = [
            EndpointConfig {
                name: "split".into(),
                variants: vec![
                    variant("blue", 3, vec![worker("a", None, None), worker("b", None, None)]),
                    variant("green", 1, vec![worker("c", None, None)]),
                    variant("dark", 0, vec![worker("a", None, None)]),
                ],
            },
            EndpointConfig { name: "parts".into(), variants: vec![variant("all", 1, components)] },
        ];
        super::super::config::check(&endpoints).unwrap();
        Layout::new(&endpoints).unwrap()
    }

    /// The hosts and machines of what was found; `None` for workers that the fleet does not have.
    fn hosts(layout: &Layout, scope: &Scope) -> Vec<(char, u32)> {
        let id_of = |url: &str| Some(WorkerId(u32::from(url.as_bytes()[7])));
        let pools = layout.pools(id_of);
        let Pool { ids, machines } = pools.narrow(scope, None, |_| true).unwrap();
        ids.iter().zip(&machines).map(|(id, machine)| (id.0 as u8 as char, *machine)).collect()
    }

    #[test]
    fn variants_share_by_weight_unless_one_is_named() {
        let layout = layout();
        let mut blue = 0;
        for _ in 0..4000 {
            let (_, name) = layout.find("split", None, None).unwrap().unwrap();
            assert_ne!(name, "dark");
            blue += u32::from(name == "blue");
        }
        assert!((2900..3100).contains(&blue), "{blue} of 4000, wanted 3 of 4");
        let (scope, name) = layout.find("split", Some("dark"), None).unwrap().unwrap();
        assert_eq!((hosts(&layout, &scope), name.to_str().unwrap()), (vec![('a', 0)], "dark"));
    }

    #[test]
    fn a_component_stays_on_its_copies_and_knows_their_machines() {
        let layout = layout();
        let (scope, name) = layout.find("parts", None, Some("chat")).unwrap().unwrap();
        assert_eq!(hosts(&layout, &scope), [('d', 0), ('e', 1), ('f', 0)]);
        assert_eq!(name, "all");
        let (scope, _) = layout.find("parts", Some("all"), Some("code")).unwrap().unwrap();
        assert_eq!(hosts(&layout, &scope), [('g', 1)]);
    }

    #[test]
    fn what_is_not_there_is_named() {
        let layout = layout();
        let refused = |endpoint, variant, component| layout.find(endpoint, variant, component).unwrap_err();
        assert_eq!(refused("nope", None, None), Invalid::UnknownEndpoint);
        assert_eq!(refused("split", Some("red"), None), Invalid::UnknownVariant);
        assert_eq!(refused("split", None, Some("chat")), Invalid::UnknownComponent);
        assert_eq!(refused("parts", Some("other"), Some("chat")), Invalid::UnknownVariant);
        assert_eq!(refused("parts", None, None), Invalid::ComponentNeeded);
        assert!(Layout::default().find("any", Some("x"), None).unwrap().is_none());
    }

    #[test]
    fn pools_hold_who_is_in_the_fleet_and_eligible() {
        let layout = layout();
        let pools = layout.pools(|url| {
            let known = [("http://e:1", 3), ("http://f:1", 5), ("http://g:1", 6)];
            known.iter().find(|(other, _)| *other == url).map(|&(_, id)| WorkerId(id))
        });
        let (scope, _) = layout.find("parts", None, Some("chat")).unwrap().unwrap();
        let narrow = |scope: &Scope, eligible: Option<&[u32]>, live: u32| {
            let eligible: Option<Vec<WorkerId>> =
                eligible.map(|ids| ids.iter().map(|&id| WorkerId(id)).collect());
            let pool = pools.narrow(scope, eligible.as_deref(), |id| id == WorkerId(live))?;
            Some(
                pool.ids.iter().zip(&pool.machines).map(|(id, &machine)| (id.0, machine)).collect::<Vec<_>>(),
            )
        };
        assert_eq!(narrow(&scope, None, 9), Some(vec![(3, 1), (5, 0)]));
        assert_eq!(narrow(&scope, Some(&[5, 6]), 9), Some(vec![(5, 0)]));
        let in_session = |scope, id| Scope::of_session(scope, WorkerId(id));
        assert_eq!(
            narrow(&in_session(Some(scope), 5), Some(&[3]), 5),
            Some(vec![(5, 0)]),
            "its worker alone"
        );
        assert_eq!(narrow(&in_session(Some(scope), 5), Some(&[3]), 9), Some(vec![(3, 1)]), "which is down");
        assert_eq!(
            narrow(&in_session(Some(scope), 6), None, 6),
            Some(vec![(3, 1), (5, 0)]),
            "of another component"
        );
        assert_eq!(narrow(&in_session(None, 6), None, 6), Some(vec![(6, 0)]));
        assert_eq!(narrow(&in_session(None, 6), None, 9), None);
        assert_eq!(layout.urls().len(), 7);
    }
}
