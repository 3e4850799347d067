//! The freeze of a backend and its probes.

use std::sync::atomic::{AtomicU64, Ordering};

use penstock_api::units::{Timestamp, to_micros};
use penstock_config::BreakerConfig;

use super::BreakerState;
use crate::fleet::probe_slot::ProbeSlot;

/// The freeze of a backend, and the time of its next probe.
#[derive(Debug, Default)]
pub(super) struct Freeze {
    /// The start of the freeze; 0 while it is not frozen.
    since: AtomicU64,
    /// The time from which the next request may probe.
    until: AtomicU64,
    /// The pause after the next probe, and the longest pause, in microseconds.
    pause: AtomicU64,
    max_pause: AtomicU64,
    pub(super) probe: ProbeSlot,
}

impl Freeze {
    pub(super) fn begin(&self, config: &BreakerConfig, now: Timestamp) {
        self.pause.store(to_micros(config.open), Ordering::Relaxed);
        self.max_pause.store(to_micros(config.max_open), Ordering::Relaxed);
        self.wait_for_probe(now);
        self.since.store(now.0, Ordering::Relaxed);
    }

    /// Ends it. Returns whether there was one.
    pub(super) fn end(&self) -> bool {
        self.since.load(Ordering::Relaxed) != 0 && self.since.swap(0, Ordering::Relaxed) != 0
    }

    /// Its start; `None` if there is none.
    pub(super) fn since(&self) -> Option<Timestamp> {
        Some(Timestamp(self.since.load(Ordering::Relaxed))).filter(|since| since.0 != 0)
    }

    pub(super) fn state(&self, now: Timestamp) -> BreakerState {
        match self.since() {
            None => BreakerState::Closed,
            Some(_) if self.until.load(Ordering::Relaxed) <= now.0 && self.probe.is_free() => {
                BreakerState::HalfOpen
            }
            Some(_) => BreakerState::Open,
        }
    }

    /// Takes the probe slot. The next probe waits for this one, and for a longer pause each time.
    /// Returns the pause before it, in microseconds.
    pub(super) fn try_take_probe(&self, now: Timestamp) -> Option<u64> {
        self.probe.try_take().then(|| self.wait_for_probe(now))
    }

    /// Undoes the longer pause after a probe that proved nothing.
    pub(super) fn set_pause(&self, pause: u64) {
        self.pause.store(pause, Ordering::Relaxed);
    }

    fn wait_for_probe(&self, now: Timestamp) -> u64 {
        let Self { until, pause, max_pause, .. } = self;
        let wait = pause.load(Ordering::Relaxed);
        until.store(now.0.saturating_add(wait), Ordering::Relaxed);
        let longer = wait.saturating_mul(2).min(max_pause.load(Ordering::Relaxed));
        pause.store(longer, Ordering::Relaxed);
        wait
    }
}
