//! SageMaker-shaped endpoints as Python gives them: mappings with the keys of the configuration file.

use pyo3::prelude::*;
use trunkline_gateway as gateway;
use trunkline_gateway::{EndpointConfig, VariantConfig, VariantWorker};

/// An endpoint: `{"name": ..., "variants": [...]}`.
#[derive(FromPyObject)]
#[pyo3(from_item_all)]
pub(crate) struct Endpoint {
    name: String,
    variants: Vec<Variant>,
}

#[derive(FromPyObject)]
#[pyo3(from_item_all)]
struct Variant {
    name: String,
    workers: Vec<Worker>,
    #[pyo3(default = 1)]
    weight: u32,
    #[pyo3(default = "KV_AWARE".to_owned())]
    routing_strategy: String,
    #[pyo3(default)]
    prefix_length: Option<u32>,
    #[pyo3(default)]
    concurrency_threshold: Option<u32>,
}

#[derive(FromPyObject)]
#[pyo3(from_item_all)]
struct Worker {
    url: String,
    #[pyo3(default)]
    instance: Option<String>,
    #[pyo3(default)]
    component: Option<String>,
}

impl TryFrom<Endpoint> for EndpointConfig {
    type Error = gateway::Error;

    fn try_from(endpoint: Endpoint) -> Result<Self, gateway::Error> {
        let variants =
            endpoint.variants.into_iter().map(VariantConfig::try_from).collect::<Result<_, _>>()?;
        Ok(Self { name: endpoint.name, variants })
    }
}

impl TryFrom<Variant> for VariantConfig {
    type Error = gateway::Error;

    fn try_from(variant: Variant) -> Result<Self, gateway::Error> {
        let Variant { name, workers, weight, routing_strategy, prefix_length, concurrency_threshold } =
            variant;
        let policy = Self::routing_policy(&routing_strategy, prefix_length, concurrency_threshold)?;
        let worker = |Worker { url, instance, component }| VariantWorker { url, instance, component };
        Ok(Self { name, weight, policy, workers: workers.into_iter().map(worker).collect() })
    }
}
