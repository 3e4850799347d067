//! What scorers read of a backend: what its engine told, what we know ourselves, and what it is
//! believed to have cached.

use super::RouteInput;
use crate::fleet::{Model, Readings, Serving, Standing};
use crate::prefix::SLOTS;
use crate::scoring::{Adapter, Candidate};
use crate::units::Timestamp;

/// What an engine told of itself, as scorers read it.
pub(super) fn told(serving: &Serving, now: Timestamp) -> Readings {
    let state = &serving.state;
    state.telemetry.read(&state.load, now)
}

/// Fills in what scorers read of a backend whose engine told this; see [`count_tokens`] and
/// [`add_latency`].
pub(super) fn read(serving: &Serving, told: &Readings, into: &mut Candidate) {
    // Stale is not unknown: the median of the others stands in for what was read too long ago.
    let is_stale = matches!(told.standing, Standing::Stale | Standing::Failing);
    let kv_utilization = told.kv_utilization.map(f64::from);
    into.key = serving.key;
    into.waiting = told.waiting.map(f64::from);
    into.running = told.running.map(f64::from);
    into.load = Some(told.load.into());
    into.kv_utilization = if is_stale { Some(STALE) } else { kv_utilization };
    into.in_flight = f64::from(serving.state.load.in_flight());
    into.priority = serving.priority;
}

/// Adds what is in flight in tokens. Apart from the rest, like what follows: it lies in memory that few
/// decisions touch.
pub(super) fn count_tokens(serving: &Serving, into: &mut Candidate) {
    let work = &serving.state.work;
    into.tokens_in_flight = work.tokens() as f64;
    into.prefill_tokens = work.prefill_tokens() as f64;
}

/// Adds how long first tokens take.
pub(super) fn add_latency(serving: &Serving, now: Timestamp, into: &mut Candidate) {
    into.latency_ms = serving.latency.peak_micros(now).map(|micros| micros / 1000.0);
}

/// Stands for a KV cache whose use was told too long ago, until the median of the others is known.
const STALE: f64 = -1.0;

/// Puts the median of what is known in the place of what is stale; nothing where nothing is known.
pub(super) fn fill_in_median(candidates: &mut [Candidate]) {
    let is_stale = |one: &Candidate| one.kv_utilization == Some(STALE);
    if !candidates.iter().any(is_stale) {
        return;
    }
    let known = |one: &Candidate| one.kv_utilization.filter(|part| *part >= 0.0);
    let count = candidates.iter().filter_map(known).count();
    // Few enough to count for each how many are below it.
    let below =
        |part: f64| candidates.iter().filter_map(known).filter(|other| *other < part).count();
    let at_rank = |rank: usize| {
        let reached = candidates.iter().filter_map(known).filter(|part| below(*part) <= rank);
        reached.reduce(f64::max)
    };
    // Of an even number the mean of both in the middle.
    let (low, high) = (at_rank(count.saturating_sub(1) / 2), at_rank(count / 2));
    let median = low.zip(high).map(|(low, high)| f64::midpoint(low, high));
    for one in candidates.iter_mut().filter(|one| is_stale(one)) {
        one.kv_utilization = median;
    }
}

/// Where the model, as an adapter, stands on a backend whose engine told this.
pub(super) fn adapter(serving: &Serving, told: &Readings) -> Adapter {
    if told.standing != Standing::Fresh {
        return Adapter::Unknown;
    }
    let Some(details) = serving.state.telemetry.details() else { return Adapter::Unknown };
    let Some(adapters) = &details.adapters else { return Adapter::Unknown };
    let name = serving.adapter_name();
    let has = |list: &[Box<str>]| list.iter().any(|one| **one == *name);
    let used = adapters.running.len() + adapters.waiting.len();
    if has(&adapters.running) {
        Adapter::Active
    } else if adapters.max.is_some_and(|max| used < max as usize) {
        Adapter::FreeSlot
    } else if has(&adapters.waiting) {
        Adapter::Waiting
    } else {
        Adapter::Absent
    }
}

/// Fills in how much of the prompt each candidate is believed to have cached, in one walk per 64
/// backends.
pub(super) fn find_prefixes(
    (input, model): (&RouteInput<'_>, &Model),
    rows: &[u32],
    candidates: &mut [Candidate],
) {
    let Some(chain) = input.prompt else { return };
    let slot_of = |row: &u32| model.serving.get(*row as usize).map(|serving| serving.slot);
    model.prefixes.read(|shards| {
        for (number, shard) in (0_u16..).zip(shards) {
            let (mut mask, mut places) = (0_u64, [0_u16; SLOTS]);
            for (place, slot) in (0_u16..).zip(rows.iter().map(slot_of)) {
                if let Some(slot) = slot.filter(|slot| slot.shard == number)
                    && let Some(index) = places.get_mut(usize::from(slot.bit))
                {
                    mask |= 1 << slot.bit;
                    *index = place;
                }
            }
            shard.longest(chain.hashes(), mask, |slot, length| {
                let place = places.get(slot).copied().unwrap_or(u16::MAX);
                if let Some(candidate) = candidates.get_mut(usize::from(place)) {
                    candidate.matched_blocks = length;
                }
            });
        }
    });
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_stale_counts_as_the_median_of_the_rest() {
        let with = |kv_utilization| Candidate { kv_utilization, ..Candidate::default() };
        let medians = |given: &[Option<f64>]| {
            let mut all: Vec<Candidate> = given.iter().copied().map(with).collect();
            fill_in_median(&mut all);
            all.into_iter().map(|one| one.kv_utilization).collect::<Vec<_>>()
        };
        let stale = Some(STALE);
        assert_eq!(
            medians(&[Some(0.9), stale, Some(0.1), None, Some(0.5)]),
            [Some(0.9), Some(0.5), Some(0.1), None, Some(0.5)]
        );
        assert_eq!(medians(&[stale, Some(0.25), Some(0.75)])[0], Some(0.5));
        assert_eq!(medians(&[stale, None, stale]), [None, None, None]);
        assert_eq!(medians(&[Some(0.7), Some(0.7), stale])[2], Some(0.7));
    }
}
