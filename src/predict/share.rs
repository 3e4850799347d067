//! What one penstock has at an engine that others use, too.

use super::prompts::{MOST_SHARE, Work};

/// How far what is counted of others' prompts moves to what they report, at each report: prompts come and go faster.
const FOLLOWED: f64 = 0.3;
/// The part of these prompts that is left when a decision reads the report. Predictions of the preset `bursty` were 31 and
/// 46 % off with 2 and 4 penstocks, and 34 and 52 % where all of it counted.
const LEFT: f64 = 0.5;

/// What one penstock, or several together, have at an engine.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub struct EngineShare {
    /// Requests without a first token.
    pub waiting: f64,
    /// Their prompts.
    pub prompts: Work,
    /// The share of the time that prompts took lately, from 0 to 1.
    pub prefill_share: f64,
    /// Streams, and the tokens of their contexts.
    pub streams: f64,
    /// See `streams`.
    pub context: f64,
}

impl EngineShare {
    /// Adds what another one has.
    pub fn add(&mut self, other: &Self) {
        self.waiting += other.waiting;
        self.prompts.tokens += other.prompts.tokens;
        self.prompts.time += other.prompts.time;
        self.prefill_share = (self.prefill_share + other.prefill_share).min(MOST_SHARE);
        self.streams += other.streams;
        self.context += other.context;
    }

    /// What is counted of others after they have reported `self`, where `before` was.
    pub(super) fn counted(&self, before: &Self) -> Self {
        if *self == Self::default() {
            return *self;
        }
        let follow = |before: f64, reported: f64| before + FOLLOWED * (reported - before);
        let prompts = Work {
            tokens: follow(before.prompts.tokens, self.prompts.tokens * LEFT),
            time: follow(before.prompts.time, self.prompts.time * LEFT),
        };
        Self { waiting: follow(before.waiting, self.waiting), prompts, ..*self }
    }
}

/// How much work others may have sent that no report shows yet, in microseconds: two intervals of reports.
pub(super) const UNSEEN: f64 = 400_000.0;
