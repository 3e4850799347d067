//! `random`: each candidate is as likely as its weight says.

use super::{Picked, Reading, collect};
use crate::routing::random::RandomSource;
use crate::routing::scratch::Rows;

#[inline(always)]
pub(super) fn pick<R: Reading>(
    candidates: impl Iterator<Item = R>,
    mut rows: Rows<'_>,
    random: &mut impl RandomSource,
) -> Option<Picked> {
    collect(candidates, &mut rows);
    let row = rows.at_random(random.rng())?;
    Some(Picked::plain(row, rows.count()))
}
