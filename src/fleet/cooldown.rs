//! The cooldown: a pause that the backend itself requested with a 429 or 503.
//!
//! **Why beside the circuit breaker.** An overloaded engine is not a broken one. It says how long to
//! stay away (`Retry-After`, bounded and spread by `routing.cooldown`), and counting its 503s as faults
//! would open the breaker of a whole fleet exactly when every backend is needed.
//!
//! **When it starts and ends.** Each 429 or 503 sets its end again. It ends when that time has come, or
//! early with a complete response to the probe described below. Responses to requests that were sent
//! before the cooldown do not end it: they prove nothing about new ones.
//!
//! **When everything is in cooldown** one request at a time probes the backend whose cooldown expires
//! first, holding its probe slot; all others are refused at once with the remaining time. Without the
//! slot every waiting request would hit the same backend in the same moment (thundering herd).
//!
//! **What would break it.** `until` alone decides; `status` is shown to people only, so the two need no
//! common ordering. As with the breaker, a probe slot that is not freed would end all probing:
//! [`super::InflightGuard`] frees it when it drops.

use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};

use crate::units::Timestamp;

/// The cooldown of one backend.
#[derive(Debug, Default)]
pub struct Cooldown {
    /// 0 before the first cooldown and after a response that ended it.
    until: AtomicU64,
    status: AtomicU32,
    probing: AtomicBool,
}

impl Cooldown {
    /// When the cooldown ends; `None` outside one.
    pub fn ends_at(&self, now: Timestamp) -> Option<Timestamp> {
        let until = self.until.load(Ordering::Relaxed);
        (until > now.0).then_some(Timestamp(until))
    }

    /// Whether the backend is in cooldown.
    pub fn is_active(&self, now: Timestamp) -> bool {
        self.until.load(Ordering::Relaxed) > now.0
    }

    /// The status that started it: 429 or 503.
    pub fn status(&self) -> u16 {
        u16::try_from(self.status.load(Ordering::Relaxed)).unwrap_or(503)
    }

    /// Whether a request in flight already probes if the cooldown may end early.
    pub fn is_probed(&self) -> bool {
        self.probing.load(Ordering::Relaxed)
    }

    /// Starts a cooldown that lasts until then.
    pub fn start(&self, until: Timestamp, status: u16) {
        self.status.store(status.into(), Ordering::Relaxed);
        self.until.store(until.0, Ordering::Relaxed);
    }

    /// Ends the cooldown: the backend accepted a request.
    pub fn clear(&self) {
        // A load before the store: the common case must not dirty the cache line.
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
