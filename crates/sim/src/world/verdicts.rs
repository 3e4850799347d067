//! Verdicts on refusals: what the engines could have done for a request if no other one had
//! arrived, by their true state and the true output lengths.

use penstock_core::fleet::BackendSet;

use super::World;
use super::result::{ShedReason, Status, Verdict};

impl World<'_> {
    pub(super) fn shed(&mut self, id: u32, reason: ShedReason, at: u64) {
        // The engines have no part in these.
        if !matches!(reason, ShedReason::Unserved | ShedReason::BudgetExceeded) {
            self.judge(id, at);
        }
        self.end(id, Status::Shed(reason), at);
    }

    /// Judges what could be done for a request now. Once it could have been served well, a later
    /// refusal is wrong.
    pub(super) fn judge(&mut self, id: u32, at: u64) {
        let known = self.results.get(id as usize).map_or(Verdict::None, |one| one.verdict);
        if !self.spec.judges_sheds || known == Verdict::Wrong {
            return;
        }
        let outlooks =
            self.outlooks(id, self.balancer_of(id), &BackendSet::default(), at).unwrap_or_default();
        let verdict = match () {
            () if outlooks.iter().any(|one| one.gain > 0) => Verdict::Wrong,
            () if outlooks.iter().any(|one| one.own.is_good) => Verdict::Harmful,
            () => known.max(Verdict::Late),
        };
        if let Some(result) = self.results.get_mut(id as usize) {
            result.verdict = known.max(verdict);
        }
    }
}
