//! The learned state of an engine, as one process passes it to the next one.

use serde::{Deserialize, Serialize};

use super::coefficients::StepLearner;
use super::lengths::Lengths;
use super::limit_learner::LimitLearner;
use super::prefill::PrefillLearner;
use super::residual::Residual;

/// The version of the format: it changes whenever the numbers mean something else, and the state of
/// other versions is not used.
const FORMAT: u32 = 2;

/// The learned state of one model on one backend, without the requests that run there.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Learned {
    format: u32,
    pub(super) steps: StepLearner,
    pub(super) prefill: PrefillLearner,
    pub(super) lengths: Lengths,
    pub(super) residual: Residual,
    /// The number of requests in its batch, if waits or reports have shown it.
    pub(super) slots: Option<f64>,
    /// The number of tokens in its KV cache, if waits have shown it.
    pub(super) kv_tokens: Option<f64>,
}

impl Learned {
    pub(super) fn new(
        steps: &StepLearner,
        prefill: &PrefillLearner,
        lengths: &Lengths,
        residual: &Residual,
        limits: &LimitLearner,
    ) -> Self {
        Self {
            format: FORMAT,
            steps: steps.clone(),
            prefill: prefill.clone(),
            lengths: lengths.clone(),
            residual: *residual,
            slots: Some(limits.slots()).filter(|slots| slots.is_finite()),
            kv_tokens: Some(limits.kv_tokens()).filter(|tokens| tokens.is_finite()),
        }
    }

    /// Returns whether this version can use it.
    pub fn is_readable(&self) -> bool {
        self.format == FORMAT
    }

    /// Returns the number of first tokens that it was learned from.
    pub fn first_tokens(&self) -> f64 {
        self.residual.seen()
    }
}
