//! What the fuzz targets in `rust/fuzz` may call; built only for them (`--cfg fuzzing`, which cargo-fuzz sets).

use std::sync::OnceLock;

use crate::index::model::{self, Step};
use crate::{Error, Millis, Prompt, RouteRequest, Router, RouterConfig, WorkerSpec, snapshot};

/// Takes an index through steps (what to do, on which view, a prompt over few blocks) and panics where it differs from the
/// plain model.
pub fn index(steps: &[(u8, u8, Vec<u8>)]) {
    let steps = steps.iter().map(|(what, view, prompt)| {
        let view = usize::from(view % 4);
        let prompt: Vec<u64> = prompt.iter().map(|block| u64::from(block % 4)).collect();
        match what % 16 {
            0 => Step::Replace { view },
            1 => Step::Capacity { view, blocks: None },
            2 => Step::Capacity { view, blocks: Some(prompt.len() as u64) },
            3..=6 => Step::Find { prompt },
            _ => Step::Insert { view, prompt },
        }
    });
    model::equals_model(steps.collect());
}

/// Restores a good snapshot of which bytes were replaced, under a fitting checksum. What comes of it must be a router that
/// can be saved and restored, or a refusal.
pub fn restore(changes: &[(u16, u8)], cut: Option<u16>) {
    let mut bytes = snapshot::begin();
    let header = bytes.len();
    bytes.extend(&good()[header..]);
    for &(at, value) in changes {
        let at = header + usize::from(at) % (bytes.len() - header);
        bytes[at] = value;
    }
    if let Some(cut) = cut {
        bytes.truncate(header + usize::from(cut) % (bytes.len() - header));
    }
    snapshot::seal(&mut bytes);
    match Router::restore(&bytes, Millis(0)) {
        Ok(router) => {
            let saved = router.snapshot(Millis(0));
            let again = Router::restore(&saved, Millis(0)).expect("a router saves what it can restore");
            assert_eq!(again.workers(), router.workers());
            let request = RouteRequest::new(Prompt::Text(&[b"anything"]));
            _ = again.route(&request, Millis(1));
        }
        Err(Error::Snapshot { .. } | Error::Config { .. }) => {}
        Err(other) => panic!("{other}"),
    }
}

/// A small router with something of everything.
fn good() -> &'static [u8] {
    static GOOD: OnceLock<Vec<u8>> = OnceLock::new();
    GOOD.get_or_init(|| {
        let router = Router::new(RouterConfig { memory_budget: 1 << 20, ..RouterConfig::default() })
            .expect("a valid configuration");
        for name in ["a", "b", "c"] {
            router.add_worker(WorkerSpec::new(name)).expect("a new name");
        }
        for number in 0..24u32 {
            let prompt: Vec<u32> = (0..16 * (1 + number % 5)).map(|at| at + number % 3).collect();
            let request = RouteRequest::new(Prompt::Tokens(&prompt));
            let decision = router.route(&request, Millis(0)).expect("workers live");
            router.first_token(decision.id, Millis(3));
            router.complete(decision.id, None, Millis(5));
        }
        let gone = router.worker("b").expect("added");
        router.remove_worker(gone).expect("present");
        router.snapshot(Millis(9))
    })
}
