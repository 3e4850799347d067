//! The deadline of one attempt: first token, between tokens, or whole response, whichever applies,
//! and never later than the end of the whole request.
//!
//! Every token moves the deadline, while a timer is needed only when nothing arrives. So the timer
//! is a lower bound: it is set when an attempt has to wait, stays while the deadline moves *later*,
//! and is set again when it fires too early. A deadline that moves *earlier* replaces the timer;
//! otherwise an attempt would outlive its limit until the old timer fires.

use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

use penstock_api::ErrorCode;
use penstock_api::units::Timestamp;
use penstock_clock::now;
use tokio::time::Sleep;

/// The end of an attempt, and the error to report then.
#[derive(Debug)]
pub(crate) struct Deadline {
    at: Timestamp,
    code: ErrorCode,
    /// The end of the whole request; no deadline is later.
    total: Option<Timestamp>,
    timer: Option<Timer>,
}

/// A timer that fires at `at`, which is never later than the deadline.
#[derive(Debug)]
struct Timer {
    at: Timestamp,
    sleep: Pin<Box<Sleep>>,
}

impl Timer {
    fn at(at: Timestamp) -> Self {
        Self { at, sleep: Box::pin(tokio::time::sleep(at.since(now()))) }
    }
}

impl Deadline {
    /// A deadline `limit` after `start`, bounded by `total`.
    pub(crate) fn new(
        start: Timestamp,
        limit: Duration,
        code: ErrorCode,
        total: Option<Timestamp>,
    ) -> Self {
        let mut deadline = Self { at: start, code, total, timer: None };
        deadline.set(start, limit, code);
        deadline
    }

    /// Moves the deadline to `limit` after `start`.
    pub(crate) fn set(&mut self, start: Timestamp, limit: Duration, code: ErrorCode) {
        self.at = start.after(limit);
        self.code = code;
        if let Some(total) = self.total
            && total < self.at
        {
            self.at = total;
            self.code = ErrorCode::TotalTimeout;
        }
    }

    /// Returns the error once the deadline has passed.
    pub(crate) fn poll(&mut self, cx: &mut Context<'_>) -> Poll<ErrorCode> {
        loop {
            let deadline = self.at;
            let timer = match &mut self.timer {
                Some(timer) if timer.at <= deadline => timer,
                stale => stale.insert(Timer::at(deadline)),
            };
            if timer.sleep.as_mut().poll(cx).is_pending() {
                return Poll::Pending;
            }
            if now() >= deadline {
                return Poll::Ready(self.code);
            }
            self.timer = None;
        }
    }
}
