//! What is in flight on a backend: requests, and the tokens they stand for.

use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

/// Bits of [`OthersInFlight`] that count requests; the rest counts penstocks.
const COUNT_BITS: u32 = 24;
const MOST_IN_FLIGHT: u32 = (1 << COUNT_BITS) - 1;

/// The unit of `Load::level`.
const THOUSAND: u32 = 1000;
/// A level moves by one part in so many to what is reported: it follows within some 5 s, as long as requests run.
const FOLLOWS: u64 = 25;

fn level_of(count: u32) -> u64 {
    u64::from(count) * u64::from(THOUSAND)
}

/// The level after so many others have reported this together: the part of one penstock of it, if all corrected the same.
/// At once where there are none left.
fn followed(level: u64, reported: u64, penstocks: u8) -> u64 {
    if penstocks == 0 {
        return 0;
    }
    let each = reported / (u64::from(penstocks) + 1);
    let step = level.abs_diff(each).div_ceil(FOLLOWS);
    if level < each { level.saturating_add(step) } else { level.saturating_sub(step) }
}

/// How many requests a backend has in flight.
#[derive(Debug, Default)]
pub struct Load {
    in_flight: AtomicU32,
    /// What decisions count of other penstocks, in thousandths.
    level: AtomicU32,
    others: OthersInFlight,
}

/// How many requests other penstocks have in flight on a backend or of a model there, as they reported it last, and
/// how many penstocks these are: one number, so that a limit is never computed from those of two moments.
#[derive(Debug, Default)]
pub(super) struct OthersInFlight(AtomicU32);

impl OthersInFlight {
    /// How many requests.
    #[inline(always)]
    pub(super) fn count(&self) -> u32 {
        self.0.load(Ordering::Relaxed) & MOST_IN_FLIGHT
    }

    /// How many penstocks.
    fn penstocks(&self) -> u8 {
        u8::try_from(self.0.load(Ordering::Relaxed) >> COUNT_BITS).unwrap_or(u8::MAX)
    }

    /// Sets it. Returns whether there may be more room than before.
    pub(super) fn set(&self, count: u32, penstocks: u8) -> bool {
        let packed = u32::from(penstocks) << COUNT_BITS | count.min(MOST_IN_FLIGHT);
        self.0.swap(packed, Ordering::SeqCst) != packed
    }

    /// How many requests a penstock may have in flight itself where `limit` bounds those of all: what the others
    /// leave, and its even share in any case, because one that takes each place that gets free would leave none to the
    /// others.
    #[inline(always)]
    pub(super) fn own_limit(&self, limit: u32) -> u32 {
        let packed = self.0.load(Ordering::Relaxed);
        if packed == 0 {
            return limit;
        }
        let (count, penstocks) = (packed & MOST_IN_FLIGHT, (packed >> COUNT_BITS) + 1);
        let share = (limit / penstocks).max(limit.min(1));
        limit.saturating_sub(count).max(share)
    }
}

/// The tokens that a request stands for on a backend.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RequestTokens {
    /// The tokens of its prompt: cached or not, they occupy the KV cache.
    pub prompt: u32,
    /// The tokens of its prompt that are not believed to be cached: those that the engine computes.
    pub uncached: u32,
    /// The tokens expected of the response.
    pub output: u32,
}

/// How many tokens the requests in flight on a backend stand for.
#[derive(Debug, Default)]
pub struct TokensInFlight {
    tokens: AtomicU64,
    prefill_tokens: AtomicU64,
    others_tokens: AtomicU64,
    others_prefill_tokens: AtomicU64,
}

impl TokensInFlight {
    /// Tokens of the requests in flight: of their prompts and of the responses expected.
    pub fn tokens(&self) -> u64 {
        self.tokens.load(Ordering::Relaxed)
    }

    /// Uncached tokens of the prompts in flight that have had no first byte of a response.
    pub fn prefill_tokens(&self) -> u64 {
        self.prefill_tokens.load(Ordering::Relaxed)
    }

    /// The same as [`TokensInFlight::tokens`] as decisions count them: see [`Load::counted`].
    pub fn counted_tokens(&self) -> u64 {
        self.tokens().saturating_add(self.others_tokens.load(Ordering::Relaxed))
    }

    /// The same of [`TokensInFlight::prefill_tokens`].
    pub fn counted_prefill_tokens(&self) -> u64 {
        self.prefill_tokens().saturating_add(self.others_prefill_tokens.load(Ordering::Relaxed))
    }

    /// So many other penstocks report what they have together: to be called once in an interval.
    pub(super) fn set_others(&self, tokens: u64, prefill_tokens: u64, penstocks: u8) {
        let places = [(&self.others_tokens, tokens), (&self.others_prefill_tokens, prefill_tokens)];
        for (place, reported) in places {
            let level = followed(place.load(Ordering::Relaxed), reported, penstocks);
            place.store(level, Ordering::Relaxed);
        }
    }

    pub(super) fn add(&self, tokens: u64, prefill_tokens: u64) {
        self.prefill_tokens.fetch_add(prefill_tokens, Ordering::Relaxed);
        self.tokens.fetch_add(tokens, Ordering::Relaxed);
    }

    pub(super) fn end_prefill(&self, tokens: u64) {
        self.prefill_tokens.fetch_sub(tokens, Ordering::Relaxed);
    }

    pub(super) fn end(&self, tokens: u64) {
        self.tokens.fetch_sub(tokens, Ordering::Relaxed);
    }
}

impl Load {
    /// Requests that this penstock dispatched and that have not ended.
    pub fn in_flight(&self) -> u32 {
        self.in_flight.load(Ordering::Relaxed)
    }

    /// Requests of other penstocks in flight, as they reported it last.
    pub fn others(&self) -> u32 {
        self.others.count()
    }

    /// How many other penstocks share the backend.
    pub fn other_penstocks(&self) -> u8 {
        self.others.penstocks()
    }

    /// Requests in flight, with all those of other penstocks.
    #[inline(always)]
    pub fn of_all(&self) -> u32 {
        self.in_flight().saturating_add(self.others.count())
    }

    /// Requests in flight as decisions count them: its own, and its part of what the others have, followed
    /// slowly. Their reports are up to two intervals old. If each of several penstocks corrected at once all that
    /// it reads there, they would all send to the same backend until the next report.
    #[inline(always)]
    pub fn counted(&self) -> u32 {
        self.in_flight().saturating_add(
            self.level.load(Ordering::Relaxed).saturating_add(THOUSAND / 2) / THOUSAND,
        )
    }

    /// The same, not rounded.
    #[expect(clippy::cast_precision_loss, reason = "a load needs few digits")]
    pub fn counted_exactly(&self) -> f32 {
        let level = self.level.load(Ordering::Relaxed) as f32 / THOUSAND as f32;
        self.in_flight() as f32 + level
    }

    /// How many requests a penstock may have in flight itself where `limit` bounds those of all.
    #[inline(always)]
    pub(super) fn own_limit(&self, limit: u32) -> u32 {
        self.others.own_limit(limit)
    }

    /// So many other penstocks report what they have in flight together: to be called once in an interval. Returns whether
    /// there may be more room than before.
    pub fn set_others(&self, count: u32, penstocks: u8) -> bool {
        let level = followed(self.level.load(Ordering::Relaxed).into(), level_of(count), penstocks);
        self.level.store(u32::try_from(level).unwrap_or(u32::MAX), Ordering::Relaxed);
        self.others.set(count, penstocks)
    }

    /// Sets what others have for good: for `explain` on a saved fleet.
    pub fn restore_others(&self, count: u32, penstocks: u8) {
        self.others.set(count, penstocks);
        let level = level_of(count) / (u64::from(penstocks) + 1);
        self.level.store(u32::try_from(level).unwrap_or(u32::MAX), Ordering::Relaxed);
    }

    /// Sets a load: for `explain` on a saved fleet and for tests.
    pub fn set_in_flight(&self, count: u32) {
        self.in_flight.store(count, Ordering::Relaxed);
    }

    /// Counts one more request unless `limit` is reached, by all penstocks.
    pub(super) fn try_begin(&self, limit: u32) -> bool {
        let limit = self.own_limit(limit);
        let taken = self.in_flight.fetch_update(Ordering::AcqRel, Ordering::Relaxed, |now| {
            if now < limit { now.checked_add(1) } else { None }
        });
        taken.is_ok()
    }

    pub(super) fn end(&self) {
        // In one order with the look at those who wait for capacity.
        self.in_flight.fetch_sub(1, Ordering::SeqCst);
    }
}

/// The probe slot an attempt holds beside its permit.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Probe {
    /// None: an ordinary attempt.
    #[default]
    None,
    /// That of the half-open circuit breaker.
    Breaker,
    /// That of the cooldown which expires first.
    Cooldown,
    /// That of the backend whose requests make no progress.
    Frozen,
    /// That of the evidence against the model on the backend.
    Evidence,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn limit_leaves_what_others_have_not_taken_and_an_even_share() {
        let load = Load::default();
        assert_eq!(load.own_limit(8), 8);
        load.set_others(3, 1);
        assert_eq!((load.own_limit(8), load.of_all(), load.others()), (5, 3, 3));
        load.set_others(8, 1);
        assert_eq!(load.own_limit(8), 4, "half of it, whatever the other has taken");
        load.set_others(800, 3);
        assert_eq!((load.own_limit(8), load.own_limit(3), load.own_limit(0)), (2, 1, 0));
        assert_eq!(load.own_limit(u32::MAX), u32::MAX - 800);
        load.set_others(u32::MAX, u8::MAX);
        assert_eq!(load.own_limit(u32::MAX), u32::MAX - MOST_IN_FLIGHT);
        load.set_others(0, 0);
        assert_eq!((load.own_limit(u32::MAX), load.counted()), (u32::MAX, 0));
    }

    #[test]
    fn decisions_follow_a_part_of_the_others_slowly() {
        let (load, work) = (Load::default(), TokensInFlight::default());
        let mut steps = Vec::new();
        for _ in 0..200 {
            steps.push(load.counted());
            load.set_others(40, 3);
            work.set_others(4000, 400, 3);
        }
        assert!(steps.is_sorted() && steps[1] == 0 && (6..=7).contains(&steps[25]), "{steps:?}");
        assert_eq!((load.counted(), load.of_all()), (10, 40));
        assert_eq!((work.counted_tokens(), work.counted_prefill_tokens()), (1000, 100));
        for _ in 0..1000 {
            load.set_others(0, 3);
        }
        assert!(load.counted_exactly() < 0.001, "nothing is left");
        load.set_others(1, 1);
        assert!(load.counted() == 0 && load.counted_exactly() > 0.0, "it decides between equals");
        work.set_others(0, 0, 0);
        assert_eq!(work.counted_tokens(), 0);
    }

    #[test]
    fn permits_end_where_those_of_all_reach_the_limit() {
        let load = Load::default();
        load.set_others(2, 1);
        assert_eq!((0..5).filter(|_| load.try_begin(4)).count(), 2);
        load.set_others(0, 1);
        assert_eq!((0..5).filter(|_| load.try_begin(4)).count(), 2);
        assert_eq!(load.in_flight(), 4);
    }
}
