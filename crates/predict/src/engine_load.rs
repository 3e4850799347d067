//! The load of one penstock at an engine that its peers use, too.

use super::prompts::PromptWork;

/// The rate at which the counted load of peers follows each report: within a few seconds. Requests
/// that end sooner are gone when a decision reads the report, and all penstocks would send at once
/// where none was reported.
const SMOOTHING: f64 = 0.1;
/// The part of their prompts that is left when a decision reads the report. In simulations of 2 and
/// 4 penstocks predictions are off by 2 to 10 points more if all of it counts.
const REMAINING_SHARE: f64 = 0.5;

/// The load of one penstock, or of several together, at an engine.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub struct EngineLoad {
    /// The number of requests without a first token.
    pub waiting_count: f64,
    /// Their prompts.
    pub prompt_work: PromptWork,
    /// The number of streams.
    pub stream_count: f64,
    /// The tokens in the contexts of the streams.
    pub context_tokens: f64,
}

impl EngineLoad {
    /// Adds the load of a peer.
    pub fn add(&mut self, other: &Self) {
        self.waiting_count += other.waiting_count;
        self.prompt_work.tokens += other.prompt_work.tokens;
        self.prompt_work.time_us += other.prompt_work.time_us;
        self.stream_count += other.stream_count;
        self.context_tokens += other.context_tokens;
    }

    /// Returns the load of peers that is counted after they have reported `self`, if `before` was
    /// counted until then.
    pub(super) fn smoothed(&self, before: &Self) -> Self {
        // At once: a smoothed value would approach zero and never reach it.
        if *self == Self::default() {
            return *self;
        }
        let prompt_work = PromptWork {
            tokens: follow(before.prompt_work.tokens, self.prompt_work.tokens * REMAINING_SHARE),
            time_us: follow(before.prompt_work.time_us, self.prompt_work.time_us * REMAINING_SHARE),
        };
        Self {
            waiting_count: follow(before.waiting_count, self.waiting_count),
            prompt_work,
            stream_count: follow(before.stream_count, self.stream_count),
            context_tokens: follow(before.context_tokens, self.context_tokens),
        }
    }
}

/// Returns the amount that is counted after a report, in its unit.
fn follow(counted_amount: f64, reported_amount: f64) -> f64 {
    counted_amount + SMOOTHING * (reported_amount - counted_amount)
}

/// The part of a wait that unreported requests of peers may explain, in microseconds: two intervals
/// of reports.
pub(super) const MAX_UNREPORTED_US: f64 = 400_000.0;
