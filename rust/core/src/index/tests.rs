//! The index against its plain model, and what the model does not say.

use proptest::prelude::*;

use super::model::{Model, Step, blocks, check, depths, equals_model};
use super::*;
use crate::snapshot::Reader;

/// Prompts over few blocks, so that they share prefixes of every length.
fn prompt() -> impl Strategy<Value = Vec<u64>> {
    prop_oneof![
        proptest::collection::vec(0u64..2, 0..14),
        (0u64..3, 0usize..40).prop_map(|(block, len)| vec![block; len]),
        proptest::collection::vec(0u64..4, 0..6),
    ]
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        8 => (0usize..4, prompt()).prop_map(|(view, prompt)| Step::Insert { view, prompt }),
        4 => prompt().prop_map(|prompt| Step::Find { prompt }),
        1 => (0usize..4).prop_map(|view| Step::Replace { view }),
        1 => (0usize..4, proptest::option::of(0u64..30)).prop_map(|(view, blocks)| Step::Capacity { view, blocks }),
    ]
}

fn apply(index: &mut Writer, views: &mut [ViewId], step: Step, now_ms: u32) {
    match step {
        Step::Insert { view, prompt } => index.insert(views[view], &blocks(&prompt), now_ms),
        Step::Find { .. } => {}
        Step::Replace { view } => {
            index.remove_view(views[view]);
            views[view] = index.add_view(Some(50)).expect("free");
        }
        Step::Capacity { view, blocks } => index.set_capacity(views[view], blocks),
    }
}

/// Ends, copies and uses of the parts of a prompt.
fn segments(index: &Writer, prompt: &[u64], now_ms: u32) -> Vec<Segment> {
    let mut matches = Matches::default();
    index.index.find(&blocks(prompt)[..], now_ms, &mut matches);
    matches.segments
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(400))]

    #[test]
    fn equals_the_plain_model(steps in proptest::collection::vec(step(), 1..80)) {
        equals_model(steps);
    }

    #[test]
    fn a_restored_index_is_the_saved_one_and_goes_on_alike(
        before in proptest::collection::vec(step(), 1..60),
        after in proptest::collection::vec(step(), 1..60),
    ) {
        let (_, mut index) = PrefixIndex::new(MIN_BUDGET).expect("address space");
        let mut views: Vec<ViewId> = (0..4).map(|_| index.add_view(Some(50)).expect("free")).collect();
        for (now_ms, step) in before.into_iter().enumerate() {
            apply(&mut index, &mut views, step, 1_000 * now_ms as u32);
        }
        let mut saved = Vec::new();
        index.save(&views, 90_000, &mut saved);
        let (_, mut restored) = PrefixIndex::new(MIN_BUDGET).expect("address space");
        let capacity = |view: &ViewId| index.views.get(view.index).capacity_blocks;
        let mut new_views: Vec<ViewId> =
            views.iter().map(|view| restored.add_view(Some(capacity(view))).expect("free")).collect();
        restored.load(&new_views, 90_000, &mut Reader::new(&saved)).expect("just saved");
        check(&restored);
        let mut again = Vec::new();
        restored.save(&new_views, 90_000, &mut again);
        prop_assert_eq!(&saved, &again);
        for (now_ms, step) in after.into_iter().enumerate() {
            apply(&mut index, &mut views, step.clone(), 90_000 + now_ms as u32);
            apply(&mut restored, &mut new_views, step.clone(), 90_000 + now_ms as u32);
            check(&restored);
            for (view, new_view) in views.iter().zip(&new_views) {
                prop_assert_eq!(index.view_blocks(*view), restored.view_blocks(*new_view));
            }
            if let Step::Find { prompt } | Step::Insert { prompt, .. } = step {
                prop_assert_eq!(depths(&index, &prompt, &views), depths(&restored, &prompt, &new_views));
                prop_assert_eq!(segments(&index, &prompt, 95_000), segments(&restored, &prompt, 95_000));
            }
        }
    }

    #[test]
    fn a_batch_finds_what_as_many_look_ups_find(
        stored in proptest::collection::vec((0usize..4, prompt()), 0..40),
        asked in proptest::collection::vec(prompt(), 0..60),
    ) {
        let (_, mut index) = PrefixIndex::new(MIN_BUDGET).expect("address space");
        let views: Vec<ViewId> = (0..4).map(|_| index.add_view(None).expect("free")).collect();
        for (view, prompt) in stored {
            index.insert(views[view], &blocks(&prompt), 0);
        }
        let mut found = vec![None; asked.len()];
        let prompts: Vec<_> = asked.iter().map(|prompt| blocks(prompt)).collect();
        let mut batch = BatchMatches::default();
        index.index.find_batch(prompts.iter().map(Vec::as_slice), 7_000, &mut batch, |number, matches| {
            let listed: Vec<_> = matches.holders().collect();
            assert!(found[number].replace((listed, matches.segments.clone())).is_none(), "each once");
        });
        let mut matches = Matches::default();
        for (prompt, found) in asked.iter().zip(found) {
            index.index.find(&blocks(prompt)[..], 7_000, &mut matches);
            prop_assert_eq!(found, Some((matches.holders().collect(), matches.segments.clone())));
        }
    }

    #[test]
    fn what_is_pinned_stays_and_is_counted_once(steps in proptest::collection::vec((0usize..2, prompt(), any::<bool>(), any::<prop::sample::Index>()), 1..60), capacity in 1u64..30) {
        let (_, mut index) = PrefixIndex::new(MIN_BUDGET).expect("address space");
        let views: Vec<ViewId> = (0..2).map(|_| index.add_view(Some(capacity)).expect("free")).collect();
        let mut pinned: Vec<(usize, Vec<u64>, Pin)> = Vec::new();
        let mut counted = [0; 2];
        for (view, prompt, release, which) in steps {
            if release && !pinned.is_empty() {
                let (view, _, pin) = pinned.swap_remove(which.index(pinned.len()));
                counted[view] -= index.unpin(pin);
            } else if let Some((pin, newly)) = index.insert_pinned(views[view], &blocks(&prompt), &Matches::default(), 0) {
                pinned.push((view, prompt, pin));
                counted[view] += newly;
            }
            check(&index);
            let mut models = [Model::default(), Model::default()];
            for (view, prompt, _) in &pinned {
                prop_assert_eq!(depths(&index, prompt, &views)[*view], prompt.len() as u32);
                models[*view].store(prompt, 0);
                models[*view].pin(prompt, 1);
            }
            for ((view, model), counted) in views.iter().zip(&models).zip(counted) {
                prop_assert_eq!(counted, model.prefixes.len() as u64);
                prop_assert!(index.view_blocks(*view) <= capacity.max(model.prefixes.len() as u64));
            }
        }
    }
}

#[test]
fn the_budget_is_never_exceeded_and_the_newest_prompts_survive() {
    let (_, mut index) = PrefixIndex::new(MIN_BUDGET).expect("address space");
    let views: Vec<ViewId> = (0..3).map(|_| index.add_view(None).expect("free")).collect();
    let unique = |number: u64, len: u64| (0..len).map(|at| number << 20 | at).collect::<Vec<u64>>();
    // Lengths that need every size of slot, and one prompt in three shared by all views.
    let length = |number: u64| [3, 17, 31, 320, 1500, 64][number as usize % 6];
    for number in 0..4000 {
        let prompt = unique(number, length(number));
        for view in &views[..if number % 3 == 0 { 3 } else { 1 }] {
            index.insert(*view, &blocks(&prompt), number as u32);
        }
        assert!(index.bytes() <= MIN_BUDGET, "{} bytes after {number} prompts", index.bytes());
        assert_eq!(depths(&index, &prompt, &views)[0], prompt.len() as u32);
    }
    check(&index);
    for number in 3980..4000 {
        let prompt = unique(number, length(number));
        assert_eq!(depths(&index, &prompt, &views)[0], prompt.len() as u32, "prompt {number}");
    }
    assert!(index.evicted_blocks() > 100_000);
}

#[test]
fn a_full_index_is_restored_within_its_budget() {
    let (_, mut index) = PrefixIndex::new(MIN_BUDGET).expect("address space");
    let views: Vec<ViewId> = (0..3).map(|_| index.add_view(None).expect("free")).collect();
    let unique =
        |number: u64| (0..[3, 17, 31, 320, 64][number as usize % 5]).map(move |at| number << 20 | at);
    for number in 0..3000 {
        let prompt: Vec<u64> = unique(number).collect();
        index.insert(views[number as usize % 3], &blocks(&prompt), 0);
    }
    let mut saved = Vec::new();
    index.save(&views, 0, &mut saved);
    let (_, mut restored) = PrefixIndex::new(MIN_BUDGET).expect("address space");
    let new_views: Vec<ViewId> = (0..3).map(|_| restored.add_view(None).expect("free")).collect();
    restored.load(&new_views, 0, &mut Reader::new(&saved)).expect("just saved");
    check(&restored);
    assert_eq!((restored.runs(), restored.blocks()), (index.runs(), index.blocks()));
    for number in 0..3000 {
        let prompt: Vec<u64> = unique(number).collect();
        assert_eq!(depths(&index, &prompt, &views), depths(&restored, &prompt, &new_views));
    }
}

#[test]
fn an_index_that_shrank_is_numbered_anew() {
    let (_, mut index) = PrefixIndex::new(MIN_BUDGET).expect("address space");
    let views: Vec<ViewId> = (0..2).map(|_| index.add_view(None).expect("free")).collect();
    for number in 0..9_000u64 {
        index.insert(views[0], &blocks(&[number, 7]), 0);
    }
    index.insert(views[1], &blocks(&[1 << 40, 8, 9]), 0);
    index.insert(views[1], &blocks(&[1 << 40, 8, 10]), 0);
    index.set_capacity(views[0], Some(4));
    let mut saved = Vec::new();
    index.save(&views, 0, &mut saved);
    let (_, mut restored) = PrefixIndex::new(MIN_BUDGET).expect("address space");
    let new_views: Vec<ViewId> = (0..2).map(|_| restored.add_view(None).expect("free")).collect();
    restored.load(&new_views, 0, &mut Reader::new(&saved)).expect("just saved");
    check(&restored);
    assert!(restored.bytes() < index.bytes() / 2, "{} and {}", restored.bytes(), index.bytes());
    for prompt in [vec![8_999, 7], vec![8_998, 7], vec![8_997, 7], vec![1 << 40, 8, 9], vec![1 << 40, 8, 10]]
    {
        assert_eq!(depths(&index, &prompt, &views), depths(&restored, &prompt, &new_views));
    }
}

#[test]
fn a_prompt_larger_than_the_budget_is_stored_in_part() {
    let (_, mut index) = PrefixIndex::new(MIN_BUDGET).expect("address space");
    let view = index.add_view(None).expect("free");
    let prompt: Vec<u64> = (0..1_000_000).collect();
    for _ in 0..3 {
        index.insert(view, &blocks(&prompt), 0);
        check(&index);
        let depth = depths(&index, &prompt, &[view])[0];
        assert!(depth > 50_000, "{depth}");
    }
}

#[test]
fn uses_decay_and_part_where_prompts_part() {
    let (_, mut index) = PrefixIndex::new(MIN_BUDGET).expect("address space");
    let view = index.add_view(None).expect("free");
    let uses = |index: &Writer, prompt: &[u64], now_ms| {
        let segments = segments(index, prompt, now_ms);
        segments.iter().map(|segment| (segment.end_block, segment.uses)).collect::<Vec<_>>()
    };
    index.insert(view, &blocks(&[1, 2, 3, 4]), 0);
    index.insert(view, &blocks(&[1, 2]), 0);
    assert_eq!(uses(&index, &[1, 2, 3, 4], 0), [(2, 2.0), (4, 1.0)]);
    let later = uses(&index, &[1, 2, 3, 4], 10_000);
    assert!((later[0].1 - 2.0 / std::f32::consts::E).abs() < 1e-5);
}

#[test]
fn a_removed_view_is_gone_at_once_and_its_number_comes_back_clean() {
    let (_, mut index) = PrefixIndex::new(MIN_BUDGET).expect("address space");
    let old = index.add_view(None).expect("free");
    for number in 0..500 {
        index.insert(old, &blocks(&[number, 7, 8]), 0);
    }
    index.remove_view(old);
    assert_eq!(depths(&index, &[3, 7, 8], &[old]), [0]);
    assert_eq!(index.view_blocks(old), 0);
    index.insert(old, &blocks(&[3, 7, 8]), 0);
    let other = index.add_view(None).expect("free");
    for number in 0..500 {
        index.insert(other, &blocks(&[number, 9]), 0);
    }
    check(&index);
    for run in index.index.tree.all_runs(&index.space) {
        index.index.tree.run(run).shares(&index.index.tree.words).each(|share| {
            assert_eq!(usize::from(share.holder().view), other.index(), "what the old view held was swept");
        });
    }
    let again = index.add_view(None).expect("free");
    assert_eq!((again.index(), again == old), (old.index(), false));
    assert_eq!(depths(&index, &[3, 9], &[again, other]), [0, 2]);
}

#[test]
fn a_prompt_that_nobody_holds_any_more_has_no_history() {
    let (_, mut index) = PrefixIndex::new(MIN_BUDGET).expect("address space");
    let old = index.add_view(None).expect("free");
    // So much that the first insertion after the removal sweeps only a part of it.
    for number in 0..500 {
        index.insert(old, &blocks(&[number, 7, 8]), 0);
        index.insert(old, &blocks(&[number, 7, 8]), 0);
    }
    index.remove_view(old);
    assert_eq!(segments(&index, &[400, 7, 8], 0), []);
    let new = index.add_view(None).expect("free");
    index.insert(new, &blocks(&[400, 7, 8, 9]), 0);
    let uses: Vec<f32> = segments(&index, &[400, 7, 8, 9], 0).iter().map(|segment| segment.uses).collect();
    assert!(uses.iter().all(|&uses| uses == 1.0), "{uses:?}");
    check(&index);
}

#[test]
fn prompts_of_many_workers_come_and_go_and_the_budget_holds_as_many_as_before() {
    let (_, mut index) = PrefixIndex::new(MIN_BUDGET).expect("address space");
    let views: Vec<ViewId> = (0..9).map(|_| index.add_view(None).expect("free")).collect();
    let mut fill = |holders: usize, from: u64| {
        for first in from..from + 20_000 {
            for &view in &views[..holders] {
                index.insert(view, &blocks(&[first, first, first, first]), 0);
            }
        }
        index.blocks()
    };
    for holders in [4, 7, 9] {
        let (before, after) = (fill(holders, 0), fill(holders, 1 << 32));
        assert!(after > before * 9 / 10, "{holders} holders: {before} blocks, then {after}");
    }
}
