//! What one penstock has at an engine that others use, too.

use super::prompts::Work;

/// How far what is counted of others moves to what they report, at each report: within a few seconds. What passes sooner is
/// gone when a decision reads it, and all would go at once to where nothing was reported.
const FOLLOWED: f64 = 0.1;
/// The part of their prompts that is left when a decision reads the report. In simulations of 2 and 4 penstocks predictions are
/// off by 2 to 10 points more where all of it counts.
const LEFT: f64 = 0.5;

/// What one penstock, or several together, have at an engine.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub struct EngineShare {
    /// Requests without a first token.
    pub waiting: f64,
    /// Their prompts.
    pub prompts: Work,
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
        Self {
            waiting: follow(before.waiting, self.waiting),
            prompts,
            streams: follow(before.streams, self.streams),
            context: follow(before.context, self.context),
        }
    }
}

/// How much work others may have sent that no report shows yet, in microseconds: two intervals of reports.
pub(super) const UNSEEN: f64 = 400_000.0;
