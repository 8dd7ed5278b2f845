//! Prompt advice: where prompts of one template diverge too early, and what it costs.
//!
//! The prompts of a sample are put together by what they share wherever it stands (`templates`). A template whose stable text goes on
//! behind something that varies could share more if that came last. What would be saved is, of each prompt, its stable
//! text behind the first gap that an endless cache did not have, except for the first prompt of the template. Then two prompts are
//! compared byte by byte to see what differs, and findings of the same kind in the same place are put together.

mod chunks;
mod templates;
mod vary;

use std::collections::HashMap;

pub use vary::Kind;

use self::chunks::Chunk;
use self::templates::{Member, Template, distinct, templates};
use self::vary::{is_same_tools, kind_of};
use super::sample::Sample;

/// Prompts of a template that are compared with another one each.
const COMPARED: usize = 48;
/// Others that each of them is compared with.
const OTHERS: usize = 6;
/// Stable text behind the first gap that is worth a word, per prompt: 64 tokens.
const MIN_SHARED_BYTES: usize = 256;
/// Equal text behind a difference that shows where two prompts meet again.
const MEETS_BYTES: usize = 48;
/// Differences that begin so close to each other begin in one place: two names may begin alike.
const SAME_PLACE_BYTES: usize = 32;
/// Context that tells places apart, and context that is shown.
const PLACE_BYTES: usize = 16;
const SHOWN_BYTES: usize = 72;
/// Share of text out of order that makes it reordered.
const OUT_OF_ORDER: f64 = 0.1;

/// Bytes of JSON in which there is a key.
const KEYS_EVERY: usize = 64;

/// A place where prompts diverge too early.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Advice {
    pub(super) kind: Kind,
    /// Templates that it was found in, of those sampled.
    pub(super) templates: usize,
    /// Requests that it concerns, estimated.
    pub(super) requests: f64,
    /// Where the prompts diverge; the median.
    pub(super) at_bytes: usize,
    /// Length of what varies; the median.
    pub(super) varying_bytes: usize,
    /// Shared text behind it that is computed anew each time; the mean.
    pub(super) shared_bytes: f64,
    /// What would be saved of all requests.
    pub(super) saved_bytes: f64,
    pub(super) example: Example,
}

/// What differs between two prompts, with what stands around it.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct Example {
    pub(super) before: String,
    pub(super) values: [String; 2],
    pub(super) after: String,
}

/// A difference of two prompts.
struct Difference<'a> {
    /// What it is, if that is known without the text of both.
    kind: Option<Kind>,
    texts: [&'a [u8]; 2],
    /// Where it begins in both, and where it ends in each.
    start: usize,
    ends: [usize; 2],
    /// Shared text behind it that was computed anew.
    shared_bytes: usize,
}

/// What makes differences one finding: their kind, and the text before them.
type Place = (Kind, String);

/// Advice that is still being put together.
struct Finding {
    advice: Advice,
    /// Where differences begin, and how long they are.
    at: Vec<usize>,
    lengths: Vec<usize>,
}

/// The advice that a sample gives, largest saving first. `at_least` bytes must be saved by each.
pub(super) fn advice(sample: &Sample, at_least: f64) -> Vec<Advice> {
    let mut found: HashMap<Place, Finding> = HashMap::new();
    for template in templates(sample.kept()) {
        weigh(&template, sample.scale(), &mut found);
    }
    let mut found: Vec<Advice> =
        (found.into_values().map(Finding::settled)).filter(|advice| advice.saved_bytes >= at_least).collect();
    let place = |advice: &Advice| (advice.kind, place_of(advice.kind, &advice.example));
    found.sort_by(|a, b| b.saved_bytes.total_cmp(&a.saved_bytes).then_with(|| place(a).cmp(&place(b))));
    found
}

/// Adds what one template shows to what was found.
fn weigh(template: &Template<'_>, scale: f64, found: &mut HashMap<Place, Finding>) {
    let costs: Vec<usize> = template.members.iter().map(|member| rough_cost(template, member)).collect();
    let concerned: Vec<usize> = (0..costs.len()).filter(|&at| costs[at] >= MIN_SHARED_BYTES).collect();
    let step = concerned.len().div_ceil(COMPARED).max(1);
    let compared = concerned.iter().step_by(step);
    let (costs_compared, differences): (Vec<usize>, Vec<Difference<'_>>) =
        compared.filter_map(|&at| Some((costs[at], differing(template, at)?))).unzip();
    let Some(first) = differences.iter().map(|difference| difference.start).min() else { return };
    // Costs of all, corrected by those that were looked at closely.
    let rough: usize = concerned.iter().map(|&at| costs[at]).sum();
    let close: usize = differences.iter().map(|difference| difference.shared_bytes).sum();
    let saved = rough as f64 * close as f64 / costs_compared.iter().sum::<usize>() as f64 * scale;
    // The first prompt of a template is always computed.
    let saved = saved * (1.0 - 1.0 / (template.members.len() as f64 * scale));
    let share = 1.0 / differences.len() as f64;
    let mut places: Vec<Place> = Vec::new();
    for mut difference in differences {
        if difference.start - first <= SAME_PLACE_BYTES {
            difference.start = first;
        }
        let (kind, example) = (difference.kind(), difference.example());
        let place = (kind, place_of(kind, &example));
        let finding = found.entry(place.clone()).or_insert_with(|| Finding::new(kind, example));
        finding.advice.requests += concerned.len() as f64 * scale * share;
        finding.advice.saved_bytes += saved * share;
        finding.at.push(difference.start);
        finding.lengths.push(difference.ends[0] - difference.start);
        if !places.contains(&place) {
            finding.advice.templates += 1;
            places.push(place);
        }
    }
}

/// What makes two differences one finding: for values the text before them, for order and omissions the kind alone.
fn place_of(kind: Kind, example: &Example) -> String {
    match kind {
        Kind::Timestamp | Kind::Id | Kind::Number | Kind::Name | Kind::Text => {
            let mut before: Vec<char> = example.before.chars().rev().take(PLACE_BYTES).collect();
            before.reverse();
            before.into_iter().collect()
        }
        Kind::ToolsOrder | Kind::KeysOrder | Kind::ItemsOrder | Kind::Omitted => String::new(),
    }
}

/// Stable text of a prompt behind its first gap, which an endless cache did not have; in whole chunks.
fn rough_cost(template: &Template<'_>, member: &Member<'_>) -> usize {
    let gap =
        member.chunks.iter().position(|chunk| !template.is_stable(chunk)).unwrap_or(member.chunks.len());
    distinct(&member.chunks)
        .filter(|chunk| chunk.start >= member.sampled.hit_bytes && template.is_stable(chunk))
        .filter(|chunk| member.chunks.get(gap).is_some_and(|gap| chunk.start > gap.start))
        .map(|chunk| chunk.bytes())
        .sum()
}

/// How a prompt differs from others of its template, from the one that parts first; `None` if it does not differ, or never
/// meets them again.
fn differing<'a>(template: &Template<'a>, at: usize) -> Option<Difference<'a>> {
    let others = template.members.len();
    let step = (others / OTHERS).max(1);
    (1..others)
        .step_by(step)
        .filter_map(|away| compare(template, &template.members[at], &template.members[(at + away) % others]))
        .min_by_key(|difference| difference.start)
}

fn compare<'a>(template: &Template<'a>, one: &Member<'a>, other: &Member<'a>) -> Option<Difference<'a>> {
    let (a, b) = (one.sampled.text.as_slice(), other.sampled.text.as_slice());
    let at = common(a.iter(), b.iter());
    let missed = at.max(one.sampled.hit_bytes);
    let both: Vec<(Chunk, Chunk)> = distinct(&one.chunks)
        .filter(|chunk| chunk.start >= at && template.is_stable(chunk))
        .filter_map(|chunk| {
            let met = other.chunks.iter().find(|met| met.hash == chunk.hash && met.start >= at)?;
            Some((chunk, *met))
        })
        .collect();
    let (last, last_met) = both.last()?;
    let end = last.end + common(a[last.end..].iter(), b[last_met.end..].iter());
    let found =
        |kind, start, ends, shared_bytes| Some(Difference { kind, texts: [a, b], start, ends, shared_bytes });
    let tools = [one.sampled.tools_bytes, other.sampled.tools_bytes];
    if at < tools[0].min(tools[1]) && is_same_tools(&a[..tools[0]], &b[..tools[1]]) {
        return found(Some(Kind::ToolsOrder), at, tools, end.saturating_sub(missed));
    }
    let (chunk, met) = both
        .iter()
        .find(|(chunk, met)| common(a[chunk.start..].iter(), b[met.start..].iter()) >= MEETS_BYTES)?;
    if is_out_of_order(&both) {
        let kind = if has_keys(&a[at..]) { Kind::KeysOrder } else { Kind::ItemsOrder };
        return found(Some(kind), at, [chunk.start, met.start], end.saturating_sub(missed));
    }
    // What both have before they meet is no difference.
    let back = common(a[at..chunk.start].iter().rev(), b[at..met.start].iter().rev());
    let chunks = both.iter().map(|(chunk, _)| chunk).filter(|chunk| chunk.start >= missed);
    let shared_bytes = back + chunks.map(Chunk::bytes).sum::<usize>() + end - last.end;
    let (start, tail) = widened(a, b, at, [chunk.start - back, met.start - back]);
    found(None, start, [chunk.start - back + tail, met.start - back + tail], shared_bytes)
}

/// Leading elements that two sequences have in common.
fn common<'a>(a: impl Iterator<Item = &'a u8>, b: impl Iterator<Item = &'a u8>) -> usize {
    a.zip(b).take_while(|(a, b)| a == b).count()
}

/// Where whole words begin and end around a difference: its start, and bytes behind its ends.
fn widened(a: &[u8], b: &[u8], at: usize, ends: [usize; 2]) -> (usize, usize) {
    let is_word = |byte: u8| byte.is_ascii_alphanumeric() || byte >= 0x80 || b"-:._@/+".contains(&byte);
    let start = a[..at].iter().rposition(|&byte| !is_word(byte)).map_or(0, |before| before + 1);
    let behind = a[ends[0]..].iter().zip(&b[ends[1]..]);
    (start, behind.take_while(|(a, b)| a == b && is_word(**a)).count())
}

/// Whether chunks that two prompts share stand in another order in the second one.
fn is_out_of_order(both: &[(Chunk, Chunk)]) -> bool {
    let (mut furthest, mut late, mut all) = (0, 0, 0);
    for (chunk, met) in both {
        all += chunk.bytes();
        if met.start < furthest {
            late += chunk.bytes();
        }
        furthest = furthest.max(met.start);
    }
    late as f64 > OUT_OF_ORDER * all as f64
}

/// Whether a text begins as JSON with keys does.
fn has_keys(text: &[u8]) -> bool {
    let start = String::from_utf8_lossy(&text[..text.len().min(8 * KEYS_EVERY)]);
    start.matches("\":").count() * KEYS_EVERY >= start.len()
}

impl Difference<'_> {
    fn values(&self) -> [&[u8]; 2] {
        [0, 1].map(|which| &self.texts[which][self.start..self.ends[which]])
    }

    fn kind(&self) -> Kind {
        self.kind.unwrap_or_else(|| {
            let [a, b] = self.values().map(String::from_utf8_lossy);
            kind_of(&a, &b)
        })
    }

    fn example(&self) -> Example {
        let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
        let first = |bytes: &[u8]| text(&bytes[..bytes.len().min(SHOWN_BYTES)]);
        let before = &self.texts[0][..self.start];
        Example {
            before: text(&before[before.len().saturating_sub(SHOWN_BYTES)..]),
            values: self.values().map(first),
            after: first(&self.texts[0][self.ends[0]..]),
        }
    }
}

impl Finding {
    fn new(kind: Kind, example: Example) -> Self {
        let advice = Advice {
            kind,
            templates: 0,
            requests: 0.0,
            at_bytes: 0,
            varying_bytes: 0,
            shared_bytes: 0.0,
            saved_bytes: 0.0,
            example,
        };
        Self { advice, at: Vec::new(), lengths: Vec::new() }
    }

    fn settled(mut self) -> Advice {
        let median = |mut values: Vec<usize>| {
            values.sort_unstable();
            values[values.len() / 2]
        };
        self.advice.at_bytes = median(self.at);
        self.advice.varying_bytes = median(self.lengths);
        self.advice.shared_bytes = self.advice.saved_bytes / self.advice.requests.max(1.0);
        self.advice
    }
}

#[cfg(test)]
mod tests;
