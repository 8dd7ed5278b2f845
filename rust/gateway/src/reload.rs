//! Puts a changed configuration in force while requests run.
//!
//! Everything is read and checked first; then new workers are added, then certificates, keys, tokens and the trial are swapped,
//! then workers that are no longer named are removed, whose running requests finish. A failure leaves all as it was. Workers that
//! the admin API added are not the configuration's and stay, and so do those of SageMaker's endpoints.

use crate::config::Files;
use crate::endpoint::Endpoint;
use crate::error::Error;
use crate::profile::{self, Told};
use crate::server::{Gateway, Shared};
use crate::trial::Tried;

/// What a reload changed.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Reloaded {
    /// URLs of workers that were added.
    pub added: Vec<String>,
    /// URLs of workers that were removed.
    pub removed: Vec<String>,
}

impl Gateway {
    /// Reads `files` again and makes `worker_urls` the workers of the configuration. No connection and no request is
    /// dropped: connections keep the certificate that they were opened with. `tried` is put in force as by
    /// [`set_trial`](Self::set_trial), unless it is `None`. Counted in `trunkline_config_reloads_total`.
    ///
    /// # Errors
    /// [`Error::File`] and [`Error::Config`] for what cannot be used, as other options of a worker that is there;
    /// [`Error::Router`] for a worker that is named twice and for a shadow that there is no memory for. Then nothing has changed.
    pub fn reload(
        &self,
        files: &Files,
        worker_urls: &[String],
        tried: Option<Tried>,
    ) -> Result<Reloaded, Error> {
        let done = self.shared().reload(files, worker_urls, tried);
        self.shared().metrics.edge.reloaded(done.is_ok());
        done
    }

    /// Puts another trial and another policy in the shadow in force. What those before have come to is forgotten, and a ramp
    /// ends. Cost: with a shadow, O(blocks of the index), during which decisions wait.
    ///
    /// # Errors
    /// [`Error::Config`], [`Error::Router`] for a value outside its range; then nothing has changed.
    pub fn set_trial(&self, tried: Tried) -> Result<(), Error> {
        let shared = self.shared();
        shared.prepare_trial(tried).map(|prepared| shared.set_trial(prepared))
    }

    /// Counts a reload that the embedder refused before it came here, as its configuration could not be read.
    pub fn reload_refused(&self) {
        self.shared().metrics.edge.reloaded(false);
    }
}

impl Shared {
    pub(crate) fn reload(
        &self,
        files: &Files,
        worker_urls: &[String],
        tried: Option<Tried>,
    ) -> Result<Reloaded, Error> {
        let mut configured = self.configured.lock();
        let wanted = self.endpoints(worker_urls)?;
        for (endpoint, told, spelled) in &wanted {
            if self.fleet.find(&endpoint.url).is_ok_and(|worker| worker.told != *told) {
                let allowed =
                    "the same options behind # for a worker that is in the fleet, until it is removed";
                return Err(Error::Config { key: "worker", value: (*spelled).to_owned(), allowed });
            }
        }
        let needs_tls = wanted.iter().any(|(endpoint, ..)| endpoint.tls_name.is_some());
        let loaded = self.edge.load(files, needs_tls)?;

        let mut done = Reloaded::default();
        let prepared = self
            .add_all(&wanted, &mut done.added)
            .and_then(|()| tried.map(|tried| self.prepare_trial(tried)).transpose());
        let prepared = prepared.inspect_err(|_| {
            for url in &done.added {
                // An error means that somebody else has removed it already.
                let _ = self.fleet.remove(url);
            }
        })?;
        self.edge.install(loaded);
        if let Some(prepared) = prepared {
            self.set_trial(prepared);
        }
        let wanted: Vec<String> = wanted.into_iter().map(|(endpoint, ..)| endpoint.url).collect();
        let placed = self.fleet.layout.urls();
        for url in configured.iter().filter(|url| !wanted.contains(url) && !placed.contains(&url.as_str())) {
            // An error means that the admin API has removed it already.
            if self.fleet.remove(url).is_ok() {
                done.removed.push(url.clone());
            }
        }
        *configured = wanted;
        Ok(done)
    }

    /// Adds those that are not in the fleet, and notes their URLs until one cannot be added.
    fn add_all(&self, wanted: &[(Endpoint, Told, &str)], added: &mut Vec<String>) -> Result<(), Error> {
        let is_start = self.fleet.snapshot().workers.is_empty();
        for (endpoint, _, spelled) in wanted {
            if self.fleet.find(&endpoint.url).is_err() {
                if is_start { self.add_worker(spelled, None) } else { self.join_fleet(spelled, None) }?;
                added.push(endpoint.url.clone());
            }
        }
        Ok(())
    }

    /// Reads the workers of a configuration, each with the URL as it is written there.
    fn endpoints<'u>(&self, urls: &'u [String]) -> Result<Vec<(Endpoint, Told, &'u str)>, Error> {
        let mut endpoints: Vec<(Endpoint, Told, &str)> = Vec::with_capacity(urls.len());
        for spelled in urls {
            let (url, told) = profile::of_url(spelled)?;
            let endpoint = Endpoint::parse(url, &self.edge.outbound)?.of_rank(told.rank);
            if endpoints.iter().any(|(other, ..)| other.url == endpoint.url) {
                return Err(trunkline_core::Error::DuplicateWorker { name: endpoint.url }.into());
            }
            endpoints.push((endpoint, told, spelled));
        }
        Ok(endpoints)
    }
}
