//! Where time comes from. Decisions take a [`Timestamp`] as an argument; only the edges ask a
//! [`Clock`], so tests and replays can set the time. Bottom layer.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use once_cell::sync::Lazy;

use crate::units::{Timestamp, to_micros};

static PROCESS_START: Lazy<Instant> = Lazy::new(monotonic);

#[expect(
    clippy::disallowed_methods,
    reason = "this file is where the crate reads the system's clock"
)]
fn monotonic() -> Instant {
    Instant::now()
}

/// A source of time.
pub trait Clock: Send + Sync {
    /// The time since this clock started.
    fn now(&self) -> Timestamp;
}

/// The machine's monotonic clock, counted from the first time the process asked for it.
#[derive(Debug, Clone, Copy, Default)]
pub struct SystemClock;

impl Clock for SystemClock {
    fn now(&self) -> Timestamp {
        now()
    }
}

/// The time since the process's clock started: what [`SystemClock`] shows.
pub fn now() -> Timestamp {
    Timestamp(to_micros(PROCESS_START.elapsed()))
}

/// Measures how long something takes.
#[derive(Debug, Clone, Copy)]
pub struct Stopwatch(Instant);

impl Stopwatch {
    /// Starts to measure.
    pub fn start() -> Self {
        Self(monotonic())
    }

    /// The time since.
    pub fn elapsed(self) -> Duration {
        self.0.elapsed()
    }
}

/// Seconds since 1970, for `created` fields and the like; never for measuring.
pub fn unix_seconds() -> u64 {
    unix_time().as_secs()
}

/// The time since 1970, for logs and traces; never for measuring.
#[expect(
    clippy::disallowed_methods,
    reason = "this file is where the crate reads the system's clock"
)]
pub fn unix_time() -> Duration {
    SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default()
}

/// The time the calling thread has spent on a processor.
pub fn thread_cpu_time() -> Duration {
    let time = nix::time::clock_gettime(nix::time::ClockId::CLOCK_THREAD_CPUTIME_ID);
    time.map(Duration::from).unwrap_or_default()
}

/// A clock that stands still until it is told to move.
#[derive(Debug, Default)]
pub struct ManualClock(AtomicU64);

impl ManualClock {
    /// Moves the clock forward.
    pub fn advance(&self, by: Duration) {
        self.0.fetch_add(to_micros(by), Ordering::Relaxed);
    }
}

impl Clock for ManualClock {
    fn now(&self) -> Timestamp {
        Timestamp(self.0.load(Ordering::Relaxed))
    }
}
