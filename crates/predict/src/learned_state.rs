//! The learned state of an engine, as one process passes it to the next one.

use serde::{Deserialize, Serialize};

use super::coefficients::StepLearner;
use super::limit_learner::LimitLearner;
use super::output_lengths::OutputLengths;
use super::prefill::PrefillLearner;
use super::residual::Residual;
use super::tokenizer::TokenizerLearner;

/// The version of the format: it changes whenever the numbers mean something else, and the state of
/// other versions is not used.
const FORMAT: u32 = 2;

/// The learned state of one model on one backend, without the requests that run there.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct LearnedState {
    format: u32,
    #[serde(rename = "steps")]
    pub(super) step_learner: StepLearner,
    #[serde(rename = "prefill")]
    pub(super) prefill_learner: PrefillLearner,
    pub(super) lengths: OutputLengths,
    pub(super) residual: Residual,
    /// The number of requests in its batch, if waits or reports have shown it.
    pub(super) slots: Option<f64>,
    /// The number of tokens in its KV cache, if waits have shown it.
    pub(super) kv_tokens: Option<f64>,
    /// The most tokens of a step; states that were written before it was learned have none.
    #[serde(default)]
    pub(super) step_tokens: Option<f64>,
    /// States that were written before it was learned have none.
    #[serde(default, rename = "tokenizer")]
    pub(super) tokenizer_learner: TokenizerLearner,
}

impl LearnedState {
    pub(super) fn new(
        step_learner: &StepLearner,
        prefill_learner: &PrefillLearner,
        lengths: &OutputLengths,
        residual: &Residual,
        limits: &LimitLearner,
    ) -> Self {
        Self {
            format: FORMAT,
            step_learner: step_learner.clone(),
            prefill_learner: prefill_learner.clone(),
            lengths: lengths.clone(),
            residual: *residual,
            slots: Some(limits.shown_slots()).filter(|slots| slots.is_finite()),
            kv_tokens: Some(limits.kv_tokens()).filter(|tokens| tokens.is_finite()),
            step_tokens: None,
            tokenizer_learner: TokenizerLearner::default(),
        }
    }

    /// Returns whether this version can use it.
    pub fn is_readable(&self) -> bool {
        self.format == FORMAT
    }

    /// Returns the number of first tokens that it was learned from.
    pub fn first_token_count(&self) -> f64 {
        self.residual.first_token_count()
    }
}
