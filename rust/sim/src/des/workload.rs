//! What is asked of a fleet: requests in sessions, each prompt a chain of segments.
//!
//! A *segment* is a number and a length of at most 512 tokens. Equal number, equal content *and* equal
//! prefix: generators and readers give a piece of text that follows another prefix another number. So what two prompts
//! share is their common leading segments.

use std::ops::Range;

use super::rng::mix;

/// Longest segment in tokens; longer pieces are cut. Source: the block of the Mooncake traces.
pub(crate) const MAX_SEGMENT: u32 = 512;

/// A piece of a prompt.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Segment {
    /// Its number, below [`Workload::segment_count`].
    pub id: u32,
    /// Its length, at least 1.
    pub tokens: u32,
}

impl Segment {
    /// Blocks of the engine's cache that it takes.
    pub(crate) fn blocks(self) -> u32 {
        self.tokens.div_ceil(super::profile::BLOCK_TOKENS)
    }
}

/// One request.
#[derive(Debug, Clone, PartialEq)]
pub struct Request {
    segments: Range<u32>,
    /// Length of its prompt.
    pub prompt_tokens: u32,
    /// Length of its answer, at least 1.
    pub output_tokens: u32,
    /// The number under which its answer stays cached, for the session's next prompt.
    pub answer: Option<u32>,
    /// When it arrives, if it is the first of its session.
    pub at_s: f64,
    /// How long after the previous answer's end it arrives, if it is not.
    pub think_s: f64,
    /// The session's next request.
    pub next: Option<u32>,
    /// What requests of one shared prefix have in common, to follow a prefix from worker to worker.
    pub group: u32,
}

/// Requests, in sessions.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Workload {
    segments: Vec<Segment>,
    requests: Vec<Request>,
    /// First requests of sessions, by arrival.
    heads: Vec<u32>,
    segment_count: u32,
}

impl Workload {
    /// All requests.
    #[must_use]
    pub fn requests(&self) -> &[Request] {
        &self.requests
    }

    /// The prompt of a request of this workload.
    #[must_use]
    pub fn prompt(&self, request: &Request) -> &[Segment] {
        &self.segments[request.segments.start as usize..request.segments.end as usize]
    }

    /// First requests of the sessions, in order of arrival.
    #[must_use]
    pub fn heads(&self) -> &[u32] {
        &self.heads
    }

    /// How many segments there are, answers included.
    #[must_use]
    pub fn segment_count(&self) -> u32 {
        self.segment_count
    }

    /// Multiplies the arrival times of sessions: 0.5 doubles the load.
    pub fn stretch(&mut self, factor: f64) {
        for request in &mut self.requests {
            request.at_s *= factor;
        }
    }

    /// Share of the prompt tokens that an endless cache would have served, in the order of arrival without queueing.
    #[must_use]
    pub fn ideal_hit_rate(&self) -> f64 {
        let mut order: Vec<(f64, u32)> = Vec::with_capacity(self.requests.len());
        for &head in &self.heads {
            let (mut at, mut next) = (self.requests[head as usize].at_s, Some(head));
            while let Some(number) = next {
                order.push((at, number));
                next = self.requests[number as usize].next;
                at += next.map_or(0.0, |next| self.requests[next as usize].think_s);
            }
        }
        order.sort_by(|a, b| a.0.total_cmp(&b.0).then(a.1.cmp(&b.1)));
        let mut seen = vec![false; self.segment_count as usize];
        let (mut hit, mut all) = (0u64, 0u64);
        for (_, number) in order {
            let request = &self.requests[number as usize];
            let prompt = self.prompt(request);
            let known = prompt.iter().take_while(|segment| seen[segment.id as usize]);
            hit += known.map(|segment| u64::from(segment.tokens)).sum::<u64>();
            all += u64::from(request.prompt_tokens);
            prompt.iter().for_each(|segment| seen[segment.id as usize] = true);
            if let Some(answer) = request.answer {
                seen[answer as usize] = true;
            }
        }
        if all == 0 { 0.0 } else { hit as f64 / all as f64 }
    }
}

/// A request to be added to a session.
#[derive(Debug, Clone, Copy)]
pub struct Turn<'a> {
    /// Its prompt, the whole history included. At least one token.
    pub prompt: &'a [Segment],
    /// Length of its answer.
    pub output_tokens: u32,
    /// Number of its answer as a segment.
    pub answer: Option<u32>,
    /// See [`Request::group`].
    pub group: u32,
}

/// Makes a [`Workload`] session by session.
#[derive(Debug, Default)]
pub struct WorkloadBuilder {
    workload: Workload,
}

impl WorkloadBuilder {
    /// A workload without requests.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// A segment that no prompt has yet.
    pub fn fresh(&mut self) -> u32 {
        self.workload.segment_count += 1;
        self.workload.segment_count - 1
    }

    /// The prompt of a request so far.
    pub(crate) fn prompt(&self, request: u32) -> &[Segment] {
        self.workload.prompt(&self.workload.requests[request as usize])
    }

    /// Says how long the answer to a request became; returns it as a segment, if it has one.
    pub(crate) fn answered(&mut self, request: u32, output_tokens: u32) -> Option<Segment> {
        let request = &mut self.workload.requests[request as usize];
        request.output_tokens = output_tokens.max(1);
        request.answer.map(|id| Segment { id, tokens: request.output_tokens })
    }

    /// Segments so far.
    pub(crate) fn segment_count(&self) -> u32 {
        self.workload.segment_count
    }

    /// Appends new text of this length to `prompt`, cut into segments.
    pub fn extend(&mut self, prompt: &mut Vec<Segment>, mut tokens: u32) {
        while tokens > 0 {
            let part = tokens.min(MAX_SEGMENT);
            prompt.push(Segment { id: self.fresh(), tokens: part });
            tokens -= part;
        }
    }

    /// Begins a session at `at_s`; returns its first request.
    pub fn begin(&mut self, at_s: f64, turn: &Turn<'_>) -> u32 {
        let number = self.push(turn, at_s, 0.0);
        self.workload.heads.push(number);
        number
    }

    /// Goes on with a session, `think_s` after the end of the answer to `previous`.
    pub fn follow(&mut self, previous: u32, think_s: f64, turn: &Turn<'_>) -> u32 {
        let number = self.push(turn, 0.0, think_s);
        self.workload.requests[previous as usize].next = Some(number);
        number
    }

    fn push(&mut self, turn: &Turn<'_>, at_s: f64, think_s: f64) -> u32 {
        let start = self.workload.segments.len() as u32;
        self.workload.segments.extend_from_slice(turn.prompt);
        self.workload.requests.push(Request {
            segments: start..self.workload.segments.len() as u32,
            prompt_tokens: turn.prompt.iter().map(|segment| segment.tokens).sum(),
            output_tokens: turn.output_tokens.max(1),
            answer: turn.answer,
            at_s,
            think_s,
            next: None,
            group: turn.group,
        });
        self.workload.requests.len() as u32 - 1
    }

    /// Requests so far.
    #[must_use]
    pub fn len(&self) -> usize {
        self.workload.requests.len()
    }

    /// Whether there is none.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.workload.requests.is_empty()
    }

    /// The workload, its sessions in order of arrival.
    #[must_use]
    pub fn build(mut self) -> Workload {
        let requests = &self.workload.requests;
        self.workload.heads.sort_by(|&a, &b| {
            requests[a as usize].at_s.total_cmp(&requests[b as usize].at_s).then(a.cmp(&b))
        });
        self.workload
    }
}

/// Writes the prompt as token ids: each segment has ids of its own, the same ones every time.
///
/// The ids of a segment are an arithmetic sequence that its number determines: two segments agree in a block with
/// probability 2^-64. Cost: one addition for each token.
pub(crate) fn spell(prompt: &[Segment], tokens: &mut Vec<u32>) {
    tokens.clear();
    for segment in prompt {
        let seed = mix(u64::from(segment.id) + 1);
        let (first, step) = (seed as u32, (seed >> 32) as u32 | 1);
        tokens.extend((0..segment.tokens).map(|at| first.wrapping_add(at.wrapping_mul(step))));
    }
}

/// The prompt as token ids, as the router gets them.
#[must_use]
pub fn spelled(prompt: &[Segment]) -> Vec<u32> {
    let mut tokens = Vec::new();
    spell(prompt, &mut tokens);
    tokens
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_endless_cache_serves_what_was_seen_before() {
        let mut builder = WorkloadBuilder::new();
        let (shared, answer) = (Segment { id: builder.fresh(), tokens: 100 }, builder.fresh());
        let own = Segment { id: builder.fresh(), tokens: 100 };
        let first = Turn { prompt: &[shared], output_tokens: 50, answer: Some(answer), group: 0 };
        let session = builder.begin(0.0, &first);
        let history = [shared, Segment { id: answer, tokens: 50 }, own];
        builder.follow(session, 1.0, &Turn { prompt: &history, output_tokens: 1, answer: None, group: 0 });
        let workload = builder.build();
        assert_eq!((workload.requests().len(), workload.heads().len()), (2, 1));
        assert!((workload.ideal_hit_rate() - 150.0 / 350.0).abs() < 1e-12);
    }

    #[test]
    fn segments_have_token_ids_of_their_own() {
        let (mut a, mut b) = (Vec::new(), Vec::new());
        spell(&[Segment { id: 1, tokens: 40 }, Segment { id: 2, tokens: 3 }], &mut a);
        spell(&[Segment { id: 1, tokens: 40 }, Segment { id: 3, tokens: 3 }], &mut b);
        assert_eq!((a.len(), &a[..40]), (43, &b[..40]));
        assert!(a[40..].iter().all(|id| !b[40..].contains(id)));
    }
}
