//! Return times of refused requests. Each takes one of the openings that are known to come, so that
//! a refused burst does not return as a burst and is refused again. Every computed `Retry-After`
//! comes from here.

use std::collections::VecDeque;
use std::hash::Hash;
use std::time::Duration;

use ahash::{HashMap, RandomState};
use parking_lot::Mutex;
use penstock_api::units::{Timestamp, to_micros};

use crate::fleet::{MAX_WAIT_S, Openings};

/// The length of a tick in microseconds: returns are remembered by ticks.
const TICK_US: u64 = 250_000;
const TICKS_PER_SECOND: u64 = 1_000_000 / TICK_US;
/// The most lines whose returns are remembered; beyond that those without returns to come are
/// forgotten, or all.
const MAX_LINES: usize = 1024;

/// The returns to come in one line.
#[derive(Debug, Default)]
struct Returns {
    /// The tick since the start that the first entry of `counts` belongs to.
    first: u64,
    /// The number of returns in each tick.
    counts: VecDeque<u32>,
}

impl Returns {
    /// Takes the first opening that no earlier return needs. Returns the seconds until then.
    fn take(&mut self, now: u64, openings: &Openings) -> u64 {
        // Those of this tick have come, or are about to: the openings are what they leave.
        while self.first <= now && self.counts.pop_front().is_some() {
            self.first += 1;
        }
        if self.counts.is_empty() {
            self.first = now;
        }
        // Another thread may have been here with a later time.
        let now = now.max(self.first.saturating_sub(1));
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
                return wait;
            }
        }
        MAX_WAIT_S
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

/// The returns of all lines: of each model, and of each limit of a client.
#[derive(Debug, Default)]
pub struct ReturnTimes {
    lines: Mutex<HashMap<u64, Returns>>,
    hasher: RandomState,
}

impl ReturnTimes {
    /// The `Retry-After` of a refused request: whole seconds, from 1 to 120. Requests of the same
    /// `line` share its openings.
    pub fn after(&self, line: impl Hash, openings: &Openings, now: Timestamp) -> Duration {
        let line = self.hasher.hash_one(line);
        let tick = now.0 / TICK_US;
        let mut lines = self.lines.lock();
        if lines.len() >= MAX_LINES && !lines.contains_key(&line) {
            lines.retain(|_, returns| returns.first + returns.counts.len() as u64 > tick);
            if lines.len() >= MAX_LINES {
                lines.clear();
            }
        }
        Duration::from_secs(lines.entry(line).or_default().take(tick, openings))
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
        (0..count).map(|_| times.after("m", openings, at(now)).as_secs()).collect()
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
        let other = times.after("other", &openings(700), at(1000));
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
            times.after(line, &openings, at(0));
        }
        assert!(times.lines.lock().len() <= MAX_LINES);
        let longest = times.lines.lock().values().map(|one| one.counts.len()).max();
        assert!(longest.is_some_and(|length| length <= LENGTH), "{longest:?}");
    }
}
