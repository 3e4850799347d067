//! What happens to an engine as a whole: it starts again, is another version, has limits, is shared with other penstocks;
//! and what is known of it passes to another predictor.

use super::{BackendPredictor, LEAST_FIRST_TOKENS};
use crate::predict::bursts::Bursts;
use crate::predict::front_end::FrontEnd;
use crate::predict::learned::Learned;
use crate::predict::limit_learner::LimitLearner;
use crate::predict::pace::Pace;
use crate::predict::prompts::Work;
use crate::predict::residual::Residual;
use crate::predict::share::EngineShare;

impl BackendPredictor {
    /// The engine has started again, maybe with other settings. The tickets of requests that it lost end one by one.
    pub fn restarted(&mut self) {
        self.learned_limits = LimitLearner::default();
        (self.knows_slots, self.knows_kv_tokens) = (false, false);
        self.use_learned_limits();
        (self.bursts, self.pace) = (Bursts::default(), Pace::default());
        self.front_end = FrontEnd::default();
        self.most_streams = 0.0;
        self.stall.forget();
        self.is_clean = false;
    }

    /// The engine is another version: what was learned of the last one is a first guess.
    pub fn version_changed(&mut self) {
        // The last version here says more than another backend.
        self.is_informed |= !self.is_little_known();
        self.restarted();
        self.doubt();
    }

    /// Starts with what was learned of the same model on another backend, where little was learned here. Where its first
    /// requests were sent by a guess that made it look slow, few would follow that show better.
    pub fn adopt(&mut self, other: &Learned) {
        if !self.is_little_known() {
            return;
        }
        self.is_informed = true;
        (self.steps, self.prefill) = (other.steps.clone(), other.prefill.clone());
        self.lengths = other.lengths.clone();
        self.doubt();
    }

    /// Whether so little was learned that what is known of another backend says more.
    pub fn is_little_known(&self) -> bool {
        !self.is_informed && self.residual.seen() < LEAST_FIRST_TOKENS
    }

    fn doubt(&mut self) {
        self.steps.doubt();
        self.prefill.doubt();
        self.residual = Residual::default();
        self.learned();
    }

    /// What was learned of the engine, for the next process.
    pub fn learned_state(&self) -> Learned {
        let Self { steps, prefill, lengths, residual, .. } = self;
        Learned::new(steps, prefill, lengths, residual, &self.learned_limits)
    }

    /// Continues with what another process has learned.
    pub fn restore(&mut self, learned: Learned) {
        self.learned_limits.found_before(learned.slots, learned.kv_tokens);
        self.use_learned_limits();
        (self.steps, self.prefill) = (learned.steps, learned.prefill);
        (self.lengths, self.residual) = (learned.lengths, learned.residual);
        self.learned();
    }

    /// What the engine reports of its limits; infinite where it does not.
    pub(super) fn set_limits(&mut self, slots: f64, kv_tokens: f64) {
        if slots.is_finite() {
            (self.limits.slots, self.knows_slots) = (slots, true);
        }
        if kv_tokens.is_finite() {
            (self.limits.kv_tokens, self.knows_kv_tokens) = (kv_tokens, true);
        }
    }

    /// What this penstock has there.
    pub fn own_share(&self) -> EngineShare {
        let (inside, outside) = (self.prompts.inside(), self.prompts.outside());
        EngineShare {
            waiting: self.waiting.into(),
            prompts: Work {
                tokens: inside.tokens + outside.tokens,
                time: inside.time + outside.time,
            },
            streams: self.streams.count(),
            context: self.streams.context(),
        }
    }

    /// Others report what they have there. Returns whether that is news.
    pub fn set_others(&mut self, reported: &EngineShare) -> bool {
        let counted = reported.counted(&self.others);
        std::mem::replace(&mut self.others, counted) != counted
    }

    /// What others have there.
    pub fn others(&self) -> &EngineShare {
        &self.others
    }
}
