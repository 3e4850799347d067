//! Whether a backend may be used: the health checks' verdict, the circuit breaker fed by traffic,
//! and the rest a backend asks for with its own 429 or 503.

use std::sync::atomic::{AtomicBool, AtomicU8, AtomicU32, AtomicU64, Ordering};
use std::time::Duration;

use super::backend::Source;
use crate::config::BreakerConfig;
use crate::units::Timestamp;

/// The state of a backend, as people see it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
pub enum Health {
    /// Not checked yet.
    Unknown,
    /// The checks pass.
    Healthy,
    /// The checks fail.
    Unhealthy,
    /// Told to take no new requests.
    Draining,
}

impl Health {
    /// The name in `/fleet` and in messages.
    pub fn name(self) -> &'static str {
        match self {
            Self::Unknown => "unknown",
            Self::Healthy => "healthy",
            Self::Unhealthy => "unhealthy",
            Self::Draining => "draining",
        }
    }

    /// The state called `name`.
    pub fn from_name(name: &str) -> Option<Self> {
        [Self::Unknown, Self::Healthy, Self::Unhealthy, Self::Draining]
            .into_iter()
            .find(|state| state.name() == name)
    }
}

/// Counts consecutive checks; the first one decides at once.
#[derive(Debug, Default)]
pub struct HealthTracker {
    status: AtomicU8,
    streak: AtomicU32,
}

impl HealthTracker {
    /// The verdict now.
    pub fn status(&self) -> Health {
        match self.status.load(Ordering::Relaxed) {
            1 => Health::Healthy,
            2 => Health::Unhealthy,
            _ => Health::Unknown,
        }
    }

    /// Sets the verdict: for `explain` on a saved fleet and for tests.
    pub fn set(&self, status: Health) {
        self.status.store(status as u8, Ordering::Relaxed);
        self.streak.store(0, Ordering::Relaxed);
    }

    /// Takes in one check (one writer: the checker). Returns the new verdict when it changed.
    pub fn learn(&self, passed: bool, rise: u32, fall: u32) -> Option<Health> {
        let (verdict, needed) =
            if passed { (Health::Healthy, rise) } else { (Health::Unhealthy, fall) };
        let status = self.status();
        if status == verdict {
            self.streak.store(0, Ordering::Relaxed);
            return None;
        }
        let streak = self.streak.fetch_add(1, Ordering::Relaxed) + 1;
        if status != Health::Unknown && streak < needed {
            return None;
        }
        self.set(verdict);
        Some(verdict)
    }
}

/// How an attempt ended, by what a backend's health, breaker and latency may learn from it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Outcome {
    /// A whole answer.
    Ok,
    /// A 4xx: the client's doing.
    Client,
    /// A 429 or 503: the backend rests, the breaker learns nothing.
    Busy {
        /// How long it rests.
        rest: Duration,
        /// 429 or 503.
        status: u16,
    },
    /// No connection, or silence until a clock ran out.
    Unreachable,
    /// A 5xx, a cut stream, an answer that is not HTTP.
    Fault,
    /// The client left: nothing is learned.
    Cancel,
}

impl Outcome {
    /// The name in metrics and `/decisions`.
    pub fn name(self) -> &'static str {
        match self {
            Self::Ok => "ok",
            Self::Client => "client",
            Self::Busy { .. } => "busy",
            Self::Unreachable | Self::Fault => "fault",
            Self::Cancel => "cancel",
        }
    }
}

/// What the breaker says to a new request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum BreakerState {
    /// Requests pass.
    Closed,
    /// One request may probe now.
    HalfOpen,
    /// No request passes.
    Open,
}

/// Opens on consecutive failures to reach a backend, or on a high share of faults seen by more
/// than one client (vLLM answers 500 to over-long prompts: one client must not take a backend from
/// the others). After a while one request at a time may probe.
#[derive(Debug, Default)]
#[repr(C)]
pub struct Breaker {
    /// 0 while closed. First: it is all that most decisions read.
    open_until: AtomicU64,
    times_opened: AtomicU32,
    unreachable: AtomicU32,
    probing: AtomicBool,
    opened_by_faults: AtomicBool,
    window: Window,
}

impl Breaker {
    /// What a request would meet at `now`.
    pub fn state(&self, now: Timestamp) -> BreakerState {
        match self.open_until.load(Ordering::Relaxed) {
            0 => BreakerState::Closed,
            until if until <= now.0 && !self.probing.load(Ordering::Relaxed) => {
                BreakerState::HalfOpen
            }
            _ => BreakerState::Open,
        }
    }

    /// Whether requests pass without a look at the time.
    pub fn is_closed(&self) -> bool {
        self.open_until.load(Ordering::Relaxed) == 0
    }

    /// Sets the state as of `now`: for `explain` on a saved fleet and for tests.
    pub fn set(&self, state: BreakerState, now: Timestamp) {
        let until = match state {
            BreakerState::Closed => 0,
            BreakerState::HalfOpen => now.0.max(1),
            BreakerState::Open => u64::MAX,
        };
        self.open_until.store(until, Ordering::Relaxed);
    }

    /// The backend was reached by a check: when being out of reach is what opened the breaker, one
    /// request may probe from `now` on.
    pub fn reached(&self, now: Timestamp) {
        let is_open = self.open_until.load(Ordering::Relaxed) > now.0;
        if is_open && !self.opened_by_faults.load(Ordering::Relaxed) {
            self.open_until.store(now.0.max(1), Ordering::Relaxed);
        }
    }

    /// Takes over what requests meet at another one.
    pub(super) fn follow(&self, other: &Self) {
        self.open_until.store(other.open_until.load(Ordering::Relaxed), Ordering::Relaxed);
        self.probing.store(other.probing.load(Ordering::Relaxed), Ordering::Relaxed);
    }

    pub(super) fn try_take_probe(&self) -> bool {
        !self.probing.swap(true, Ordering::AcqRel)
    }

    pub(super) fn free_probe(&self) {
        self.probing.store(false, Ordering::Release);
    }

    /// Takes in how an attempt ended.
    pub fn learn(&self, outcome: Outcome, from: Source, config: &BreakerConfig) {
        match outcome {
            Outcome::Cancel => {}
            Outcome::Ok | Outcome::Client => {
                self.window.count(from, false, config.window);
                self.answered(from);
            }
            Outcome::Busy { .. } => self.answered(from),
            Outcome::Unreachable => {
                let count = self.unreachable.fetch_add(1, Ordering::Relaxed) + 1;
                if from.probe || count >= config.connect_failures {
                    self.opened_by_faults.store(false, Ordering::Relaxed);
                    self.open(from.at, config);
                }
            }
            Outcome::Fault => {
                self.window.count(from, true, config.window);
                if from.probe || self.window.is_bad(from.at, config) {
                    self.opened_by_faults.store(true, Ordering::Relaxed);
                    self.open(from.at, config);
                }
            }
        }
    }

    fn answered(&self, from: Source) {
        // Loads before stores: the common case must not dirty the cache line.
        if self.unreachable.load(Ordering::Relaxed) != 0 {
            self.unreachable.store(0, Ordering::Relaxed);
        }
        if from.probe {
            self.open_until.store(0, Ordering::Relaxed);
            self.times_opened.store(0, Ordering::Relaxed);
            self.window.clear();
        }
    }

    fn open(&self, now: Timestamp, config: &BreakerConfig) {
        if self.open_until.load(Ordering::Relaxed) > now.0 {
            return;
        }
        let doublings = self.times_opened.fetch_add(1, Ordering::Relaxed).min(16);
        let pause = config.open.saturating_mul(1 << doublings).min(config.max_open);
        self.open_until.store(now.after(pause).0.max(1), Ordering::Relaxed);
    }
}

const BUCKETS: u64 = 6;

/// Answers and faults of the last while, in six buckets that are reused as time passes.
#[derive(Debug, Default)]
struct Window([Bucket; 6]);

#[derive(Debug, Default)]
struct Bucket {
    /// Which stretch of time the counts belong to.
    epoch: AtomicU64,
    answers: AtomicU32,
    faults: AtomicU32,
    /// One bit per client that saw a fault, by hash.
    clients: AtomicU64,
}

impl Window {
    fn epoch(at: Timestamp, window: Duration) -> u64 {
        let bucket = crate::units::to_micros(window).max(BUCKETS) / BUCKETS;
        at.0 / bucket + 1
    }

    fn count(&self, from: Source, fault: bool, window: Duration) {
        let epoch = Self::epoch(from.at, window);
        let at = usize::try_from(epoch % BUCKETS).unwrap_or(0);
        let Some(bucket) = self.0.get(at) else { return };
        let seen = bucket.epoch.load(Ordering::Relaxed);
        // A count or two may be lost when two threads turn a bucket over at once; a share of a
        // window of many answers does not care.
        if seen != epoch
            && bucket
                .epoch
                .compare_exchange(seen, epoch, Ordering::Relaxed, Ordering::Relaxed)
                .is_ok()
        {
            bucket.clear();
        }
        bucket.answers.fetch_add(1, Ordering::Relaxed);
        if fault {
            bucket.faults.fetch_add(1, Ordering::Relaxed);
            bucket.clients.fetch_or(1 << (from.client % 64), Ordering::Relaxed);
        }
    }

    fn is_bad(&self, now: Timestamp, config: &BreakerConfig) -> bool {
        let newest = Self::epoch(now, config.window);
        let (mut answers, mut faults, mut clients) = (0_u32, 0_u32, 0_u64);
        for bucket in &self.0 {
            if newest.saturating_sub(bucket.epoch.load(Ordering::Relaxed)) < BUCKETS {
                answers += bucket.answers.load(Ordering::Relaxed);
                faults += bucket.faults.load(Ordering::Relaxed);
                clients |= bucket.clients.load(Ordering::Relaxed);
            }
        }
        answers >= config.min_answers
            && f64::from(faults) >= config.error_share * f64::from(answers)
            && clients.count_ones() >= 2
    }

    fn clear(&self) {
        self.0.iter().for_each(Bucket::clear);
    }
}

impl Bucket {
    fn clear(&self) {
        self.answers.store(0, Ordering::Relaxed);
        self.faults.store(0, Ordering::Relaxed);
        self.clients.store(0, Ordering::Relaxed);
    }
}

/// The pause a backend asked for with its own 429 or 503.
#[derive(Debug, Default)]
pub struct Cooldown {
    /// 0 when it never rested or has answered since.
    until: AtomicU64,
    status: AtomicU32,
    probing: AtomicBool,
}

impl Cooldown {
    /// When the rest ends, if it lies ahead.
    pub fn ends(&self, now: Timestamp) -> Option<Timestamp> {
        let until = self.until.load(Ordering::Relaxed);
        (until > now.0).then_some(Timestamp(until))
    }

    /// Whether its end lies ahead.
    pub fn lasts(&self, now: Timestamp) -> bool {
        self.until.load(Ordering::Relaxed) > now.0
    }

    /// The status that asked for it: 429 or 503.
    pub fn status(&self) -> u16 {
        u16::try_from(self.status.load(Ordering::Relaxed)).unwrap_or(503)
    }

    /// Whether a request is already finding out if the rest may end early.
    pub fn is_probed(&self) -> bool {
        self.probing.load(Ordering::Relaxed)
    }

    /// Rests until then.
    pub fn until(&self, then: Timestamp, status: u16) {
        self.status.store(status.into(), Ordering::Relaxed);
        self.until.store(then.0, Ordering::Relaxed);
    }

    /// Takes over another one.
    pub(super) fn follow(&self, other: &Self) {
        self.until(Timestamp(other.until.load(Ordering::Relaxed)), other.status());
        self.probing.store(other.is_probed(), Ordering::Relaxed);
    }

    /// Ends the rest: the backend answered.
    pub fn end(&self) {
        if self.until.load(Ordering::Relaxed) != 0 {
            self.until.store(0, Ordering::Relaxed);
        }
    }

    pub(super) fn try_take_probe(&self) -> bool {
        !self.probing.swap(true, Ordering::AcqRel)
    }

    pub(super) fn free_probe(&self) {
        self.probing.store(false, Ordering::Release);
    }
}

#[cfg(test)]
mod tests;
