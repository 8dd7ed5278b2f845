//! The fleet at one moment: who is there, and who serves which model. Never changed, only replaced.

use std::collections::HashMap;
use std::sync::Arc;

use bytes::Bytes;
use trunkline_core::WorkerId;

use super::worker::{Model, Worker};
use crate::sagemaker::{Layout, Pools};

/// Workers of one side of a trial, ascending.
type Side = Vec<WorkerId>;

/// All workers at one moment.
#[derive(Debug, Default)]
pub(crate) struct Snapshot {
    /// Ascending by id.
    pub(crate) workers: Vec<Arc<Worker>>,
    by_id: Vec<Option<Arc<Worker>>>,
    /// All of them, for a router that knows workers of others as well.
    ids: Vec<WorkerId>,
    /// Whether any worker has a cap.
    pub(crate) has_caps: bool,
    /// Who serves each model that is listed; `None` if everybody does.
    models: HashMap<String, Option<Vec<WorkerId>>>,
    /// The model that each adapter adapts.
    pub(crate) adapters: HashMap<String, String>,
    /// Whether a model that nobody lists is refused here.
    refuses_unlisted: bool,
    /// The merged answer to `GET /v1/models`; `None` while no worker could be asked.
    pub(crate) model_list: Option<Bytes>,
    /// The workers of each variant and component.
    pub(crate) pools: Pools,
    /// For each label of workers, those that have it and the others.
    sides: Vec<(String, Side, Side)>,
}

impl Snapshot {
    pub(super) fn new(workers: Vec<Arc<Worker>>, layout: &Layout) -> Self {
        let id_of =
            |url: &str| workers.iter().find(|worker| worker.endpoint.url == url).map(|worker| worker.id);
        let pools = layout.pools(id_of);
        let mut by_id = vec![None; workers.last().map_or(0, |last| last.id.0 as usize + 1)];
        let mut first_entries: Vec<Model> = Vec::new();
        let mut servers: HashMap<String, Vec<WorkerId>> = HashMap::new();
        let (mut unknown, mut known) = (Vec::new(), 0);
        for worker in &workers {
            by_id[worker.id.0 as usize] = Some(Arc::clone(worker));
            let Some(models) = worker.models.load_full() else {
                unknown.push(worker.id);
                continue;
            };
            known += 1;
            for model in models.iter() {
                let serving = servers.entry(model.id.clone()).or_default();
                if serving.is_empty() {
                    first_entries.push(model.clone());
                }
                if serving.last() != Some(&worker.id) {
                    serving.push(worker.id);
                }
            }
        }
        let restricted = |mut serving: Vec<WorkerId>| {
            if serving.len() == known {
                return None;
            }
            // Who could not be asked yet may well serve it.
            serving.extend(&unknown);
            serving.sort_unstable();
            Some(serving)
        };
        let models: HashMap<_, _> =
            servers.into_iter().map(|(name, serving)| (name, restricted(serving))).collect();
        // Engines that serve whatever they are asked for would answer with another model where there are several.
        let several = models.values().any(Option::is_some);
        let strict = workers.iter().all(|worker| worker.engine.get().checks_model);
        let refuses_unlisted = known > 0 && unknown.is_empty() && (several || strict);
        let model_list = (known > 0).then(|| {
            let entries: Vec<&str> = first_entries.iter().map(|model| model.entry.get()).collect();
            Bytes::from(format!(r#"{{"object":"list","data":[{}]}}"#, entries.join(",")))
        });
        let adapters =
            first_entries.iter().filter_map(|model| Some((model.id.clone(), model.parent.clone()?)));
        let adapters = adapters.collect();
        let ids = workers.iter().map(|worker| worker.id).collect();
        let sides = sides(&workers);
        let has_caps = workers.iter().any(|worker| worker.cap > 0);
        Self { workers, by_id, ids, has_caps, models, adapters, refuses_unlisted, model_list, pools, sides }
    }

    /// The workers of a trial's pool (`is_in`), or all others.
    pub(crate) fn side(&self, label: &str, is_in: bool) -> &[WorkerId] {
        match self.sides.iter().find(|(other, ..)| other == label) {
            Some((_, within, without)) => {
                if is_in {
                    within
                } else {
                    without
                }
            }
            None if is_in => &[],
            None => &self.ids,
        }
    }

    /// The worker with this id.
    pub(crate) fn get(&self, id: WorkerId) -> Option<&Arc<Worker>> {
        self.by_id.get(id.0 as usize)?.as_ref()
    }

    /// Who serves `model`; `None` means anybody. Nobody serves what no worker lists, if all workers could be asked and either
    /// check the name themselves or serve different models; else it may be an alias that is not listed.
    pub(crate) fn eligible(&self, model: Option<&str>) -> Option<&[WorkerId]> {
        let model = model.filter(|model| !model.is_empty())?;
        match self.models.get(model) {
            Some(serving) => serving.as_deref(),
            None => self.refuses_unlisted.then_some(&[]),
        }
    }

    /// All workers.
    pub(crate) fn ids(&self) -> &[WorkerId] {
        &self.ids
    }

    /// The worker with this normal URL.
    pub(super) fn named(&self, url: &str) -> Option<&Arc<Worker>> {
        self.workers.iter().find(|worker| worker.endpoint.url == url)
    }
}

/// Parts the workers by each of their labels.
fn sides(workers: &[Arc<Worker>]) -> Vec<(String, Side, Side)> {
    let mut labels: Vec<&String> = workers.iter().filter_map(|worker| worker.told.pool.as_ref()).collect();
    labels.sort_unstable();
    labels.dedup();
    let part = |label: &String| {
        let is_in = |worker: &&Arc<Worker>| worker.told.pool.as_ref() == Some(label);
        let (within, without): (Vec<&Arc<Worker>>, Vec<&Arc<Worker>>) = workers.iter().partition(is_in);
        let ids = |side: Vec<&Arc<Worker>>| side.iter().map(|worker| worker.id).collect();
        (label.clone(), ids(within), ids(without))
    };
    labels.into_iter().map(part).collect()
}
