//! Readers of traces and logs. They take the text of a file, and read on past lines that make no sense: those are counted and
//! named ([`Skipped`]).

mod agentic;
mod log;
mod mooncake;

use std::collections::HashMap;
use std::hash::Hash;

use super::{Workload, WorkloadBuilder};
use crate::error::Error;

pub use agentic::{AgenticOptions, agentic};
pub(crate) use log::{DEFAULT_RATE_RPS, LogWorkload};
pub use log::{LogOptions, request_log};
pub use mooncake::{MooncakeOptions, mooncake};

/// Lines of which the numbers are kept.
const NAMED: usize = 100;

/// Lines that were left out.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Skipped {
    /// How many.
    pub lines: usize,
    /// The numbers of the first hundred, from 1, each with what is wrong.
    pub named: Vec<(usize, String)>,
}

impl Skipped {
    fn add(&mut self, line: usize, problem: impl Into<String>) {
        self.lines += 1;
        if self.named.len() < NAMED {
            self.named.push((line, problem.into()));
        }
    }
}

/// What was read.
#[derive(Debug)]
pub struct Trace {
    /// The requests.
    pub workload: Workload,
    /// What was left out.
    pub skipped: Skipped,
}

impl Trace {
    fn of(builder: WorkloadBuilder, skipped: Skipped) -> Result<Self, Error> {
        if builder.is_empty() {
            let problem = match skipped.named.first() {
                Some((line, problem)) => format!("no request can be read; line {line}: {problem}"),
                None => "it is empty".to_owned(),
            };
            return Err(Error::Trace { line: 0, problem });
        }
        Ok(Self { workload: builder.build(), skipped })
    }
}

/// Gives every name a segment of its own.
struct Names<K>(HashMap<K, u32>);

impl<K: Hash + Eq> Names<K> {
    fn new() -> Self {
        Self(HashMap::new())
    }

    fn segment(&mut self, name: K, builder: &mut WorkloadBuilder) -> u32 {
        *self.0.entry(name).or_insert_with(|| builder.fresh())
    }
}
