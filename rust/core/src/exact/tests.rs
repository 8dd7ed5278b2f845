use std::collections::{BTreeMap, BTreeSet};

use proptest::prelude::*;

use super::*;

const BLOCK: u32 = 16;

/// Spells token `t` as the bytes that a test gave it.
struct Words(Vec<Vec<u8>>);

impl Spelling for Words {
    fn spell(&self, tokens: &[u32], bytes: &mut Vec<u8>) -> bool {
        let Some(words) = tokens.iter().map(|&token| self.0.get(token as usize)).collect::<Option<Vec<_>>>()
        else {
            return false;
        };
        words.into_iter().for_each(|word| bytes.extend_from_slice(word));
        true
    }
}

/// An index over blocks that are given as bytes: each is one token.
struct Fixture {
    index: ExactIndex,
    words: Words,
    /// The token of each handle.
    tokens: BTreeMap<u64, u32>,
    prepared: Prepared,
    found: ExactMatches,
}

impl Fixture {
    fn new() -> Self {
        Self {
            index: ExactIndex::new(3, 1 << 30),
            words: Words(Vec::new()),
            tokens: BTreeMap::new(),
            prepared: Prepared::default(),
            found: ExactMatches::default(),
        }
    }

    fn store(
        &mut self,
        view: ExactView,
        root: &str,
        parent: Option<u64>,
        blocks: &[(u64, &[u8])],
    ) -> Applied {
        let handles: Vec<Handle> = blocks.iter().map(|&(id, _)| Handle(id)).collect();
        let token = |&(id, bytes): &(u64, &[u8])| {
            *self.tokens.entry(id).or_insert_with(|| {
                self.words.0.push(bytes.to_vec());
                self.words.0.len() as u32 - 1
            })
        };
        let tokens: Vec<u32> = blocks.iter().map(token).collect();
        let stored = Stored {
            handles: &handles,
            parent: parent.map(Handle),
            tokens: &tokens,
            block_size: 1,
            root: Root::default().with("cache_salt", root.as_bytes()),
            extras: &[],
            medium: Medium::Gpu,
        };
        self.index.apply(view, &CacheEvent::Stored(stored), Some(&self.words), &mut self.prepared)
    }

    fn remove(&mut self, view: ExactView, id: u64) -> Applied {
        let event = CacheEvent::Removed { handles: &[Handle(id)], medium: Medium::Gpu };
        self.index.apply(view, &event, None, &mut self.prepared)
    }

    fn find(&mut self, root: &str, prompt: &[u8]) -> &ExactMatches {
        let root = Root::default().with("cache_salt", root.as_bytes());
        let prompt = ExactPrompt { bytes: prompt, root, ..ExactPrompt::default() };
        self.index.find(&prompt, &mut self.found);
        &self.found
    }

    fn depth(&mut self, view: ExactView, root: &str, prompt: &[u8]) -> u32 {
        self.find(root, prompt).tokens(view.index)
    }
}

/// A worker's cache as a plain map: handle to (parent, bytes), and which it holds.
#[derive(Debug, Default, Clone)]
struct Model {
    blocks: BTreeMap<u64, (Option<u64>, Vec<u8>)>,
    held: BTreeSet<u64>,
}

impl Model {
    fn store(&mut self, parent: Option<u64>, chain: &[(u64, Vec<u8>)]) {
        if parent.is_some_and(|parent| !self.held.contains(&parent)) {
            return;
        }
        let mut parent = parent;
        for (id, bytes) in chain {
            self.blocks.insert(*id, (parent, bytes.clone()));
            self.held.insert(*id);
            parent = Some(*id);
        }
    }

    /// Deepest chain of held blocks that spells a proper prefix of the prompt.
    fn depth(&self, prompt: &[u8]) -> u32 {
        fn below(model: &Model, parent: Option<u64>, rest: &[u8]) -> u32 {
            let children = model.held.iter().filter(|id| model.blocks[id].0 == parent);
            let depth = |id: &u64| {
                let bytes = &model.blocks[id].1;
                let fits = bytes.len() < rest.len() && rest.starts_with(bytes);
                if fits { 1 + below(model, Some(*id), &rest[bytes.len()..]) } else { 0 }
            };
            children.map(depth).max().unwrap_or(0)
        }
        below(self, None, prompt)
    }
}

#[test]
fn a_prompt_that_ends_with_a_block_does_not_have_it() {
    let mut fixture = Fixture::new();
    let view = fixture.index.add_view().unwrap();
    fixture.store(view, "", None, &[(1, b"once upon "), (2, b"a time")]);
    for (prompt, depth) in
        [("once upon a time,", 2), ("once upon a time", 1), ("once upon a tide", 1), ("", 0)]
    {
        assert_eq!(fixture.depth(view, "", prompt.as_bytes()), depth, "{prompt}");
    }
    assert_eq!(fixture.find("", b"once upon a time,").bytes, 16);
}

#[test]
fn tokens_match_tokens_and_nothing_else() {
    let mut fixture = Fixture::new();
    let view = fixture.index.add_view().unwrap();
    let tokens: Vec<u32> = (100..164).collect();
    let handles = [1, 2, 3, 4].map(Handle);
    let stored = Stored {
        handles: &handles,
        parent: None,
        tokens: &tokens,
        block_size: BLOCK,
        root: Root::default(),
        extras: &[0, 0, 77, 0],
        medium: Medium::Gpu,
    };
    let applied = fixture.index.apply(view, &CacheEvent::Stored(stored), None, &mut fixture.prepared);
    assert_eq!(applied, Applied { stored: 4, ..Applied::default() });
    let mut depth = |tokens: &[u32], is_tokens, extras| {
        let bytes = bytemuck::must_cast_slice(tokens);
        let prompt = ExactPrompt { bytes, root: Root::default(), is_tokens, extras };
        fixture.index.find(&prompt, &mut fixture.found);
        fixture.found.tokens(view.index)
    };
    assert_eq!(depth(&tokens, true, &[]), 32, "the third block has an image");
    assert_eq!(depth(&tokens, true, &[0, 0, 77]), 48, "the last token is computed");
    assert_eq!(depth(&[&tokens[..], &[5]].concat(), true, &[0, 0, 77]), 64);
    assert_eq!(depth(&tokens, true, &[0, 0, 78]), 32);
    assert_eq!(depth(&tokens, false, &[0, 0, 77]), 0, "text is no tokens");
}

#[test]
fn odd_events_are_refused_and_change_nothing() {
    let mut fixture = Fixture::new();
    let view = fixture.index.add_view().unwrap();
    let handles = [1, 2].map(Handle);
    let stored = Stored {
        handles: &handles,
        parent: None,
        tokens: &[1, 2, 3],
        block_size: 2,
        root: Root::default(),
        extras: &[],
        medium: Medium::Gpu,
    };
    let refused = Applied { refused: 2, ..Applied::default() };
    for stored in [stored, Stored { block_size: 0, ..stored }, Stored { tokens: &[], ..stored }] {
        let event = CacheEvent::Stored(stored);
        assert_eq!(fixture.index.apply(view, &event, None, &mut fixture.prepared), refused);
    }
    let unknown = Stored { tokens: &[1, 2, 3, 4], ..stored };
    let event = CacheEvent::Stored(unknown);
    let applied = fixture.index.apply(view, &event, Some(&fixture.words), &mut fixture.prepared);
    assert_eq!(applied, refused);
    assert_eq!(fixture.index.size().1, 0);
}

#[test]
fn blocks_without_a_parent_wait_for_it() {
    let mut fixture = Fixture::new();
    let view = fixture.index.add_view().unwrap();
    assert_eq!(fixture.store(view, "", Some(3), &[(4, b"four ")]).orphans, 1);
    assert_eq!(fixture.store(view, "", Some(1), &[(2, b"two "), (3, b"three ")]).orphans, 2);
    assert_eq!(fixture.depth(view, "", b"one two three four five"), 0);
    assert_eq!(fixture.store(view, "", None, &[(1, b"one ")]).stored, 4);
    assert_eq!(fixture.depth(view, "", b"one two three four five"), 4);
    // Too many are forgotten, the newest last.
    for parent in 0..2 * MAX_ORPHANS as u64 {
        fixture.store(view, "", Some(1000 + parent), &[(100_000 + parent, b"x")]);
    }
    let kept = fixture.index.tree.read().view(view).unwrap().orphan_blocks;
    assert!((1..=MAX_ORPHANS).contains(&kept), "{kept}");
}

#[test]
fn a_removed_view_is_gone_at_once_and_swept_later() {
    let mut fixture = Fixture::new();
    let [first, second] = [(); 2].map(|()| fixture.index.add_view().unwrap());
    let blocks: Vec<(u64, Vec<u8>)> = (0..3000u64).map(|id| (id, format!("{id} ").into_bytes())).collect();
    let borrowed: Vec<(u64, &[u8])> = blocks.iter().map(|(id, bytes)| (*id, &bytes[..])).collect();
    let prompt: Vec<u8> = blocks.iter().flat_map(|(_, bytes)| bytes).copied().collect();
    fixture.store(first, "", None, &borrowed);
    fixture.store(second, "", None, &borrowed[..10]);
    fixture.index.remove_view(first);
    assert_eq!((fixture.depth(first, "", &prompt), fixture.depth(second, "", &prompt)), (0, 10));
    let third = fixture.index.add_view().unwrap();
    assert_ne!(third, first, "its number is still in use");
    for id in 0..10 {
        fixture.remove(second, 5000 + id);
    }
    assert_eq!(fixture.index.size().1, 10);
    let again = fixture.index.add_view().unwrap();
    assert_eq!(again.index, first.index);
    assert_eq!(fixture.store(first, "", None, &[(1, b"0 ")]), Applied::default(), "the old name is no view");
    assert_eq!(fixture.depth(again, "", &prompt), 0);
}

#[test]
fn nothing_is_stored_beyond_the_budget_and_what_was_removed_makes_room() {
    let mut fixture = Fixture::new();
    fixture.index.budget = 1 << 20;
    let view = fixture.index.add_view().unwrap();
    let whole: Vec<(u64, Vec<u8>)> = (0..60_000u64).map(|id| (id, id.to_le_bytes().to_vec())).collect();
    let whole: Vec<(u64, &[u8])> = whole.iter().map(|(id, bytes)| (*id, &bytes[..])).collect();
    for round in 0..3 {
        let applied = fixture.store(view, "", None, &whole);
        assert_eq!(applied.stored + applied.refused, 60_000, "round {round}");
        assert!((10_000..30_000).contains(&applied.stored), "{applied:?}");
        assert!(fixture.index.size().0 < 3 << 20, "tables have room for as much again");
        assert_eq!(fixture.store(view, "", None, &[(70_000, b"more")]).refused, 1);
        for (id, _) in &whole {
            fixture.remove(view, *id);
        }
    }
}

#[test]
fn equal_blocks_under_ever_new_handles_are_refused() {
    let mut fixture = Fixture::new();
    let view = fixture.index.add_view().unwrap();
    let handles: Vec<Handle> = (0..50_000).map(Handle).collect();
    for handle in &handles {
        let stored = Stored {
            handles: std::slice::from_ref(handle),
            parent: None,
            tokens: &[7],
            block_size: 1,
            root: Root::default(),
            extras: &[],
            medium: Medium::Gpu,
        };
        let event = CacheEvent::Stored(stored);
        let applied = fixture.index.apply(view, &event, None, &mut fixture.prepared);
        assert_eq!((applied.stored, applied.refused), if handle.0 < 8 { (1, 0) } else { (0, 1) });
    }
}

#[test]
fn a_view_has_blocks_of_one_size() {
    let mut fixture = Fixture::new();
    let view = fixture.index.add_view().unwrap();
    let tokens: Vec<u32> = (0..64).collect();
    let stored = |handles, tokens, block_size| {
        CacheEvent::Stored(Stored {
            handles,
            parent: None,
            tokens,
            block_size,
            root: Root::default(),
            extras: &[],
            medium: Medium::Gpu,
        })
    };
    let handles = [1, 2, 3, 4].map(Handle);
    fixture.index.apply(view, &stored(&handles, &tokens, 16), None, &mut fixture.prepared);
    let applied = fixture.index.apply(view, &stored(&[Handle(9)], &tokens, 64), None, &mut fixture.prepared);
    assert_eq!(applied, Applied { refused: 1, ..Applied::default() });
    let prompt =
        ExactPrompt { bytes: bytemuck::must_cast_slice(&tokens), is_tokens: true, ..ExactPrompt::default() };
    fixture.index.find(&prompt, &mut fixture.found);
    assert_eq!(fixture.found.tokens(view.index), 48);
    for handle in &handles {
        fixture.remove(view, handle.0);
    }
    let applied = fixture.index.apply(view, &stored(&[Handle(9)], &tokens, 64), None, &mut fixture.prepared);
    assert_eq!(applied.stored, 1, "an empty view may change its size");
}

#[test]
fn segments_tell_how_many_hold_each_part() {
    let mut fixture = Fixture::new();
    let views = [(); 3].map(|()| fixture.index.add_view().unwrap());
    let blocks: [(u64, &[u8]); 4] = [(1, b"a "), (2, b"b "), (3, b"c "), (4, b"d ")];
    for (view, len) in views.into_iter().zip([1, 3, 4]) {
        fixture.store(view, "", None, &blocks[..len]);
    }
    let found = fixture.find("", b"a b c d e");
    let segments: Vec<_> = found.segments.iter().map(|part| (part.end_tokens, part.copies)).collect();
    assert_eq!(segments, [(1, 3), (3, 2), (4, 1)]);
    assert_eq!((found.tokens, found.bytes, found.holders().count()), (4, 8, 3));
}

#[test]
fn a_block_is_gone_when_no_medium_has_it() {
    let mut fixture = Fixture::new();
    let view = fixture.index.add_view().unwrap();
    let stored = |medium| {
        CacheEvent::Stored(Stored {
            handles: &[Handle(1)],
            parent: None,
            tokens: &[7],
            block_size: 1,
            root: Root::default(),
            extras: &[],
            medium,
        })
    };
    let prompt = ExactPrompt {
        bytes: bytemuck::must_cast_slice(&[7u32, 8]),
        is_tokens: true,
        ..ExactPrompt::default()
    };
    let removed = |medium| CacheEvent::Removed { handles: &[Handle(1)], medium };
    for (event, held) in [
        (stored(Medium::Gpu), 1),
        (stored(Medium::Cpu), 1),
        (removed(Medium::Gpu), 1),
        (removed(Medium::Disk), 1),
        (removed(Medium::Cpu), 0),
    ] {
        fixture.index.apply(view, &event, None, &mut fixture.prepared);
        fixture.index.find(&prompt, &mut fixture.found);
        assert_eq!(fixture.found.tokens(view.index), held, "{event:?}");
    }
}

/// Steps over few words, of which several begin alike, so that chains branch, meet again and backtrack.
#[derive(Debug, Clone)]
enum Step {
    Store { view: usize, salt: u8, parent: u8, words: Vec<(u8, u8)> },
    Remove { view: usize, id: u8 },
    Reset { view: usize },
}

const WORDS: [&str; 7] = ["a", "ab", "abab", "b", "ba", "abb", "ababab"];

fn step() -> impl Strategy<Value = Step> {
    let word = (0..WORDS.len() as u8, 0..2u8);
    let words = proptest::collection::vec(word, 1..5);
    prop_oneof![
        6 => (0..3usize, 0..2u8, any::<u8>(), words)
            .prop_map(|(view, salt, parent, words)| Step::Store { view, salt, parent, words }),
        3 => (0..3usize, any::<u8>()).prop_map(|(view, id)| Step::Remove { view, id }),
        1 => (0..3usize).prop_map(|view| Step::Reset { view }),
    ]
}

proptest! {
    #[test]
    fn finds_what_a_plain_model_finds(
        steps in proptest::collection::vec(step(), 1..30),
        prompts in proptest::collection::vec("[ab]{0,14}", 1..4),
    ) {
        let mut fixture = Fixture::new();
        let mut views = [(); 3].map(|()| fixture.index.add_view().unwrap());
        let mut models: [[Model; 2]; 3] = Default::default();
        // Handles are those of the whole chain, as an engine's are: equal chains, equal handles. `variant` stands for other
        // tokens of the same bytes.
        let handle = |salt: u8, parent: Option<u64>, word: u8, variant: u8| {
            combine(combine(parent.unwrap_or(u64::from(salt)), u64::from(word)), u64::from(variant))
        };
        for step in steps {
            match step {
                Step::Store { view, salt, parent, words } => {
                    let model = &mut models[view][usize::from(salt)];
                    let known: Vec<u64> = model.held.iter().copied().collect();
                    let parent = known.get(usize::from(parent) % 8).copied();
                    let mut last = parent;
                    let chain: Vec<(u64, Vec<u8>)> = words.iter().map(|&(word, variant)| {
                        last = Some(handle(salt, last, word, variant));
                        (last.unwrap(), WORDS[usize::from(word)].as_bytes().to_vec())
                    }).collect();
                    model.store(parent, &chain);
                    let blocks: Vec<(u64, &[u8])> = chain.iter().map(|(id, bytes)| (*id, &bytes[..])).collect();
                    fixture.store(views[view], &salt.to_string(), parent, &blocks);
                }
                Step::Remove { view, id } => {
                    for model in &mut models[view] {
                        let known: Vec<u64> = model.held.iter().copied().collect();
                        if let Some(&id) = known.get(usize::from(id) % known.len().max(1)) {
                            model.held.remove(&id);
                            fixture.remove(views[view], id);
                        }
                    }
                }
                Step::Reset { view } => {
                    fixture.index.remove_view(views[view]);
                    views[view] = fixture.index.add_view().unwrap();
                    models[view] = Default::default();
                }
            }
            for prompt in &prompts {
                for salt in 0..2u8 {
                    for (view, model) in views.iter().zip(&models) {
                        let expected = model[usize::from(salt)].depth(prompt.as_bytes());
                        let depth = fixture.depth(*view, &salt.to_string(), prompt.as_bytes());
                        prop_assert_eq!(depth, expected, "{} {}", prompt, salt);
                    }
                }
            }
            let held: usize = models.iter().flatten().map(|model| model.held.len()).sum();
            let views_hold: u64 = views.iter().map(|&view| fixture.index.view_blocks(view)).sum();
            prop_assert_eq!(views_hold, held as u64);
        }
    }
}
