//! `priority_only`: the best priority, then the fewest requests in flight, then turns.

use super::round_robin::in_turn;
use super::{Picked, Reading};
use crate::fleet::ModelId;
use crate::routing::random::RandomSource;
use crate::routing::scratch::Rows;

#[inline(always)]
pub(super) fn pick<R: Reading>(
    candidates: impl Iterator<Item = R>,
    mut rows: Rows<'_>,
    random: &mut impl RandomSource,
    model: ModelId,
) -> Option<Picked> {
    let mut least = u64::MAX;
    candidates.for_each(|candidate| {
        // One number: no branch to predict. Each load is read once: it may change meanwhile.
        let key = u64::from(candidate.priority()) << 32 | u64::from(candidate.in_flight());
        least = least.min(key);
        rows.add_keyed(candidate.row(), key);
    });
    let count = rows.count();
    rows.keep(least);
    in_turn(&rows, count, random, model)
}
