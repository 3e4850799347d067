//! The load of one penstock at an engine that its peers use, too.

use super::prompts::Work;

/// The rate at which the counted load of peers follows each report: within a few seconds. Requests
/// that end sooner are gone when a decision reads the report, and all penstocks would send at once
/// where none was reported.
const FOLLOWED: f64 = 0.1;
/// The part of their prompts that is left when a decision reads the report. In simulations of 2 and
/// 4 penstocks predictions are off by 2 to 10 points more if all of it counts.
const LEFT: f64 = 0.5;

/// The load of one penstock, or of several together, at an engine.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub struct EngineShare {
    /// The number of requests without a first token.
    pub waiting: f64,
    /// Their prompts.
    pub prompts: Work,
    /// The number of streams.
    pub streams: f64,
    /// The tokens in the contexts of the streams.
    pub context: f64,
}

impl EngineShare {
    /// Adds the load of a peer.
    pub fn add(&mut self, other: &Self) {
        self.waiting += other.waiting;
        self.prompts.tokens += other.prompts.tokens;
        self.prompts.time += other.prompts.time;
        self.streams += other.streams;
        self.context += other.context;
    }

    /// Returns the load of peers that is counted after they have reported `self`, if `before` was
    /// counted until then.
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

/// The part of a wait that unreported requests of peers may explain, in microseconds: two intervals
/// of reports.
pub(super) const UNSEEN: f64 = 400_000.0;
