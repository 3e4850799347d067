//! The observer of a decision while it is made. The router is generic over [`Recorder`], so that
//! explanations, captures and the shadow observe the decision itself, and its rules have no second
//! implementation. [`NoRecord`] has no size and its methods are empty: an unobserved decision
//! compiles to the same code as one without a recorder.
//!
//! A recorder that records ([`Recorder::RECORDS`]) makes the router take every reading of a
//! candidate once, before it decides, and decide by those readings alone. Load changes during a
//! decision; a reading taken twice could explain or replay to another backend.

use penstock_scoring::{Candidate, RequestFeatures, ScoreMatrix};

use super::filters::{RejectReason, Verdict};
use crate::fleet::ModelId;

pub trait Recorder {
    /// The verdict of the filters: with a reason for a rejection, or only `bool` if none is kept.
    type Verdict: Verdict;

    /// If set, readings are kept, so all of them are taken before the strategy decides.
    const RECORDS: bool;

    /// A pass over the backends of a model starts. It replaces the reports of an earlier pass over
    /// the same model, under other conditions.
    fn start_pass(&mut self, model: ModelId);

    /// Records the filters' verdict on the backend in `row`. Returns whether it is admitted.
    fn filtered(&mut self, row: u32, verdict: Self::Verdict) -> bool;

    /// The strategy does not consider a backend that the filters admitted.
    fn excluded(&mut self, row: u32, reason: RejectReason);

    /// The readings of the admitted backends.
    fn read(&mut self, features: &RequestFeatures, candidates: &[Candidate]);

    /// The turn that was taken.
    fn took_turn(&mut self, turn: u64);

    /// The scores of the remaining candidates.
    fn scored(&mut self, candidates: &[Candidate], matrix: &ScoreMatrix);
}

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
