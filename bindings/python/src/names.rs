//! Worker ids in Python are names, in the core numbers. This table turns numbers back into strings that exist already.

use parking_lot::RwLock;
use pyo3::prelude::*;
use pyo3::types::PyString;
use trunkline_core::{Router, WorkerId};

use crate::error;

/// What Python calls a worker.
pub(crate) struct Named {
    /// Its id.
    pub(crate) name: Py<PyString>,
    /// Its endpoint, if it was told.
    pub(crate) url: Option<Py<PyString>>,
}

impl Named {
    fn share(&self, py: Python<'_>) -> Self {
        Self { name: self.name.clone_ref(py), url: self.url.as_ref().map(|url| url.clone_ref(py)) }
    }
}

/// Names by number. The core never gives a number to another name, so an entry stays true for ever.
#[derive(Default)]
pub(crate) struct Names {
    table: RwLock<Vec<Option<Named>>>,
}

impl Names {
    /// Notes a worker that Python added.
    pub(crate) fn set(&self, id: WorkerId, named: Named) {
        let mut table = self.table.write();
        let index = id.0 as usize;
        if table.len() <= index {
            table.resize_with(index + 1, || None);
        }
        table[index] = Some(named);
    }

    /// The worker's name and endpoint. Cost: two reference counts; O(workers) the first time for a worker that did not
    /// come through Python (the gateway's admin API, a snapshot).
    pub(crate) fn get(&self, py: Python<'_>, router: &Router, id: WorkerId) -> Named {
        if let Some(Some(named)) = self.table.read().get(id.0 as usize) {
            return named.share(py);
        }
        let views = router.workers();
        let Some(view) = views.into_iter().find(|view| view.id == id) else {
            // Removed between the decision and here, before anybody asked for its name.
            return Named { name: PyString::new(py, "").unbind(), url: None };
        };
        let text = |text: &str| PyString::new(py, text).unbind();
        let named = Named { name: text(&view.name), url: view.endpoint.as_deref().map(text) };
        self.set(id, named.share(py));
        named
    }
}

/// The numbers of a collection of names. Errors: `TypeError` for anything but a collection of `str`.
///
/// Names that are not in the fleet are left out: who excludes a worker that failed need not know whether it has been
/// removed meanwhile, and an eligible worker that is gone is not eligible.
pub(crate) fn numbers(router: &Router, names: &Bound<'_, PyAny>, what: &str) -> PyResult<Vec<WorkerId>> {
    if names.is_instance_of::<PyString>() {
        return Err(error::one_name(what));
    }
    let mut found = Vec::new();
    for name in names.try_iter()? {
        let name = name?;
        found.extend(router.worker(name.cast::<PyString>()?.to_str()?));
    }
    Ok(found)
}
