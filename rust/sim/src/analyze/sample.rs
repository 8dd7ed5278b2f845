//! Whole prompts of some requests, each request with the same probability, in a fixed number of bytes.
//!
//! Every request draws a number; those below a threshold are kept. When they take too much room, the threshold is halved and
//! who is above it is dropped. So what is true of the sample is true of all, times [`Sample::scale`].

use trunkline_core::Root;

use crate::des::Rng;
use crate::log::LoggedRequest;

/// Longer prompts are cut: what diverges too early does so before.
const MAX_PROMPT_BYTES: usize = 1 << 16;

/// A prompt that was kept.
#[derive(Debug, Clone)]
pub(super) struct Sampled {
    draw: f64,
    pub(super) root: Root,
    /// The text, cut if it was longer than 64 KiB.
    pub(super) text: Vec<u8>,
    /// Bytes at its beginning that are tools.
    pub(super) tools_bytes: usize,
    /// Bytes at its beginning that an endless cache had.
    pub(super) hit_bytes: usize,
}

/// The sample. Memory: its budget.
#[derive(Debug)]
pub(super) struct Sample {
    budget_bytes: usize,
    bytes: usize,
    threshold: f64,
    rng: Rng,
    kept: Vec<Sampled>,
}

impl Sample {
    pub(super) fn new(budget_bytes: usize) -> Self {
        Self { budget_bytes, bytes: 0, threshold: 1.0, rng: Rng::new(1, 11), kept: Vec::new() }
    }

    /// Takes a request, of which an endless cache had the first `hit_bytes`, or leaves it out.
    pub(super) fn request(&mut self, request: &LoggedRequest, hit_bytes: usize) {
        let draw = self.rng.unit();
        if request.is_tokens || draw >= self.threshold {
            return;
        }
        let text = request.prompt[..request.prompt.len().min(MAX_PROMPT_BYTES)].to_vec();
        self.bytes += text.len();
        let tools_bytes = request.tools_bytes.min(text.len());
        self.kept.push(Sampled { draw, root: request.root, text, tools_bytes, hit_bytes });
        while self.bytes > self.budget_bytes {
            self.threshold /= 2.0;
            self.kept.retain(|sampled| sampled.draw < self.threshold);
            self.bytes = self.kept.iter().map(|sampled| sampled.text.len()).sum();
        }
    }

    /// Requests that each of those kept stands for.
    pub(super) fn scale(&self) -> f64 {
        1.0 / self.threshold
    }

    /// Those kept, in order of arrival.
    pub(super) fn kept(&self) -> &[Sampled] {
        &self.kept
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_budget_is_kept_and_the_scale_says_for_how_many_each_stands() {
        let mut sample = Sample::new(20_000);
        let request = LoggedRequest { prompt: vec![b'x'; 100], ..LoggedRequest::default() };
        for _ in 0..10_000 {
            sample.request(&request, 0);
            assert!(sample.bytes <= 20_000);
        }
        let estimate = sample.kept().len() as f64 * sample.scale();
        assert!((estimate / 10_000.0 - 1.0).abs() < 0.3, "{estimate}");
        // Longer than the budget: nothing is kept, and nothing breaks.
        sample.request(&LoggedRequest { prompt: vec![b'x'; 30_000], ..LoggedRequest::default() }, 0);
        assert!(sample.bytes <= 20_000);
    }
}
