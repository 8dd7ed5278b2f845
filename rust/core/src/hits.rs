//! What every worker is believed to hold of one prompt, in tokens: own views and events put together.

use crate::exact::ExactMatches;
use crate::fleet::Fleet;
use crate::index::{Matches, ViewId};
use crate::router::RouteRequest;
use crate::shared::{Length, Shared};
use crate::view::Known;
use crate::worker::WorkerId;

/// Worth of a token that has to be read back from the host's memory or from storage. Source: policy study, section 2.
const FAR_WORTH: f64 = 0.94;

/// A part of the prompt that equally many workers hold, as the policy sees it.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct Part {
    /// Tokens of the prompt up to its end.
    pub(crate) end_tokens: u32,
    /// Workers that hold some of it.
    pub(crate) copies: u32,
    /// Uses, decayed over 10 s.
    pub(crate) uses: f32,
}

/// What look-ups of one prompt found. `exact` is `None` where the request has no exact prompt: then own views count for all.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Hits<'a> {
    pub(crate) length: &'a Length,
    pub(crate) own: &'a Matches,
    pub(crate) exact: Option<&'a ExactMatches>,
}

impl<'a> Hits<'a> {
    /// What was found for this request.
    pub(crate) fn of(
        request: &RouteRequest<'_>,
        length: &'a Length,
        own: &'a Matches,
        exact: &'a ExactMatches,
    ) -> Self {
        Self { length, own, exact: request.exact.is_some().then_some(exact) }
    }

    /// Tokens that a worker is believed to hold. Cost: O(1).
    #[inline]
    pub(crate) fn tokens(&self, view: ViewId, known: Known) -> u32 {
        match (known, self.exact) {
            (Known::Own, _) | (Known::Events { .. }, None) => self.length.of_blocks(self.own.depth(view)),
            (Known::Nothing, _) => 0,
            (Known::Events { near, far }, Some(exact)) => {
                let near = exact.tokens(near.index);
                let far = far.map_or(0, |far| exact.tokens(far.index)).saturating_sub(near);
                let told = near + (FAR_WORTH * f64::from(far)) as u32;
                told.max(self.length.of_blocks(self.own.fresh(view)))
            }
        }
    }

    /// Tokens that a worker's events alone say it holds; `None` where they do not count.
    pub(crate) fn told(&self, known: Known) -> Option<u32> {
        match (known, self.exact) {
            (Known::Events { near, far }, Some(exact)) => {
                Some(exact.tokens(near.index).max(far.map_or(0, |far| exact.tokens(far.index))))
            }
            _ => None,
        }
    }

    /// Calls `visit` with each worker that holds anything, once, and its tokens.
    pub(crate) fn each(&self, fleet: &Fleet, shared: &Shared, mut visit: impl FnMut(WorkerId, u32)) {
        for (view, depth) in self.own.holders() {
            let Some(id) = shared.owner(view) else { continue };
            let tokens = if fleet.all_own() {
                self.length.of_blocks(depth)
            } else {
                let (view, known) = fleet.known(id);
                self.tokens(view, known)
            };
            if tokens > 0 {
                visit(id, tokens);
            }
        }
        let Some(exact) = self.exact else { return };
        let owners = shared.exact_owners();
        for (index, _) in exact.holders() {
            let Some(id) = owners.get(usize::from(index)).copied().flatten() else { continue };
            let (view, known) = fleet.known(id);
            let Known::Events { near, .. } = known else { continue };
            let was_visited = self.own.depth(view) > 0 || index != near.index && exact.tokens(near.index) > 0;
            let tokens = self.tokens(view, known);
            if !was_visited && tokens > 0 {
                visit(id, tokens);
            }
        }
    }

    /// The parts of the prompt: those that events tell where these reach deeper, with the uses of the own index.
    pub(crate) fn parts(&self, parts: &mut Vec<Part>) {
        parts.clear();
        let own = self.own.segments.iter().map(|segment| Part {
            end_tokens: self.length.of_blocks(segment.end_block),
            copies: segment.copies,
            uses: segment.uses,
        });
        let deepest_own = self.own.segments.last().map_or(0, |last| self.length.of_blocks(last.end_block));
        match self.exact.filter(|exact| exact.tokens > deepest_own) {
            None => parts.extend(own),
            Some(exact) => parts.extend(exact.segments.iter().map(|segment| {
                let uses = own.clone().find(|part| part.end_tokens >= segment.end_tokens);
                Part {
                    end_tokens: segment.end_tokens,
                    copies: segment.copies,
                    uses: uses.map_or(0.0, |part| part.uses),
                }
            })),
        }
    }
}
