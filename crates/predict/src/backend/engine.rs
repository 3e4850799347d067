//! Events of a whole engine: a restart, another version, its limits, the load of peers; and the
//! transfer of learned state to another predictor.

use super::{BackendPredictor, MIN_FIRST_TOKENS};
use crate::bursts::Bursts;
use crate::engine_load::EngineLoad;
use crate::front_end::FrontEndLearner;
use crate::kv_sharing::KvSharing;
use crate::learned_state::LearnedState;
use crate::limit_learner::LimitLearner;
use crate::pace::PaceLearner;
use crate::pauses::PauseLearner;
use crate::prompts::PromptWork;
use crate::residual::Residual;
use crate::step_size::StepSizeLearner;

impl BackendPredictor {
    /// Resets what a restart of the engine may have changed, such as its settings. The tickets of
    /// requests that it lost end one by one.
    pub(crate) fn restarted(&mut self) {
        self.limit_learner = LimitLearner::default();
        self.step_size_learner = StepSizeLearner::new(self.limits.step_tokens);
        // The new process may have other limits: until it reports them, the learned ones count.
        (self.knows_slots, self.knows_kv_tokens) = (false, false);
        self.kv_sharing = KvSharing::default();
        self.use_learned_limits();
        (self.bursts, self.pace_learner) = (Bursts::default(), PaceLearner::default());
        self.pause_learner = PauseLearner::default();
        self.front_end_learner = FrontEndLearner::default();
        self.max_stream_count = 0.0;
        self.stall.forget();
        self.is_decode_only = false;
    }

    /// Keeps what was learned of the last version of the engine as a prior for the new one.
    pub(crate) fn version_changed(&mut self) {
        // The last version here says more than another backend.
        self.is_informed |= !self.is_little_known();
        self.restarted();
        self.demote_to_prior();
    }

    /// Starts with the learned state of the same model on another backend, if little was learned
    /// here. A backend that looks slow by its first guess would get few requests that show better.
    pub(crate) fn adopt(&mut self, other: &LearnedState) {
        if !self.is_little_known() {
            return;
        }
        self.is_informed = true;
        (self.step_learner, self.prefill_learner) =
            (other.step_learner.clone(), other.prefill_learner.clone());
        self.lengths = other.lengths.clone();
        self.tokenizer_learner = other.tokenizer_learner;
        if let Some(step_tokens) = other.step_tokens {
            self.set_step_tokens(step_tokens);
        }
        self.demote_to_prior();
    }

    /// Returns whether so little was learned here that the state of another backend says more.
    pub(crate) fn is_little_known(&self) -> bool {
        !self.is_informed && self.residual.first_token_count() < MIN_FIRST_TOKENS
    }

    fn demote_to_prior(&mut self) {
        self.step_learner.demote_to_prior();
        self.prefill_learner.demote_to_prior();
        self.tokenizer_learner.demote_to_prior();
        self.residual = Residual::default();
        self.learned_at_us = f64::NEG_INFINITY;
        self.update_coefficients();
    }

    /// Returns the learned state of the engine, for the next process.
    pub(crate) fn learned_state(&self) -> LearnedState {
        let Self { step_learner, prefill_learner, lengths, residual, .. } = self;
        let mut state = LearnedState::new(
            step_learner,
            prefill_learner,
            lengths,
            residual,
            &self.limit_learner,
        );
        state.step_tokens = Some(self.limits.step_tokens);
        state.tokenizer_learner = self.tokenizer_learner;
        state
    }

    /// Starts again with a step size that was learned before.
    fn set_step_tokens(&mut self, step_tokens: f64) {
        self.step_size_learner = StepSizeLearner::new(step_tokens);
        self.limits.step_tokens = self.step_size_learner.step_tokens();
    }

    /// Continues with the learned state of another process.
    pub(crate) fn restore(&mut self, learned: LearnedState) {
        self.limit_learner.restore(learned.slots, learned.kv_tokens);
        self.use_learned_limits();
        if let Some(step_tokens) = learned.step_tokens {
            self.set_step_tokens(step_tokens);
        }
        (self.step_learner, self.prefill_learner) = (learned.step_learner, learned.prefill_learner);
        (self.lengths, self.residual) = (learned.lengths, learned.residual);
        self.tokenizer_learner = learned.tokenizer_learner;
        self.update_coefficients();
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
    pub(crate) fn own_load(&self) -> EngineLoad {
        let (in_batch, queued) = (self.prompts.in_batch(), self.prompts.queued());
        EngineLoad {
            waiting_count: self.waiting_count.into(),
            prompt_work: PromptWork {
                tokens: in_batch.tokens + queued.tokens,
                time_us: in_batch.time_us + queued.time_us,
            },
            stream_count: self.streams.count(),
            context_tokens: self.streams.context_tokens(),
        }
    }

    /// Takes the load that peers report. Returns whether this changes what is counted.
    pub(crate) fn set_peer_load(&mut self, reported: &EngineLoad) -> bool {
        let peer_load = reported.smoothed(&self.peer_load);
        std::mem::replace(&mut self.peer_load, peer_load) != peer_load
    }
}
