//! `deployment`: prefers backends with the model in memory and a free slot, the least used first;
//! else those where loading it costs the least. Source: the endpoint selection of NOMYO Router,
//! with ties that rotate at any level, and without evicting a model in use if that can be avoided.

use penstock_api::units::Timestamp;
use penstock_scoring::{Candidate, Eviction, Residency};

use super::round_robin::in_turn;
use super::{Picked, Reading};
use crate::fleet::{ModelId, Serving};
use crate::routing::random::RandomSource;
use crate::routing::scratch::Rows;

/// The state of a model on a backend.
#[derive(Debug, Clone, Copy)]
pub(in crate::routing) struct Placement {
    pub(in crate::routing) model_in_flight: u32,
    /// The number of them that run at a time; `u32::MAX` if unknown.
    pub(in crate::routing) slots: u32,
    pub(in crate::routing) residency: Residency,
    pub(in crate::routing) eviction: Eviction,
}

impl Placement {
    #[inline(always)]
    pub(in crate::routing) fn of(serving: &Serving, now: Timestamp) -> Self {
        let model = &*serving.model_state;
        let residency = serving.residency(now);
        Self {
            model_in_flight: model.load.of_all(),
            slots: model.slots(),
            residency,
            eviction: serving.eviction(residency),
        }
    }

    #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "they were counts")]
    pub(super) fn recorded(candidate: &Candidate) -> Self {
        Self {
            model_in_flight: candidate.model_in_flight.map_or(0, |count| count as u32),
            slots: candidate.slots.map_or(u32::MAX, |slots| slots as u32),
            residency: candidate.residency,
            eviction: candidate.eviction,
        }
    }
}

#[inline(always)]
pub(super) fn pick<R: Reading>(
    candidates: impl Iterator<Item = R>,
    mut rows: Rows<'_>,
    random: &mut impl RandomSource,
    model: ModelId,
) -> Option<Picked> {
    let mut least = u64::MAX;
    candidates.for_each(|candidate| {
        let rank = rank(&candidate);
        least = least.min(rank);
        rows.add_keyed(candidate.row(), rank);
    });
    let count = rows.count();
    rows.keep(least);
    if rows.count() == 1 {
        // Only ties take a turn: otherwise alternating ties and single picks could favour an equal.
        return rows.at_turn(0).map(|row| Picked::plain(row, count));
    }
    in_turn(&rows, count, random, model)
}

/// Returns the rank of a candidate; lower is better.
#[inline(always)]
fn rank(candidate: &impl Reading) -> u64 {
    let placement = candidate.placement();
    let used = candidate.by_weight(placement.model_in_flight);
    let (in_flight, priority) = (candidate.in_flight(), candidate.priority());
    let is_resident = placement.residency == Residency::Resident;
    if placement.model_in_flight >= placement.slots {
        // Without a free slot the request would wait, however cheap the model is there.
        return pack(3, [used, u32::from(!is_resident), in_flight]);
    }
    if is_resident {
        return pack(0, [priority, used, in_flight]);
    }
    let cost = match (placement.residency, placement.eviction) {
        (Residency::Sleeping, _) => 0,
        (_, Eviction::Nothing) => 1,
        (_, Eviction::Idle | Eviction::InUse) => 2,
    };
    let level = if placement.eviction == Eviction::InUse { 2 } else { 1 };
    pack(level, [priority, in_flight, cost])
}

/// Packs the level and the parts, in order of weight, into one number: no branch to predict.
#[inline(always)]
fn pack(level: u64, parts: [u32; 3]) -> u64 {
    // Three parts and a level below 16 fill the 64 bits.
    const BITS: u32 = 20;
    const MAX_PART: u32 = (1 << BITS) - 1;
    parts.iter().fold(level, |packed, part| packed << BITS | u64::from(*part.min(&MAX_PART)))
}

#[cfg(test)]
mod tests {
    use rand::SeedableRng;
    use rand::rngs::SmallRng;

    use super::*;
    use crate::routing::random::ReplaySource;
    use crate::routing::scratch::Scratch;

    fn candidate(residency: Residency, model_in_flight: u32, in_flight: u32) -> Candidate {
        Candidate {
            residency,
            slots: Some(2.0),
            model_in_flight: Some(model_in_flight.into()),
            in_flight: in_flight.into(),
            ..Candidate::default()
        }
    }

    fn loadable(eviction: Eviction, in_flight: u32) -> Candidate {
        Candidate { eviction, ..candidate(Residency::Loadable, 0, in_flight) }
    }

    /// Returns the picked row, and the turn it took.
    fn pick_at(turn: u64, candidates: &[Candidate]) -> (u32, Option<u64>) {
        let all: Vec<Candidate> =
            (0..).zip(candidates).map(|(row, one)| Candidate { row, ..*one }).collect();
        let (mut scratch, mut rng) = (Scratch::default(), SmallRng::seed_from_u64(1));
        let (rows, _) = scratch.split(all.len());
        let mut random = ReplaySource { turn, rng: &mut rng };
        let picked = pick(all.iter(), rows, &mut random, ModelId(0)).unwrap();
        assert_eq!(picked.candidates as usize, all.len());
        (picked.row, picked.turn)
    }

    fn picked(candidates: &[Candidate]) -> u32 {
        pick_at(0, candidates).0
    }

    #[test]
    fn resident_with_a_free_slot_wins_least_used_first() {
        let free = |in_flight| candidate(Residency::Resident, in_flight, in_flight);
        assert_eq!(picked(&[loadable(Eviction::Nothing, 0), free(1)]), 1);
        assert_eq!(picked(&[free(1), free(0), loadable(Eviction::Nothing, 0)]), 1);
        let busy_with_others = candidate(Residency::Resident, 0, 7);
        assert_eq!(picked(&[busy_with_others, free(1)]), 0, "use of the model counts first");
        assert_eq!(picked(&[busy_with_others, free(0)]), 1, "then that of the backend");
        let last_resort = Candidate { priority: 9, ..free(0) };
        assert_eq!(picked(&[last_resort, free(1)]), 1, "the operator's order counts before both");
    }

    #[test]
    fn else_the_backend_with_the_least_in_flight_loads_it() {
        let full = candidate(Residency::Resident, 2, 2);
        assert_eq!(picked(&[full, loadable(Eviction::Idle, 3), loadable(Eviction::Idle, 1)]), 2);
        let in_use = loadable(Eviction::InUse, 1);
        assert_eq!(picked(&[in_use, loadable(Eviction::Nothing, 5)]), 1, "a model in use stays");
        assert_eq!(picked(&[full, in_use]), 1, "unless there is no other slot");
        let sleeping = candidate(Residency::Sleeping, 0, 0);
        let equals = [loadable(Eviction::Idle, 0), loadable(Eviction::Nothing, 0), sleeping];
        assert_eq!(picked(&equals), 2, "waking is faster than loading");
        assert_eq!(picked(&equals[..2]), 1, "free memory before an idle model's");
        let unknown = Candidate { eviction: Eviction::Idle, ..candidate(Residency::Unknown, 0, 0) };
        assert_eq!(picked(&[candidate(Residency::Resident, 1, 1), unknown]), 0);
    }

    #[test]
    fn least_used_is_picked_where_all_are_saturated() {
        let full = |used| candidate(Residency::Resident, used, used);
        assert_eq!(picked(&[full(4), full(2), full(3)]), 1);
        let unlimited = Candidate { slots: None, ..full(90) };
        assert_eq!(picked(&[full(2), unlimited]), 1, "without slots none is missing");
    }

    #[test]
    fn ties_rotate_at_any_level() {
        let levels = [
            candidate(Residency::Resident, 0, 0),
            candidate(Residency::Resident, 1, 1),
            loadable(Eviction::Idle, 1),
            loadable(Eviction::InUse, 4),
            candidate(Residency::Resident, 2, 2),
        ];
        for level in levels {
            let mut counts = [0_u32; 3];
            for turn in 0..1000 {
                let (row, took) = pick_at(turn, &[level; 3]);
                counts[row as usize] += 1;
                assert_eq!(took, Some(turn));
            }
            assert!(counts.iter().all(|count| (333..=334).contains(count)), "{counts:?}");
        }
        let alone = [levels[0], levels[2]];
        assert_eq!(pick_at(7, &alone), (0, None), "without a tie no turn is taken");
    }

    #[test]
    fn weight_counts_in_what_is_used() {
        let half = |weight: f64, used| Candidate {
            weight: Some(weight),
            most_weight: Some(3.0),
            slots: None,
            ..candidate(Residency::Resident, used, used)
        };
        assert_eq!(picked(&[half(3.0, 2), half(1.0, 1)]), 0, "2 of 3 is less than 1 of 1");
    }
}
