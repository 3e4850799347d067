//! A backend as the balancer knows it while it runs: its identity and everything learned about it.
//! All of it is atomics, read by decisions and written by attempts and checks.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::time::Duration;

use super::addresses::Addresses;
use super::forecast::Forecasts;
use super::health::{Breaker, Cooldown, Health, HealthTracker, Outcome};
use super::load::{Load, Taken, Work};
use super::ramp::Ramp;
use super::telemetry::Telemetry;
use crate::config::{BackendConfig, BreakerConfig};
use crate::units::{Timestamp, to_micros};

/// The most backends a configuration may name.
pub const MAX_BACKENDS: usize = 1024;

static SERIALS: AtomicU64 = AtomicU64::new(0);

/// A process-stable number of a backend: given at first sight of (name, URL, engine) and reused
/// only after the last trace of that backend is gone.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct BackendId(pub u16);

/// A set of backends, as a bitmask.
#[derive(Debug, Clone, Copy, Default)]
pub struct BackendSet([u64; MAX_BACKENDS / 64]);

impl BackendSet {
    /// Adds a backend.
    pub fn insert(&mut self, id: BackendId) {
        if let Some(word) = self.0.get_mut(usize::from(id.0) / 64) {
            *word |= 1 << (id.0 % 64);
        }
    }

    /// Whether no backend is in the set.
    pub fn is_empty(&self) -> bool {
        self.0.iter().all(|word| *word == 0)
    }

    /// Whether a backend is in the set.
    pub fn contains(&self, id: BackendId) -> bool {
        self.0.get(usize::from(id.0) / 64).is_some_and(|word| word & (1 << (id.0 % 64)) != 0)
    }
}

/// What is learned about one backend. Shared by every generation that names the same backend.
// What each decision reads of each candidate comes first and shares one cache line.
#[derive(Debug)]
#[repr(C, align(64))]
pub struct BackendState {
    /// Requests in flight.
    pub load: Load,
    /// The verdict of the health checks.
    pub health: HealthTracker,
    /// Set by the admin API or the configuration: it takes no new requests.
    pub draining: AtomicBool,
    /// Whether it is on its way back, and gets less than its share.
    warming: AtomicBool,
    check_micros: AtomicU32,
    /// The pause it asked for with its own 429 or 503.
    pub cooldown: Cooldown,
    /// The circuit breaker, fed by traffic.
    pub breaker: Breaker,
    /// Its number.
    pub id: BackendId,
    /// Like its number, and never given to another backend.
    pub serial: u64,
    /// Its name in configuration, metrics and messages.
    pub name: Box<str>,
    /// Where it listens, resolved in the background.
    pub addresses: Addresses,
    /// Tokens of the requests in flight.
    pub work: Work,
    /// When what is in flight will have ended.
    pub forecasts: Forecasts,
    /// What its engine told of itself.
    pub telemetry: Telemetry,
    ramp: Ramp,
    checked_at: AtomicU64,
}

const _: () = assert!(std::mem::offset_of!(BackendState, breaker) + size_of::<u64>() <= 64);

impl BackendState {
    /// A backend nothing is known about yet.
    pub fn new(id: BackendId, config: &BackendConfig) -> Self {
        Self::named(id, SERIALS.fetch_add(1, Ordering::Relaxed), &config.name)
    }

    /// A stand-in for decisions that are not acted on; [`BackendState::follow`] keeps it up to date.
    #[must_use]
    pub fn stand_in(&self) -> Self {
        let stand_in = Self::named(self.id, self.serial, &self.name);
        stand_in.follow(self, None);
        stand_in
    }

    /// Takes over what decisions read of the backend it stands in for, as if the request that
    /// takes `own` of it were not in flight there.
    pub fn follow(&self, other: &Self, own: Option<Taken>) {
        self.load.follow(&other.load, own);
        self.work.follow(&other.work, own);
        self.health.set(other.health.status());
        self.cooldown.follow(&other.cooldown);
        self.breaker.follow(&other.breaker);
        if let Some(own) = own {
            own.free_probe(self);
        }
        self.ramp.follow(&other.ramp);
        self.telemetry.follow(&other.telemetry);
        for (flag, others) in [(&self.draining, &other.draining), (&self.warming, &other.warming)] {
            flag.store(others.load(Ordering::Relaxed), Ordering::Relaxed);
        }
        self.check_micros.store(other.check_micros(), Ordering::Relaxed);
    }

    fn named(id: BackendId, serial: u64, name: &str) -> Self {
        Self {
            id,
            serial,
            name: name.into(),
            load: Load::default(),
            work: Work::default(),
            health: HealthTracker::default(),
            breaker: Breaker::default(),
            cooldown: Cooldown::default(),
            ramp: Ramp::default(),
            forecasts: Forecasts::default(),
            telemetry: Telemetry::default(),
            draining: AtomicBool::new(false),
            warming: AtomicBool::new(false),
            addresses: Addresses::default(),
            check_micros: AtomicU32::new(0),
            checked_at: AtomicU64::new(0),
        }
    }

    /// What people see: draining wins over the checks' verdict.
    pub fn status(&self) -> Health {
        if self.draining.load(Ordering::Relaxed) { Health::Draining } else { self.health.status() }
    }

    /// Begins its way back: its share of the requests grows for so long.
    pub fn warm_up(&self, now: Timestamp, takes: Duration) {
        if !takes.is_zero() {
            self.ramp.start(now, takes);
            self.warming.store(true, Ordering::Release);
        }
    }

    /// Whether it may get less than its share.
    pub fn is_warming(&self) -> bool {
        self.warming.load(Ordering::Relaxed)
    }

    /// The part of its share that it may get now: 1 unless it is on its way back.
    pub fn share(&self, now: Timestamp) -> f32 {
        if !self.warming.load(Ordering::Acquire) {
            return 1.0;
        }
        let share = self.ramp.share(now);
        if share >= 1.0 {
            self.warming.store(false, Ordering::Relaxed);
        }
        share
    }

    /// How long the last successful health check took; zero before the first.
    pub fn check_latency(&self) -> Duration {
        Duration::from_micros(self.check_micros.load(Ordering::Relaxed).into())
    }

    /// Pretends a latency: for `explain` on a saved fleet and for tests.
    pub fn set_check_latency(&self, took: Duration) {
        let micros = u32::try_from(to_micros(took)).unwrap_or(u32::MAX);
        self.check_micros.store(micros, Ordering::Relaxed);
    }

    /// The same in microseconds.
    pub fn check_micros(&self) -> u32 {
        self.check_micros.load(Ordering::Relaxed)
    }

    /// When the last health check ended; `None` before the first.
    pub fn checked_at(&self) -> Option<Timestamp> {
        match self.checked_at.load(Ordering::Relaxed) {
            0 => None,
            micros => Some(Timestamp(micros)),
        }
    }

    /// Takes in the end of a health check. Returns the new verdict when it changed.
    pub fn learn_check(&self, check: Check, rise: u32, fall: u32) -> Option<Health> {
        self.checked_at.store(check.at.0.max(1), Ordering::Relaxed);
        if let Some(took) = check.passed {
            let micros = u32::try_from(to_micros(took)).unwrap_or(u32::MAX);
            self.check_micros.store(micros.max(1), Ordering::Relaxed);
        }
        if check.passed.is_some() {
            // A check got through, so the next request may try at once instead of waiting.
            self.breaker.reached(check.at);
        }
        self.health.learn(check.passed.is_some(), rise, fall)
    }

    /// Takes in how an attempt ended: rest, breaker.
    pub fn learn_outcome(&self, outcome: Outcome, from: Source, config: &BreakerConfig) {
        if let Outcome::Busy { rest, status } = outcome {
            self.cooldown.until(from.at.after(rest), status);
        }
        self.breaker.learn(outcome, from, config);
    }
}

/// How one health check ended.
#[derive(Debug, Clone, Copy)]
pub struct Check {
    /// When it ended.
    pub at: Timestamp,
    /// How long it took, when it passed.
    pub passed: Option<Duration>,
}

/// Who saw an outcome, and when.
#[derive(Debug, Clone, Copy)]
pub struct Source {
    /// When the attempt ended.
    pub at: Timestamp,
    /// A hash of the client's key, or else of its address: one client alone opens no breaker.
    pub client: u64,
    /// Whether the attempt held the breaker's probe slot.
    pub probe: bool,
}

/// Reaches a backend's state from anything that holds it.
pub type SharedBackend = Arc<BackendState>;
