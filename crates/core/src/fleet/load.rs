//! The load in flight on a backend: requests, and their tokens.

use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

/// The bits of `Load::peers` that count requests; the rest counts replicas.
const COUNT_BITS: u32 = 24;
const MAX_IN_FLIGHT: u32 = (1 << COUNT_BITS) - 1;

/// The unit of `Load::level`.
const THOUSAND: u32 = 1000;
/// The divisor of each step of a level towards the reported value: it converges within some 5 s
/// while requests run.
// The reports of peers come late: followed slowly, two penstocks do not swing between backends.
const FOLLOWS: u64 = 25;

fn level_of(count: u32) -> u64 {
    u64::from(count) * u64::from(THOUSAND)
}

/// The next level after `peer_count` other replicas reported `reported` together. It approaches
/// this replica's part of the total, assuming that all replicas correct alike. Zero at once if no
/// replica is left.
fn followed(level: u64, reported: u64, peer_count: u8) -> u64 {
    if peer_count == 0 {
        return 0;
    }
    let each = reported / (u64::from(peer_count) + 1);
    // Rounded up: otherwise the level would stop short of the value by up to 24 units.
    let step = level.abs_diff(each).div_ceil(FOLLOWS);
    if level < each { level.saturating_add(step) } else { level.saturating_sub(step) }
}

/// The requests in flight on a backend, or for a model there.
#[derive(Debug, Default)]
pub struct Load {
    in_flight: AtomicU32,
    /// The share of other replicas' requests that decisions count, in thousandths.
    level: AtomicU32,
    /// The requests that other replicas last reported in flight, and the number of these replicas.
    /// One atomic, so that a limit is never computed from two different reports.
    peers: AtomicU32,
}

/// The tokens of a request on a backend.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct RequestTokens {
    /// The tokens of its prompt. Cached or not, they occupy the KV cache.
    pub(crate) prompt: u32,
    /// The tokens of its prompt that are probably not cached, so that the engine computes them.
    pub(crate) uncached: u32,
    /// The tokens expected of the response.
    pub(crate) output: u32,
}

/// The tokens of the requests in flight on a backend.
#[derive(Debug, Default)]
pub struct TokensInFlight {
    tokens: AtomicU64,
    prefill_tokens: AtomicU64,
    peer_tokens: AtomicU64,
    peer_prefill_tokens: AtomicU64,
}

impl TokensInFlight {
    /// The tokens of the requests in flight: prompts and expected responses.
    pub fn tokens(&self) -> u64 {
        self.tokens.load(Ordering::Relaxed)
    }

    /// The uncached tokens of the prompts in flight before the first byte of their response.
    pub fn prefill_tokens(&self) -> u64 {
        self.prefill_tokens.load(Ordering::Relaxed)
    }

    /// The value of [`TokensInFlight::tokens`] as decisions count it: see [`Load::counted`].
    pub fn counted_tokens(&self) -> u64 {
        self.tokens().saturating_add(self.peer_tokens.load(Ordering::Relaxed))
    }

    /// The value of [`TokensInFlight::prefill_tokens`] as decisions count it.
    pub fn counted_prefill_tokens(&self) -> u64 {
        self.prefill_tokens().saturating_add(self.peer_prefill_tokens.load(Ordering::Relaxed))
    }

    /// Sets the tokens that `peer_count` other replicas report together. Must be called once per
    /// interval.
    pub(super) fn set_peers(&self, tokens: u64, prefill_tokens: u64, peer_count: u8) {
        let places = [(&self.peer_tokens, tokens), (&self.peer_prefill_tokens, prefill_tokens)];
        for (place, reported) in places {
            let level = followed(place.load(Ordering::Relaxed), reported, peer_count);
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
    /// The requests that this replica dispatched and that have not ended.
    #[inline(always)]
    pub fn in_flight(&self) -> u32 {
        self.in_flight.load(Ordering::Relaxed)
    }

    /// The requests in flight of other replicas, as last reported.
    #[inline(always)]
    pub fn peers_in_flight(&self) -> u32 {
        self.peers.load(Ordering::Relaxed) & MAX_IN_FLIGHT
    }

    /// The number of other replicas that share the backend.
    pub fn peer_count(&self) -> u8 {
        u8::try_from(self.peers.load(Ordering::Relaxed) >> COUNT_BITS).unwrap_or(u8::MAX)
    }

    /// The requests in flight of all replicas.
    #[inline(always)]
    pub fn of_all(&self) -> u32 {
        self.in_flight().saturating_add(self.peers_in_flight())
    }

    /// The requests in flight as decisions count them: its own, and a slowly adjusted share of the
    /// other replicas'. Reports are up to two intervals old. If several replicas corrected at once
    /// for all that they read, they would all send to the same backend until the next report.
    #[inline(always)]
    pub fn counted(&self) -> u32 {
        self.in_flight().saturating_add(
            self.level.load(Ordering::Relaxed).saturating_add(THOUSAND / 2) / THOUSAND,
        )
    }

    /// The requests in flight as decisions count them, not rounded.
    #[expect(clippy::cast_precision_loss, reason = "a load needs few digits")]
    pub fn counted_exactly(&self) -> f32 {
        let level = self.level.load(Ordering::Relaxed) as f32 / THOUSAND as f32;
        self.in_flight() as f32 + level
    }

    /// The limit of this replica's own requests in flight if `limit` bounds those of all replicas:
    /// the room that the others leave, and at least an even share. Without the even share, a
    /// replica that takes each slot that becomes free would leave none to the others.
    #[inline(always)]
    pub(super) fn own_limit(&self, limit: u32) -> u32 {
        let packed = self.peers.load(Ordering::Relaxed);
        if packed == 0 {
            return limit;
        }
        let (count, peer_count) = (packed & MAX_IN_FLIGHT, (packed >> COUNT_BITS) + 1);
        // At least one, or no replica could send if `limit` is below their number.
        let share = (limit / peer_count).max(limit.min(1));
        limit.saturating_sub(count).max(share)
    }

    /// Sets the requests that `peer_count` other replicas report in flight together. Must be called
    /// once per interval. Returns whether there may be more room than before.
    pub fn set_peers(&self, count: u32, peer_count: u8) -> bool {
        let level =
            followed(self.level.load(Ordering::Relaxed).into(), level_of(count), peer_count);
        self.store_peers(level, count, peer_count)
    }

    /// Sets the requests of other replicas permanently: for `explain` on a saved fleet.
    pub fn restore_peers(&self, count: u32, peer_count: u8) {
        self.store_peers(level_of(count) / (u64::from(peer_count) + 1), count, peer_count);
    }

    fn store_peers(&self, level: u64, count: u32, peer_count: u8) -> bool {
        self.level.store(u32::try_from(level).unwrap_or(u32::MAX), Ordering::Relaxed);
        let packed = u32::from(peer_count) << COUNT_BITS | count.min(MAX_IN_FLIGHT);
        // In one total order with the registration of watchers for capacity.
        self.peers.swap(packed, Ordering::SeqCst) != packed
    }

    /// Sets a load: for `explain` on a saved fleet and for tests.
    pub fn set_in_flight(&self, count: u32) {
        self.in_flight.store(count, Ordering::Relaxed);
    }

    /// Counts one more request unless this replica's part of `limit` is used up.
    pub(super) fn try_begin(&self, limit: u32) -> bool {
        let limit = self.own_limit(limit);
        // In one step: the limit holds under any number of threads.
        let taken = self.in_flight.fetch_update(Ordering::AcqRel, Ordering::Relaxed, |now| {
            if now < limit { now.checked_add(1) } else { None }
        });
        taken.is_ok()
    }

    pub(super) fn end(&self) {
        // In one total order with the registration of watchers for capacity.
        self.in_flight.fetch_sub(1, Ordering::SeqCst);
    }
}

/// The probe slot an attempt holds beside its permit.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Probe {
    /// None: an ordinary attempt.
    #[default]
    None,
    /// The slot of the half-open circuit breaker.
    Breaker,
    /// The slot of the cooldown that expires first.
    Cooldown,
    /// The slot of the backend whose requests make no progress.
    Frozen,
    /// The slot of the evidence against the model on the backend.
    Evidence,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn limit_leaves_what_others_have_not_taken_and_an_even_share() {
        let load = Load::default();
        assert_eq!(load.own_limit(8), 8);
        load.set_peers(3, 1);
        assert_eq!((load.own_limit(8), load.of_all(), load.peers_in_flight()), (5, 3, 3));
        load.set_peers(8, 1);
        assert_eq!(load.own_limit(8), 4, "half of it, whatever the other has taken");
        load.set_peers(800, 3);
        assert_eq!((load.own_limit(8), load.own_limit(3), load.own_limit(0)), (2, 1, 0));
        assert_eq!(load.own_limit(u32::MAX), u32::MAX - 800);
        load.set_peers(u32::MAX, u8::MAX);
        assert_eq!(load.own_limit(u32::MAX), u32::MAX - MAX_IN_FLIGHT);
        load.set_peers(0, 0);
        assert_eq!((load.own_limit(u32::MAX), load.counted()), (u32::MAX, 0));
    }

    #[test]
    fn decisions_follow_a_part_of_the_others_slowly() {
        let (load, work) = (Load::default(), TokensInFlight::default());
        let mut steps = Vec::new();
        for _ in 0..200 {
            steps.push(load.counted());
            load.set_peers(40, 3);
            work.set_peers(4000, 400, 3);
        }
        assert!(steps.is_sorted() && steps[1] == 0 && (6..=7).contains(&steps[25]), "{steps:?}");
        assert_eq!((load.counted(), load.of_all()), (10, 40));
        assert_eq!((work.counted_tokens(), work.counted_prefill_tokens()), (1000, 100));
        for _ in 0..1000 {
            load.set_peers(0, 3);
        }
        assert!(load.counted_exactly() < 0.001, "nothing is left");
        load.set_peers(1, 1);
        assert!(load.counted() == 0 && load.counted_exactly() > 0.0, "it decides between equals");
        work.set_peers(0, 0, 0);
        assert_eq!(work.counted_tokens(), 0);
    }

    #[test]
    fn permits_end_where_those_of_all_reach_the_limit() {
        let load = Load::default();
        load.set_peers(2, 1);
        assert_eq!((0..5).filter(|_| load.try_begin(4)).count(), 2);
        load.set_peers(0, 1);
        assert_eq!((0..5).filter(|_| load.try_begin(4)).count(), 2);
        assert_eq!(load.in_flight(), 4);
    }
}
