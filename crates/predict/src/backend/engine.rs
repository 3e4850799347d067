//! Events of a whole engine: a restart, another version, its limits, the load of peers; and the
//! transfer of learned state to another predictor.

use super::{BackendPredictor, LEAST_FIRST_TOKENS};
use crate::bursts::Bursts;
use crate::front_end::FrontEnd;
use crate::learned::Learned;
use crate::limit_learner::LimitLearner;
use crate::pace::Pace;
use crate::prompts::Work;
use crate::residual::Residual;
use crate::share::EngineShare;

impl BackendPredictor {
    /// Resets what a restart of the engine may have changed, such as its settings. The tickets of
    /// requests that it lost end one by one.
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

    /// Keeps what was learned of the last version of the engine as a prior for the new one.
    pub fn version_changed(&mut self) {
        // The last version here says more than another backend.
        self.is_informed |= !self.is_little_known();
        self.restarted();
        self.doubt();
    }

    /// Starts with the learned state of the same model on another backend, if little was learned
    /// here. A backend that looks slow by its first guess would get few requests that show better.
    pub fn adopt(&mut self, other: &Learned) {
        if !self.is_little_known() {
            return;
        }
        self.is_informed = true;
        (self.steps, self.prefill) = (other.steps.clone(), other.prefill.clone());
        self.lengths = other.lengths.clone();
        self.doubt();
    }

    /// Returns whether so little was learned here that the state of another backend says more.
    pub fn is_little_known(&self) -> bool {
        !self.is_informed && self.residual.seen() < LEAST_FIRST_TOKENS
    }

    fn doubt(&mut self) {
        self.steps.doubt();
        self.prefill.doubt();
        self.residual = Residual::default();
        self.learned();
    }

    /// Returns the learned state of the engine, for the next process.
    pub fn learned_state(&self) -> Learned {
        let Self { steps, prefill, lengths, residual, .. } = self;
        Learned::new(steps, prefill, lengths, residual, &self.learned_limits)
    }

    /// Continues with the learned state of another process.
    pub fn restore(&mut self, learned: Learned) {
        self.learned_limits.found_before(learned.slots, learned.kv_tokens);
        self.use_learned_limits();
        (self.steps, self.prefill) = (learned.steps, learned.prefill);
        (self.lengths, self.residual) = (learned.lengths, learned.residual);
        self.learned();
    }

    /// Takes the limits that the engine reports; infinite ones are not reported.
    pub(super) fn set_limits(&mut self, slots: f64, kv_tokens: f64) {
        if slots.is_finite() {
            (self.limits.slots, self.knows_slots) = (slots, true);
        }
        if kv_tokens.is_finite() {
            (self.limits.kv_tokens, self.knows_kv_tokens) = (kv_tokens, true);
        }
    }

    /// Returns the load of this penstock there.
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

    /// Takes the load that peers report. Returns whether this changes what is counted.
    pub fn set_others(&mut self, reported: &EngineShare) -> bool {
        let counted = reported.counted(&self.others);
        std::mem::replace(&mut self.others, counted) != counted
    }

    /// Returns the load of peers, as it is counted.
    pub fn others(&self) -> &EngineShare {
        &self.others
    }
}
