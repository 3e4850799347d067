//! What a predictor has learned of an engine, as one process passes it to the next one.

use serde::{Deserialize, Serialize};

use super::coefficients::StepLearner;
use super::lengths::Lengths;
use super::limit_learner::LimitLearner;
use super::prefill::PrefillLearner;
use super::residual::Residual;

/// Changes whenever the numbers mean something else: what another version has learned is not used then.
const FORMAT: u32 = 2;

/// What was learned of one model on one backend, without the requests that run there.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Learned {
    format: u32,
    pub(super) steps: StepLearner,
    pub(super) prefill: PrefillLearner,
    pub(super) lengths: Lengths,
    pub(super) residual: Residual,
    /// Requests in its batch, where waits have shown them.
    pub(super) slots: Option<f64>,
    /// Tokens in its KV cache, likewise.
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

    /// Whether this version can use it.
    pub fn is_readable(&self) -> bool {
        self.format == FORMAT
    }

    /// First tokens that it was learned from.
    pub fn first_tokens(&self) -> f64 {
        self.residual.seen()
    }
}
