//! Requests that were made from one template: they share most of what recurs in them, wherever it stands.
//!
//! Each prompt joins the template whose first prompt it shares most with, if that is half of what recurs in either of them. What at
//! least 60 % of a template's prompts have is its *stable* text.

use std::collections::HashMap;
use std::hash::{DefaultHasher, Hash, Hasher};

use super::chunks::{Chunk, chunks};
use crate::analyze::ByName;
use crate::analyze::sample::Sampled;

/// Prompts with less recurring text belong to no template.
const MIN_RECURRING_BYTES: usize = 256;
/// Shared text that makes two prompts of one template, of what recurs in the one that has less.
const SHARED: f64 = 0.5;
/// Share of a template's prompts that have its stable text.
const STABLE: f64 = 0.6;
/// Share of a template's stable text that must be at home in it, and of the prompts with a chunk that make it so: examples or
/// documents drawn from a pool recur in many prompts and belong to none.
const AT_HOME: f64 = 0.5;
/// Templates that a chunk is looked for in.
const MAX_HOMES: usize = 32;

/// A sampled prompt and its chunks.
#[derive(Debug)]
pub(super) struct Member<'a> {
    pub(super) sampled: &'a Sampled,
    pub(super) chunks: Vec<Chunk>,
}

/// Prompts of one template.
#[derive(Debug)]
pub(super) struct Template<'a> {
    pub(super) members: Vec<Member<'a>>,
    /// Hashes of its stable chunks.
    stable: ByName<()>,
}

impl Template<'_> {
    pub(super) fn is_stable(&self, chunk: &Chunk) -> bool {
        self.stable.contains_key(&chunk.hash)
    }
}

/// The templates with at least two prompts. Cost: O(bytes), times 32 for text that very many templates share.
pub(super) fn templates(kept: &[Sampled]) -> Vec<Template<'_>> {
    let all: Vec<Member<'_>> =
        kept.iter().map(|sampled| Member { sampled, chunks: of_root(sampled) }).collect();
    let mut prompts_with: ByName<u32> = ByName::default();
    for member in &all {
        distinct(&member.chunks).for_each(|chunk| *prompts_with.entry(chunk.hash).or_default() += 1);
    }
    let mut templates: Vec<(Vec<Member<'_>>, usize)> = Vec::new();
    let mut homes: ByName<Vec<u32>> = ByName::default();
    for member in all {
        let recurring: Vec<Chunk> =
            distinct(&member.chunks).filter(|chunk| prompts_with[&chunk.hash] > 1).collect();
        let bytes: usize = recurring.iter().map(Chunk::bytes).sum();
        if bytes < MIN_RECURRING_BYTES {
            continue;
        }
        let mut shared: HashMap<u32, usize> = HashMap::new();
        for chunk in &recurring {
            for &home in homes.get(&chunk.hash).into_iter().flatten() {
                *shared.entry(home).or_default() += chunk.bytes();
            }
        }
        let best = shared.into_iter().max_by_key(|&(home, shared)| (shared, std::cmp::Reverse(home)));
        let fits = |&(home, shared): &(u32, usize)| {
            shared as f64 >= SHARED * bytes.min(templates[home as usize].1) as f64
        };
        match best.filter(fits) {
            Some((home, _)) => templates[home as usize].0.push(member),
            None => {
                for chunk in &recurring {
                    let homes = homes.entry(chunk.hash).or_default();
                    if homes.len() < MAX_HOMES {
                        homes.push(templates.len() as u32);
                    }
                }
                templates.push((vec![member], bytes));
            }
        }
    }
    let several = templates.into_iter().map(|(members, _)| members).filter(|members| members.len() > 1);
    several.filter_map(|members| settled(members, &prompts_with)).collect()
}

/// Chunks of a prompt; those of different roots are never alike.
fn of_root(sampled: &Sampled) -> Vec<Chunk> {
    let mut chunks = chunks(&sampled.text);
    let mut root = DefaultHasher::new();
    sampled.root.hash(&mut root);
    chunks.iter_mut().for_each(|chunk| chunk.hash ^= root.finish());
    chunks
}

/// The first chunk of each content.
pub(super) fn distinct(chunks: &[Chunk]) -> impl Iterator<Item = Chunk> {
    let mut seen: ByName<()> = ByName::default();
    chunks.iter().copied().filter(move |chunk| seen.insert(chunk.hash, ()).is_none())
}

/// The template of these prompts; `None` if they only have pieces in common that many others have as well.
fn settled<'a>(members: Vec<Member<'a>>, prompts_with: &ByName<u32>) -> Option<Template<'a>> {
    let mut with: ByName<(u32, usize)> = ByName::default();
    for chunk in members.iter().flat_map(|member| distinct(&member.chunks)) {
        with.entry(chunk.hash).or_insert((0, chunk.bytes())).0 += 1;
    }
    let enough = ((STABLE * members.len() as f64).ceil() as u32).max(2);
    with.retain(|_, (count, _)| *count >= enough);
    let bytes: usize = with.values().map(|&(_, bytes)| bytes).sum();
    let is_at_home = |hash: &u64, count: u32| f64::from(count) >= AT_HOME * f64::from(prompts_with[hash]);
    let at_home =
        with.iter().filter(|(hash, (count, _))| is_at_home(hash, *count)).map(|(_, &(_, bytes))| bytes);
    (at_home.sum::<usize>() as f64 >= AT_HOME * bytes as f64)
        .then(|| Template { members, stable: with.into_keys().map(|hash| (hash, ())).collect() })
}
