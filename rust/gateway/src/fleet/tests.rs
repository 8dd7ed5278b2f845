//! What the fleet promises: names, models, turns and pauses.

use serde_json::value::RawValue;
use trunkline_core::RouterConfig;

use super::*;

fn fleet(urls: &[&str]) -> Fleet {
    let router = Arc::new(Router::new(RouterConfig::default()).unwrap());
    let fleet =
        Fleet::new(router, 1, Arc::default(), Layout::default(), Exact::default(), &GatewayConfig::default());
    for url in urls {
        fleet.add(url, None).unwrap();
    }
    fleet
}

fn models(ids: &[&str]) -> Vec<Model> {
    let model = |id: &&str| Model {
        parent: None,
        id: (*id).to_owned(),
        entry: RawValue::from_string(format!(r#"{{"id":"{id}"}}"#)).unwrap(),
    };
    ids.iter().map(model).collect()
}

#[test]
fn urls_are_normal_and_unique() {
    let fleet = fleet(&["http://a:1"]);
    assert!(matches!(
        fleet.add("http://a:1/", None),
        Err(Error::Router(trunkline_core::Error::DuplicateWorker { .. }))
    ));
    assert!(fleet.find("http://a:1/").is_ok());
    assert!(matches!(fleet.remove("http://b:1"), Err(Error::UnknownWorker { .. })));
    fleet.remove("http://a:1").unwrap();
    assert!(!fleet.is_ready());
    fleet.add("http://a:1", None).unwrap();
    assert!(fleet.is_ready());
}

#[test]
fn a_worker_that_the_router_knows_is_taken_over() {
    let router = Arc::new(Router::new(RouterConfig::default()).unwrap());
    let id = router.add_worker(WorkerSpec { weight: 3, ..WorkerSpec::new("http://a:1") }).unwrap();
    router.drain_worker(id, true).unwrap();
    let config = GatewayConfig::default();
    let fleet =
        Fleet::new(Arc::clone(&router), 1, Arc::default(), Layout::default(), Exact::default(), &config);
    assert_eq!(fleet.add("http://a:1/", None).unwrap().id, id);
    let view = &router.workers()[0];
    assert_eq!((view.weight, view.draining, view.healthy), (3, false, true));
    assert!(fleet.add("http://a:1", None).is_err(), "but only once");
}

#[test]
fn a_model_restricts_to_those_who_list_it_and_those_who_were_not_asked() {
    let fleet = fleet(&["http://a:1", "http://b:1", "http://c:1"]);
    let ids: Vec<_> = fleet.snapshot().workers.iter().map(|worker| worker.id).collect();
    let set = |number: usize, names: &[&str]| {
        let worker = Arc::clone(&fleet.snapshot().workers[number]);
        fleet.set_models(&worker, models(names));
    };
    assert!(fleet.snapshot().model_list.is_none());
    set(0, &["base", "only-a"]);
    assert_eq!(fleet.snapshot().eligible(Some("only-a")), None, "one list says nothing about the others");
    set(1, &["base", "only-b", "only-b"]);
    assert_eq!(fleet.snapshot().eligible(Some("only-a")), Some([ids[0], ids[2]].as_slice()));
    set(2, &["base"]);
    assert_eq!(fleet.snapshot().eligible(Some("only-a")), Some([ids[0]].as_slice()));
    assert_eq!(fleet.snapshot().eligible(Some("base")), None);
    assert_eq!(fleet.snapshot().eligible(Some("nobody")), Some([].as_slice()));
    assert_eq!(fleet.snapshot().eligible(Some("")), None);
    assert_eq!(fleet.snapshot().eligible(None), None);
    let list = fleet.snapshot().model_list.clone().unwrap();
    assert_eq!(list, r#"{"object":"list","data":[{"id":"base"},{"id":"only-a"},{"id":"only-b"}]}"#);
}

#[test]
fn one_model_is_enforced_only_where_all_engines_check_it() {
    let fleet = fleet(&["http://a:1#engine=vllm", "http://b:1"]);
    let set = |number: usize, owner: &str| {
        let worker = Arc::clone(&fleet.snapshot().workers[number]);
        fleet.set_engine(&worker, Profile::recognise(Some(owner), ""));
        fleet.set_models(&worker, models(&["base"]));
    };
    set(0, "sglang");
    set(1, "sglang");
    assert_eq!(fleet.snapshot().eligible(Some("alias")), None, "SGLang serves any name");
    set(1, "vllm");
    assert_eq!(
        fleet.snapshot().eligible(Some("alias")),
        Some([].as_slice()),
        "the first one was told to be vLLM"
    );
    fleet.add("http://c:1#engine=vllm", None).unwrap();
    assert_eq!(fleet.snapshot().eligible(Some("alias")), None, "who was not asked yet may serve it");
    assert!(fleet.remove("http://c:1#engine=vllm").is_ok());
    assert!(matches!(fleet.add("http://d:1#engine=x", None), Err(Error::Config { key: "worker", .. })));
}

#[test]
fn the_lightest_takes_turns_among_equals() {
    let fleet = fleet(&["http://a:1", "http://b:1", "http://c:1"]);
    let snapshot = fleet.snapshot();
    let mut seen: Vec<_> = (0..3).map(|_| fleet.lightest(&snapshot, None, &[]).unwrap()).collect();
    seen.sort_unstable();
    assert_eq!(seen, snapshot.workers.iter().map(|worker| worker.id).collect::<Vec<_>>());
    snapshot.workers[0].in_flight.store(1, Ordering::Relaxed);
    fleet.take_out(&snapshot.workers[1], Failure::Unhealthy);
    assert_eq!(fleet.lightest(&snapshot, None, &[]), Some(snapshot.workers[2].id));
    assert_eq!(fleet.lightest(&snapshot, None, &[snapshot.workers[2].id]), Some(snapshot.workers[0].id));
    assert_eq!(fleet.lightest(&snapshot, Some(&[snapshot.workers[1].id]), &[]), None);
}

#[test]
fn pauses_end() {
    let fleet = fleet(&["http://a:1", "http://b:1"]);
    let snapshot = fleet.snapshot();
    let resting = |now| fleet.avoid(&snapshot, Millis(now)).resting;
    assert!(resting(0).is_empty());
    fleet.busy(&snapshot.workers[1], Millis(100), None);
    assert_eq!(resting(100).as_slice(), [snapshot.workers[1].id]);
    assert_eq!(fleet.avoid(&snapshot, Millis(100)).busy_until, Some(Millis(350)));
    assert!(resting(350).is_empty());
}
