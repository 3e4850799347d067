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

use crate::fleet::{MAX_WAIT_S, Openings};

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
    /// The tick since the start that the first entry of `counts` belongs to.
    first: u64,
    /// The number of returns in each tick.
    counts: VecDeque<u32>,
    /// The newest of them, by the time of their refusal.
    promises: VecDeque<Promise>,
}

impl Returns {
    /// Takes the first opening that no earlier return needs. Returns the seconds until then.
    fn take(&mut self, now: u64, request: Option<Fingerprint>, openings: &Openings) -> u64 {
        // Those of this tick have come, or are about to: the openings are what they leave.
        while self.first <= now && self.counts.pop_front().is_some() {
            self.first += 1;
        }
        if self.counts.is_empty() {
            self.first = now;
        }
        // Another thread may have been here with a later time.
        let now = now.max(self.first.saturating_sub(1));
        self.release(now, request);
        // Two returns that are this far apart can use the same room, one after the other.
        let hold = to_micros(openings.hold()).div_ceil(TICK_US).max(1);
        let sums = self.sums();
        let sum_before = |tick: u64| {
            let index = usize::try_from(tick.saturating_sub(self.first)).unwrap_or(usize::MAX);
            sums.get(index.min(sums.len() - 1)).copied().unwrap_or(0)
        };
        for (wait, open) in openings.after_seconds() {
            let tick = now + wait * TICKS_PER_SECOND;
            let (from, to) = (tick.saturating_sub(hold - 1), tick.saturating_add(hold));
            if sum_before(to) - sum_before(from) < open {
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
    fn sums(&self) -> [u32; LENGTH] {
        let mut sums = [0; LENGTH];
        let mut sum = 0_u32;
        let mut counts = self.counts.iter();
        for place in &mut sums {
            *place = sum;
            sum = sum.saturating_add(counts.next().copied().unwrap_or(0));
        }
        sums
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
        let line = self.hasher.hash_one(line);
        let tick = now.0 / TICK_US;
        let mut lines = self.lines.lock();
        if lines.len() >= MAX_LINES && !lines.contains_key(&line) {
            lines.retain(|_, returns| returns.first + returns.counts.len() as u64 > tick);
            if lines.len() >= MAX_LINES {
                lines.clear();
            }
        }
        Duration::from_secs(lines.entry(line).or_default().take(tick, request, openings))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(millis: u64) -> Timestamp {
        Timestamp(millis * 1000)
    }

    fn seconds(seconds: u64) -> Duration {
        Duration::from_secs(seconds)
    }

    fn waits(times: &ReturnTimes, openings: &Openings, now: u64, count: usize) -> Vec<u64> {
        (0..count).map(|_| times.after("m", None, openings, at(now)).as_secs()).collect()
    }

    #[test]
    fn burst_is_spread_over_the_slots_and_the_time_that_each_is_taken() {
        let mut two = Openings::default();
        two.add(seconds(5), 2, Duration::from_millis(8400));
        assert_eq!(waits(&ReturnTimes::default(), &two, 10_000, 6), [5, 5, 14, 14, 23, 23]);
        let mut uneven = Openings::default();
        uneven.add(seconds(1), 1, seconds(8));
        uneven.add(seconds(6), 1, seconds(8));
        assert_eq!(waits(&ReturnTimes::default(), &uneven, 0, 5), [1, 6, 9, 14, 17]);
    }

    #[test]
    fn burst_is_spread_by_a_fractional_rate() {
        let spread = |interval_ms| {
            let interval = Duration::from_millis(interval_ms);
            let openings = Openings::at_rate(interval, interval);
            waits(&ReturnTimes::default(), &openings, 0, 8)
        };
        assert_eq!(spread(2000), [2, 4, 6, 8, 10, 12, 14, 16]);
        assert_eq!(spread(1500), [2, 3, 5, 6, 8, 9, 12, 13]);
        assert_eq!(spread(300), [1, 1, 1, 2, 2, 2, 3, 3]);
        assert_eq!(spread(60_000)[..3], [60, 120, 120], "none is sent away for longer");
    }

    #[test]
    fn later_refusals_take_what_is_left() {
        let times = ReturnTimes::default();
        let openings = |wait_ms| {
            let mut openings = Openings::default();
            openings.add(Duration::from_millis(wait_ms), 1, seconds(3));
            openings
        };
        assert_eq!(waits(&times, &openings(1700), 0, 2), [2, 5]);
        assert_eq!(waits(&times, &openings(700), 1000, 1), [7], "2 and 5 are taken");
        assert_eq!(waits(&times, &openings(700), 60_000, 1), [1]);
        let other = times.after("other", None, &openings(700), at(1000));
        assert_eq!(other.as_secs(), 1, "another line");
    }

    #[test]
    fn client_that_returns_gives_its_opening_back() {
        let times = ReturnTimes::default();
        let openings = |wait| Openings::at_rate(seconds(wait), seconds(24));
        assert_eq!(waits(&times, &openings(2), 0, 1), [2]);
        assert_eq!(waits(&times, &openings(3), 2100, 1), [3], "the first one is back");
    }

    #[test]
    fn client_that_polls_has_a_few_openings() {
        let times = ReturnTimes::default();
        let refuse = |client, now| {
            let mut openings = Openings::default();
            openings.add(seconds(9).saturating_sub(Duration::from_millis(now)), 1, seconds(9));
            let request = Some(Fingerprint::of(client, b"{}"));
            times.after("m", request, &openings, at(now)).as_secs()
        };
        let polled: Vec<u64> = (0..9).map(|poll| refuse(1, poll * 1000)).collect();
        assert_eq!(polled, [9, 17, 25, 33, 5, 13, 21, 29, 1], "four openings in turn");
        assert_eq!(refuse(2, 8000), 37, "another client finds the fifth free");
    }

    #[test]
    fn client_that_polls_quickly_has_a_bounded_number_of_openings() {
        let times = ReturnTimes::default();
        let mut one_a_second = Openings::default();
        one_a_second.add(seconds(1), 1, seconds(1));
        let request = Some(Fingerprint::of(1, b"{}"));
        let refuse = |request, now| times.after("m", request, &one_a_second, at(now)).as_secs();
        let polled = (0..200).map(|poll| refuse(request, poll)).max();
        assert_eq!(polled, Some(64));
        assert_eq!(refuse(None, 200), 65, "another client");
    }

    #[test]
    fn equal_requests_of_a_burst_are_not_one() {
        let times = ReturnTimes::default();
        let mut one = Openings::default();
        one.add(seconds(3), 1, seconds(3));
        let request = Some(Fingerprint::of(1, b"{}"));
        let waits = [0, 1000, 2000].map(|now| times.after("m", request, &one, at(now)).as_secs());
        assert_eq!(waits, [3, 5, 7]);
    }

    #[test]
    fn fingerprint_is_of_the_client_and_the_whole_of_a_short_body() {
        let of = |client, body: &[u8]| Fingerprint::of(client, body);
        let long = |last: u8| [vec![b'a'; 40_000], vec![last]].concat();
        assert_eq!(of(1, &long(b'a')), of(1, &long(b'a')));
        assert_ne!(of(1, &long(b'a')), of(1, &long(b'b')));
        assert_ne!(of(1, b""), of(2, b""));
        assert_ne!(of(1, &[b'a'; 40_000]), of(1, &[b'a'; 40_001]));
    }

    #[test]
    fn time_may_go_back_between_two_threads() {
        let times = ReturnTimes::default();
        let mut one = Openings::default();
        one.add(seconds(1), 1, seconds(1));
        assert_eq!(waits(&times, &one, 60_000, 2), [1, 2]);
        assert_eq!(waits(&times, &one, 1000, 1), [3]);
        assert!(times.lines.lock().values().all(|one| one.counts.len() < LENGTH));
    }

    #[test]
    fn unlimited_room_takes_all_at_once() {
        let mut openings = Openings::default();
        openings.add(seconds(2), 1, seconds(9));
        openings.add_unlimited(Duration::from_millis(3200));
        assert_eq!(waits(&ReturnTimes::default(), &openings, 0, 4), [2, 4, 4, 4]);
        assert_eq!(waits(&ReturnTimes::default(), &Openings::default(), 0, 1), [120]);
    }

    #[test]
    fn returns_and_lines_are_bounded() {
        let times = ReturnTimes::default();
        let openings = Openings::at_rate(Duration::ZERO, seconds(1));
        assert_eq!(waits(&times, &openings, 0, 500).last(), Some(&120));
        for line in 0..3000 {
            times.after(line, None, &openings, at(0));
        }
        assert!(times.lines.lock().len() <= MAX_LINES);
        let longest = times.lines.lock().values().map(|one| one.counts.len()).max();
        assert!(longest.is_some_and(|length| length <= LENGTH), "{longest:?}");
    }
}
