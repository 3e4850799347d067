//! Scrapes without events: the result of a scrape is computed before the engine or the number of
//! requests in flight next changes, and published when a decision reads it.

use std::time::Duration;

use penstock_api::units::{Timestamp, to_micros};
use penstock_core::fleet::{BackendState, EngineSample};

use super::World;
use super::engines::{PICOS, SimEngine};
use crate::random::{Purpose, RandomStream};

/// The divisor of the interval that gives the maximum delay of a scrape.
const JITTER: u64 = 10;

/// The scrapes of one backend by one balancer.
#[derive(Debug)]
pub(super) struct Scrapes {
    interval: u64,
    /// The time of the first scrape.
    phase: u64,
    delay: u64,
    key: u64,
    /// The last two scrapes sent, by number; the later one is last.
    sent: [Option<(u64, EngineSample)>; 2],
    /// The number of the last scrape sent.
    last: Option<u64>,
    published: Option<u64>,
}

impl Scrapes {
    /// Creates the scrapes with id `id` of a run that starts at `start`.
    pub(super) fn new(interval: Duration, delay: Duration, seed: u64, id: u64, start: u64) -> Self {
        let interval = to_micros(interval).max(1);
        let mut stream = RandomStream::new(seed, Purpose::Scrapes, id);
        Self {
            interval,
            // Backends are not scraped in step, as in the program.
            phase: start.saturating_sub(stream.below(interval)),
            delay: to_micros(delay),
            key: stream.bits(),
            sent: [None, None],
            last: None,
            published: None,
        }
    }

    fn sent_at(&self, number: u64) -> u64 {
        let late = RandomStream::new(self.key, Purpose::Scrapes, number)
            .below((self.interval / JITTER).max(1));
        self.phase + number * self.interval + late
    }

    /// Returns the number of the last scrape sent at `now` or before.
    fn number_at(&self, now: u64) -> Option<u64> {
        let number = now.checked_sub(self.phase)? / self.interval;
        // The jitter may put the current scrape into the future.
        if self.sent_at(number) <= now { Some(number) } else { number.checked_sub(1) }
    }

    /// Computes the results of scrapes up to `now` that may still be read.
    pub(super) fn capture(&mut self, engine: &SimEngine, in_flight: u32, now: u64) {
        let Some(number) = self.number_at(now).filter(|number| self.last < Some(*number)) else {
            return;
        };
        let before = number.checked_sub(1).filter(|before| self.last < Some(*before));
        // Two at most: an older sample would be replaced before a decision could read it.
        for number in before.into_iter().chain([number]) {
            let sample = self.sample(engine, in_flight, number);
            self.sent = [self.sent[1], sample.map(|sample| (number, sample))];
        }
        self.last = Some(number);
    }

    fn sample(&self, engine: &SimEngine, in_flight: u32, number: u64) -> Option<EngineSample> {
        if !engine.is_up() || engine.lost_scrapes > 0 {
            return None;
        }
        let sent_at = self.sent_at(number);
        let found = engine.engine.telemetry(sent_at.saturating_mul(PICOS));
        let share = f64::from(found.used_blocks) / f64::from(found.total_blocks.max(1));
        Some(EngineSample {
            waiting: Some(to_f32(found.waiting as f64)),
            running: Some(to_f32(found.running as f64)),
            kv_utilization: Some(to_f32(share)),
            in_flight,
            sent_at: Timestamp(sent_at),
            interval: Duration::from_micros(self.interval),
        })
    }

    /// Publishes the last sample that has arrived by `now`.
    pub(super) fn publish(&mut self, engine: &SimEngine, state: &BackendState, now: u64) {
        self.capture(engine, state.load.in_flight(), now);
        let has_arrived = |sample: &&(u64, EngineSample)| sample.1.sent_at.0 + self.delay <= now;
        let sent = self.sent.iter().rev().flatten();
        match sent.filter(|sample| self.published < Some(sample.0)).find(has_arrived) {
            Some((number, sample)) => {
                state.telemetry.publish(*sample);
                self.published = Some(*number);
            }
            None if self.sent[1].is_none() && self.last.is_some() => state.telemetry.fail(),
            None => {}
        }
    }
}

#[expect(clippy::cast_possible_truncation, reason = "a reading needs few digits")]
fn to_f32(value: f64) -> f32 {
    value as f32
}

impl World<'_> {
    /// Computes the results of scrapes of a backend, before its state changes.
    pub(super) fn capture(&mut self, index: usize, now: u64) {
        self.learn_steps(index, now);
        let Some(engine) = self.engines.all.get(index) else { return };
        for balancer in &mut self.balancers {
            balancer.capture(index, engine, now);
        }
    }
}
