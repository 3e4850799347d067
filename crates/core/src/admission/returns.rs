//! Return times of refused requests. Each takes one of the openings that are known to come, so that
//! a refused burst does not return as a burst and is refused again. Every computed `Retry-After`
//! comes from here.

use std::collections::VecDeque;
use std::hash::Hash;
use std::time::Duration;

use ahash::{HashMap, RandomState};
use parking_lot::Mutex;
use penstock_api::units::{Timestamp, to_micros};
use xxhash_rust::xxh3::xxh3_64_with_seed;

use crate::fleet::{BackendSet, MAX_WAIT_S, Openings};

/// The length of a tick in microseconds: returns are remembered by ticks.
const TICK_US: u64 = 250_000;
const TICKS_PER_SECOND: u64 = 1_000_000 / TICK_US;
/// The number of equal requests with a return to come, times the age of the oldest in ticks, from
/// which on a further one counts as a repetition of the oldest: after ten seconds if one is to
/// return, after one second if ten are. Requests of a burst, and a few that follow each other, are
/// no repetitions: each needs an opening.
const REPEAT_TICKS: u64 = 10 * TICKS_PER_SECOND;
/// The most returns of equal requests, however close together they come.
const MAX_EQUAL: usize = 64;
/// The most returns per line that are remembered with their request.
const MAX_PROMISES: usize = 256;
/// The bytes of a body that identify it, at its start and at its end.
const COMPARED_BYTES: usize = 16 * 1024;
/// The most lines whose returns are remembered; beyond that those without returns to come are
/// forgotten, or all.
const MAX_LINES: usize = 1024;
/// The most lines with some of its backends that a line shares them with.
const MAX_OVERLAPS: usize = 32;

/// Identifies a request that its client sends again.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Fingerprint(u64);

impl Fingerprint {
    /// The fingerprint of a body that `client` sends.
    pub fn of(client: u64, body: &[u8]) -> Self {
        let start = body.get(..COMPARED_BYTES).unwrap_or(body);
        let end = body.get(body.len().saturating_sub(COMPARED_BYTES)..).unwrap_or_default();
        let seed = xxh3_64_with_seed(start, client ^ body.len() as u64);
        Self(xxh3_64_with_seed(end, seed))
    }
}

/// The return that a refused request was promised.
#[derive(Debug)]
struct Promise {
    request: Fingerprint,
    /// The tick of the return.
    due: u64,
    /// The tick of the refusal.
    made: u64,
}

/// The returns to come in one line.
#[derive(Debug, Default)]
struct Returns {
    /// The backends that have the openings; none for the limit of a client.
    backends: BackendSet,
    /// The tick since the start that the first entry of `counts` belongs to.
    first: u64,
    /// The number of returns in each tick.
    counts: VecDeque<u32>,
    /// The newest of them, by the time of their refusal.
    promises: VecDeque<Promise>,
}

impl Returns {
    /// Forgets the returns up to a tick. They have come, or are about to: the openings are what
    /// they leave.
    fn advance(&mut self, now: u64) {
        while self.first <= now && self.counts.pop_front().is_some() {
            self.first += 1;
        }
        if self.counts.is_empty() {
            self.first = now;
        }
    }

    /// Takes the first opening that no earlier return needs, of this line or of `others`. Returns
    /// the seconds until then.
    fn take(
        &mut self,
        now: u64,
        request: Option<Fingerprint>,
        openings: &Openings,
        others: &Others,
    ) -> u64 {
        // Another thread may have been here with a later time.
        let now = now.max(self.first.saturating_sub(1));
        self.release(now, request);
        // Two returns that are this far apart can use the same room, one after the other.
        let hold = to_micros(openings.hold()).div_ceil(TICK_US).max(1);
        let sums = self.sums(others);
        let sum_before = |tick: u64| {
            let index = usize::try_from(tick.saturating_sub(self.first)).unwrap_or(usize::MAX);
            sums.get(index.min(sums.len() - 1)).copied().unwrap_or(0.0)
        };
        for (wait, open) in openings.after_seconds() {
            let tick = now + wait * TICKS_PER_SECOND;
            let (from, to) = (tick.saturating_sub(hold - 1), tick.saturating_add(hold));
            if sum_before(to) - sum_before(from) < f64::from(open) {
                self.add(tick);
                self.promise(request, tick, now);
                return wait;
            }
        }
        MAX_WAIT_S
    }

    /// Takes back the opening of a request that did not wait for it.
    // Otherwise a client that polls would take one with each try, and those of all others would lie
    // ever later.
    fn release(&mut self, now: u64, request: Option<Fingerprint>) {
        self.promises.retain(|one| one.due > now);
        let is_equal = |one: &Promise| Some(one.request) == request;
        let Some(oldest) = self.promises.iter().position(is_equal) else { return };
        let count = self.promises.iter().filter(|one| is_equal(one)).count();
        let is_given_up = |one: &Promise| {
            count as u64 * now.saturating_sub(one.made) >= REPEAT_TICKS || count >= MAX_EQUAL
        };
        if !self.promises.get(oldest).is_some_and(is_given_up) {
            return;
        }
        let Some(promise) = self.promises.remove(oldest) else { return };
        let index = usize::try_from(promise.due - self.first).unwrap_or(usize::MAX);
        if let Some(count) = self.counts.get_mut(index) {
            *count = count.saturating_sub(1);
        }
    }

    fn promise(&mut self, request: Option<Fingerprint>, due: u64, now: u64) {
        let Some(request) = request else { return };
        if self.promises.len() >= MAX_PROMISES {
            self.promises.pop_front();
        }
        self.promises.push_back(Promise { request, due, made: now });
    }

    /// The number of returns before each tick, and before the one after the last.
    fn sums(&self, others: &Others) -> [f64; LENGTH] {
        let mut sums = [0.0; LENGTH];
        let mut sum = 0.0;
        let mut counts = self.counts.iter();
        for (place, others) in sums.iter_mut().zip(others) {
            *place = sum;
            sum += f64::from(counts.next().copied().unwrap_or(0)) + others;
        }
        sums
    }

    /// Adds the returns to those that another line sees from the tick `first` on: by the share of
    /// the backends that both have.
    fn add_to(&self, others: &mut Others, first: u64, backends: &BackendSet) {
        let share = f64::from(self.backends.shared_with(backends)) / f64::from(self.backends.len());
        for (tick, count) in (self.first..).zip(&self.counts) {
            let index = tick.checked_sub(first).and_then(|index| usize::try_from(index).ok());
            if let Some(place) = index.and_then(|index| others.get_mut(index)) {
                *place += share * f64::from(*count);
            }
        }
    }

    fn add(&mut self, tick: u64) {
        let index = usize::try_from(tick - self.first).unwrap_or(usize::MAX);
        debug_assert!(index < LENGTH - 1, "it is among the ticks that are looked ahead");
        while self.counts.len() <= index {
            self.counts.push_back(0);
        }
        if let Some(count) = self.counts.get_mut(index) {
            *count = count.saturating_add(1);
        }
    }
}

/// The number of ticks that are looked ahead, and one for the sum of all.
const LENGTH: usize = 482;
const _: () = assert!(LENGTH as u64 == MAX_WAIT_S * TICKS_PER_SECOND + 2);

/// The returns of other lines on the same backends, by tick.
type Others = [f64; LENGTH];

/// The returns of all lines: of each room, and of each limit of a client.
#[derive(Debug, Default)]
pub struct ReturnTimes {
    lines: Mutex<HashMap<u64, Returns>>,
    hasher: RandomState,
}

impl ReturnTimes {
    /// The `Retry-After` of a refused request: whole seconds, from 1 to 120. Requests of the same
    /// `line` share its openings. `request`: identifies it when it comes again; `None` for a body
    /// that is not read.
    pub fn after(
        &self,
        line: impl Hash,
        request: Option<Fingerprint>,
        openings: &Openings,
        now: Timestamp,
    ) -> Duration {
        self.take(self.hasher.hash_one(line), BackendSet::default(), request, openings, now)
    }

    /// The same for the openings of these backends. A line with some of them shares those: its
    /// returns count here by the share of its backends that are here.
    pub fn after_backends(
        &self,
        backends: BackendSet,
        request: Option<Fingerprint>,
        openings: &Openings,
        now: Timestamp,
    ) -> Duration {
        self.take(self.hasher.hash_one(backends), backends, request, openings, now)
    }

    fn take(
        &self,
        line: u64,
        backends: BackendSet,
        request: Option<Fingerprint>,
        openings: &Openings,
        now: Timestamp,
    ) -> Duration {
        let tick = now.0 / TICK_US;
        let mut lines = self.lines.lock();
        if lines.len() >= MAX_LINES && !lines.contains_key(&line) {
            lines.retain(|_, returns| returns.first + returns.counts.len() as u64 > tick);
            if lines.len() >= MAX_LINES {
                lines.clear();
            }
        }
        let own = lines.entry(line).or_default();
        own.backends = backends;
        own.advance(tick);
        let first = own.first;
        let mut others = [0.0; LENGTH];
        let overlaps = |(number, returns): &(&u64, &Returns)| {
            **number != line && returns.backends.shared_with(&backends) > 0
        };
        for (_, returns) in lines.iter().filter(overlaps).take(MAX_OVERLAPS) {
            returns.add_to(&mut others, first, &backends);
        }
        let own = lines.entry(line).or_default();
        Duration::from_secs(own.take(tick, request, openings, &others))
    }
}

#[cfg(test)]
mod tests;
