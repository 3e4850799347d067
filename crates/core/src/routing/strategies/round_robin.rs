//! `round_robin`: the candidates take turns by weight, model by model.

use super::{Picked, Reading, collect};
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
    collect(candidates, &mut rows);
    let count = rows.count();
    in_turn(&rows, count, random, model)
}

/// Returns the row whose turn it is; without rows no turn is taken.
#[inline(always)]
pub(super) fn in_turn(
    rows: &Rows<'_>,
    candidates: u32,
    random: &mut impl RandomSource,
    model: ModelId,
) -> Option<Picked> {
    if rows.count() == 0 {
        return None;
    }
    let turn = random.turn(model);
    let row = rows.at_turn(turn)?;
    Some(Picked { turn: Some(turn), ..Picked::plain(row, candidates) })
}
