//! The recorder that keeps everything: the verdict of the filters on each backend, the readings of
//! those that passed, and the scores. It allocates, so it observes only decisions that are
//! explained, captured, or compared with a shadow.

use penstock_scoring::{Candidate, Profile, RequestFeatures, ScoreMatrix};

use crate::fleet::ModelId;
use crate::routing::filters::RejectReason;
use crate::routing::recorder::Recorder;

/// One decision as it was made.
#[derive(Debug, Clone, Default)]
pub struct Trace {
    /// The considered models in order, each with the last pass over its backends.
    passes: Vec<Pass>,
    turn: Option<u64>,
}

/// One pass over the backends of a model.
#[derive(Debug, Clone)]
pub(super) struct Pass {
    pub(super) model: ModelId,
    /// The request as the scorers read it; `None` if no backend passed the filters.
    pub(super) features: Option<RequestFeatures>,
    /// The backends that passed the filters.
    pub(super) candidates: Vec<Candidate>,
    /// The rows that the filters rejected.
    pub(super) rejected: Vec<(u32, RejectReason)>,
    /// The rows of candidates that the strategy did not consider.
    pub(super) excluded: Vec<(u32, RejectReason)>,
    /// The rows that were scored, and their scores in the same order.
    scored: Vec<u32>,
    matrix: ScoreMatrix,
}

impl Trace {
    pub(super) fn pass(&self, model: ModelId) -> Option<&Pass> {
        self.passes.iter().find(|pass| pass.model == model)
    }

    /// Returns every pass, in the order of the considered models.
    pub(super) fn passes(&self) -> &[Pass] {
        &self.passes
    }

    /// Returns the turn that was taken; `None` if the strategy took none.
    pub(super) fn turn(&self) -> Option<u64> {
        self.turn
    }

    fn current(&mut self) -> Option<&mut Pass> {
        let pass = self.passes.last_mut();
        debug_assert!(pass.is_some(), "a decision starts a pass before it reports");
        pass
    }
}

impl Pass {
    /// Returns the reason why the backend in `row` was no candidate in the end.
    pub(super) fn reason(&self, row: u32) -> Option<RejectReason> {
        let all = self.rejected.iter().chain(&self.excluded);
        all.into_iter().find(|(other, _)| *other == row).map(|(_, reason)| *reason)
    }

    /// Returns the readings of the candidate in `row`.
    pub(super) fn candidate(&self, row: u32) -> Option<&Candidate> {
        self.candidates.iter().find(|one| one.row == row)
    }

    /// Returns the total of the candidate in `row`, if scorers decided.
    pub(super) fn total(&self, row: u32) -> Option<f64> {
        let index = self.scored.iter().position(|other| *other == row)?;
        self.matrix.totals().get(index).copied()
    }

    /// Returns the scores of the candidate in `row` by the scorers of `profile`, which decided.
    pub(super) fn scores(&self, row: u32, profile: &Profile) -> Option<Vec<(&'static str, f64)>> {
        let index = self.scored.iter().position(|other| *other == row)?;
        let names = profile.weights().map(|(name, _)| name).enumerate();
        let scores = names
            .filter_map(|(number, name)| Some((name, *self.matrix.scores(number).get(index)?)));
        Some(scores.collect())
    }
}

impl Recorder for Trace {
    type Verdict = Result<(), RejectReason>;

    const RECORDS: bool = true;

    fn start_pass(&mut self, model: ModelId) {
        self.passes.retain(|pass| pass.model != model);
        self.passes.push(Pass {
            model,
            features: None,
            candidates: Vec::new(),
            rejected: Vec::new(),
            excluded: Vec::new(),
            scored: Vec::new(),
            matrix: ScoreMatrix::default(),
        });
    }

    fn filtered(&mut self, row: u32, verdict: Self::Verdict) -> bool {
        if let (Some(pass), Err(reason)) = (self.current(), verdict) {
            pass.rejected.push((row, reason));
        }
        verdict.is_ok()
    }

    fn excluded(&mut self, row: u32, reason: RejectReason) {
        if let Some(pass) = self.current() {
            pass.excluded.push((row, reason));
        }
    }

    fn read(&mut self, features: &RequestFeatures, candidates: &[Candidate]) {
        if let Some(pass) = self.current() {
            pass.features = Some(*features);
            pass.candidates = candidates.to_vec();
        }
    }

    fn took_turn(&mut self, turn: u64) {
        self.turn = Some(turn);
    }

    fn scored(&mut self, candidates: &[Candidate], matrix: &ScoreMatrix) {
        if let Some(pass) = self.current() {
            pass.scored = candidates.iter().map(|one| one.row).collect();
            pass.matrix = matrix.clone();
        }
    }
}
