//! Advice on logs with planted divergences, and on logs that have none.

use serde_json::{Value, json};

use super::*;
use crate::analyze::prefixes::PrefixTree;
use crate::des::{Rng, mix};
use crate::log::{BLOCK_BYTES, Reader};

/// Words that depend on `seed` alone.
fn words(seed: u64, bytes: usize) -> String {
    let mut rng = Rng::new(seed, 3);
    let mut text = String::new();
    while text.len() < bytes {
        let letters = 3 + rng.below(7);
        text.extend((0..letters).map(|_| char::from(b'a' + rng.below(26) as u8)));
        text.push(' ');
    }
    text.truncate(bytes);
    text
}

fn chat(system: &str, question: &str) -> Value {
    json!({"messages": [{"role": "system", "content": system}, {"role": "user", "content": question}]})
}

struct Log {
    tree: PrefixTree,
    sample: Sample,
    bytes: usize,
    hit_bytes: usize,
}

/// Reads bodies as a log.
fn log(bodies: impl IntoIterator<Item = Value>) -> Log {
    let mut log =
        Log { tree: PrefixTree::new(1 << 20), sample: Sample::new(64 << 20), bytes: 0, hit_bytes: 0 };
    let hasher = trunkline_core::BlockHasher::new(0);
    let mut reader = Reader::default();
    for body in bodies {
        let found = &mut |request: crate::log::LoggedRequest| {
            let (mut hashes, mut names) = (Vec::new(), Vec::new());
            request.chain_into(&hasher, &mut hashes, &mut names);
            let hit_bytes = BLOCK_BYTES * log.tree.request(&names, &request.prompt);
            log.sample.request(&request, hit_bytes);
            log.bytes += request.prompt.len();
            log.hit_bytes += hit_bytes;
        };
        reader.line(&body.to_string(), found).unwrap();
    }
    log
}

impl Log {
    fn advice(&self) -> Vec<Advice> {
        advice(&self.sample, 0.005 * self.bytes as f64)
    }

    fn hit_rate(&self) -> f64 {
        self.hit_bytes as f64 / self.bytes as f64
    }

    /// The one piece of advice there is.
    fn only(&self) -> Advice {
        let found = self.advice();
        assert_eq!(found.len(), 1, "{found:#?}");
        found[0].clone()
    }
}

/// Whether the saving that is promised is what moving the difference behind the shared text brings, within two points.
fn assert_saving(before: &Log, after: &Log) {
    let promised: f64 =
        before.advice().iter().map(|advice| advice.saved_bytes).sum::<f64>() / before.bytes as f64;
    let gained = after.hit_rate() - before.hit_rate();
    assert!((promised - gained).abs() < 0.02, "{promised} promised, {gained} gained");
}

#[test]
fn a_time_before_the_shared_part_is_found_with_its_saving() {
    let shared = words(1, 6000);
    let time = |number: u64| format!("2026-11-30T12:{:02}:{:02}Z", number / 60 % 60, number % 60);
    let question = |number: u64| words(1000 + number, 200);
    let early = log((0..300)
        .map(|n| chat(&format!("You are helpful. Current time: {}. {shared}", time(n)), &question(n))));
    let late = log((0..300)
        .map(|n| chat(&format!("You are helpful. {shared}"), &format!("{} {}", time(n), question(n)))));
    let found = early.only();
    assert_eq!((found.kind, found.templates), (Kind::Timestamp, 1));
    assert!(found.example.before.ends_with("Current time: "), "{found:?}");
    assert!(found.example.values.iter().all(|value| value.starts_with("2026-11-30T12:")), "{found:?}");
    assert!((found.requests - 300.0).abs() < 2.0 && (found.shared_bytes - 6000.0).abs() < 300.0, "{found:?}");
    assert!(found.at_bytes < 64 && late.advice().is_empty(), "{:?}", late.advice());
    assert_saving(&early, &late);
}

#[test]
fn names_of_users_who_come_back_count_for_their_first_request_only() {
    let shared = words(2, 5000);
    let user = |number: u64| {
        let names = ["Alice", "Bruno", "Chiyo", "Dmitri", "Emeka", "Fatima", "Goran", "Hanna"];
        format!("{} {}", names[(number % 8) as usize], names[(number / 8 % 8) as usize])
    };
    let of = |number: u64| user(mix(number) % 64);
    let early =
        log((0..320).map(|n| chat(&format!("You talk to {}.\n{shared}", of(n)), &words(2000 + n, 300))));
    let late = log((0..320).map(|n| chat(&shared, &format!("I am {}. {}", of(n), words(2000 + n, 300)))));
    let found = early.only();
    assert_eq!(found.kind, Kind::Name);
    assert!(found.requests < 80.0, "{found:?}");
    assert_saving(&early, &late);
}

#[test]
fn one_template_for_each_of_many_tenants_is_one_finding() {
    let id = |number: u64| format!("{:016x}", mix(number + 1));
    let early = log((0..600).map(|n| {
        let tenant = words(50 + n % 60, 4000);
        chat(&format!("session: {}\n{tenant}", id(n)), &words(3000 + n, 200))
    }));
    let found = early.only();
    assert!(found.kind == Kind::Id && found.templates > 50, "{found:?}");
    let late = log((0..600)
        .map(|n| chat(&words(50 + n % 60, 4000), &format!("session: {} {}", id(n), words(3000 + n, 200)))));
    assert_saving(&early, &late);
}

/// Numbers from 0 in an order of their own.
fn shuffled(count: usize, seed: u64) -> Vec<usize> {
    let mut order: Vec<usize> = (0..count).collect();
    Rng::new(seed, 9).shuffle(&mut order);
    order
}

#[test]
fn shuffled_tools_are_found() {
    let tool = |at: usize| json!({"type": "function", "function": {"name": format!("tool_{at}"), "description": words(at as u64, 500)}});
    let system = words(4, 2000);
    let of = |n: u64, order: Vec<usize>| {
        let mut body = chat(&system, &words(4000 + n, 200));
        body["tools"] = order.into_iter().map(tool).collect();
        body
    };
    let early = log((0..200).map(|n| of(n, shuffled(8, n))));
    let late = log((0..200).map(|n| of(n, (0..8).collect())));
    let found = early.only();
    assert_eq!(found.kind, Kind::ToolsOrder);
    assert!(late.advice().is_empty());
    assert_saving(&early, &late);
}

#[test]
fn shuffled_keys_and_items_before_the_shared_part_are_found() {
    let shared = words(5, 4000);
    let keys = |n: u64| {
        let members: Vec<String> =
            shuffled(9, n).into_iter().map(|at| format!("\"key_{at}\": \"value {at}\"")).collect();
        format!("{{{}}}", members.join(", "))
    };
    let found =
        log((0..200).map(|n| chat(&format!("Context: {}\n{shared}", keys(n)), &words(5000 + n, 200)))).only();
    assert_eq!(found.kind, Kind::KeysOrder, "{found:?}");
    let examples = |n: u64| {
        shuffled(6, n).into_iter().map(|at| words(60 + at as u64, 700)).collect::<Vec<_>>().join("\n\n")
    };
    let found = log((0..200).map(|n| chat(&examples(n), &words(6000 + n, 200)))).only();
    assert_eq!(found.kind, Kind::ItemsOrder, "{found:?}");
}

#[test]
fn logs_without_early_divergence_give_no_advice() {
    // Chats whose history grows, some turns of each.
    let growing = (0..400u64).map(|n| {
        let (chat, turns) = (n / 5, 1 + n % 5);
        let mut messages = vec![json!({"role": "system", "content": words(7, 1500)})];
        for turn in 0..turns {
            let text = |role: u64| words(mix(chat * 100 + turn) ^ role, 300);
            messages.push(json!({"role": "user", "content": text(1)}));
            if turn + 1 < turns {
                messages.push(json!({"role": "assistant", "content": text(2)}));
            }
        }
        json!({ "messages": messages })
    });
    assert_eq!(log(growing).advice(), []);
    // Few-shot prompts that share nothing.
    assert_eq!(log((0..200).map(|n| chat(&words(8000 + n, 3000), &words(9000 + n, 200)))).advice(), []);
    // Prompts of templates that are well made.
    assert_eq!(log((0..300).map(|n| chat(&words(70 + n % 10, 3000), &words(9000 + n, 400)))).advice(), []);
    // The same prompt again and again.
    assert_eq!(log((0..50).map(|_| chat(&words(71, 3000), "again"))).advice(), []);
    // Examples drawn from a pool: no text is in most prompts.
    let drawn = (0..300u64).map(|n| {
        let some: Vec<String> =
            shuffled(20, n).into_iter().take(4).map(|at| words(500 + at as u64, 600)).collect();
        chat(&some.join("\n"), &words(9500 + n, 100))
    });
    assert_eq!(log(drawn).advice(), []);
}
