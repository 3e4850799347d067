//! What a decision reports while it is made. The router is generic over [`Recorder`], so that
//! explanations, captures and the shadow observe the decision itself and no second implementation of its
//! rules exists. [`NoRecord`] has no size and its methods are empty: an unobserved decision
//! compiles to the same code as one without a recorder.
//!
//! A recorder that records ([`Recorder::RECORDS`]) makes the router take every reading of a candidate
//! once, before it decides, and decide by those readings alone. Load changes while a decision is made;
//! a reading taken twice could explain or replay to another backend.

use super::filters::{RejectReason, Verdict};
use crate::fleet::ModelId;
use penstock_scoring::{Candidate, RequestFeatures, ScoreMatrix};

/// Observes one decision.
pub trait Recorder {
    /// What the filters return: a reason for each rejection, or only `bool` when no reason is kept.
    type Verdict: Verdict;

    /// Whether readings are kept, so that all of them are taken before the strategy decides.
    const RECORDS: bool;

    /// The backends of a model are looked at, maybe again under other conditions: what an earlier pass
    /// over the same model reported no longer counts.
    fn start_pass(&mut self, model: ModelId);

    /// The filters' verdict on the backend in `row`. Whether it is admitted.
    fn filtered(&mut self, row: u32, verdict: Self::Verdict) -> bool;

    /// The strategy does not consider a backend that the filters admitted.
    fn excluded(&mut self, row: u32, reason: RejectReason);

    /// The readings of the admitted backends.
    fn read(&mut self, features: &RequestFeatures, candidates: &[Candidate]);

    /// The turn that was taken.
    fn took_turn(&mut self, turn: u64);

    /// The scores of the candidates that were left.
    fn scored(&mut self, candidates: &[Candidate], matrix: &ScoreMatrix);
}

/// Records nothing.
#[derive(Debug, Clone, Copy, Default)]
pub struct NoRecord;

impl Recorder for NoRecord {
    type Verdict = bool;

    const RECORDS: bool = false;

    #[inline(always)]
    fn start_pass(&mut self, _model: ModelId) {}

    #[inline(always)]
    fn filtered(&mut self, _row: u32, verdict: bool) -> bool {
        verdict
    }

    #[inline(always)]
    fn excluded(&mut self, _row: u32, _reason: RejectReason) {}

    #[inline(always)]
    fn read(&mut self, _features: &RequestFeatures, _candidates: &[Candidate]) {}

    #[inline(always)]
    fn took_turn(&mut self, _turn: u64) {}

    #[inline(always)]
    fn scored(&mut self, _candidates: &[Candidate], _matrix: &ScoreMatrix) {}
}
