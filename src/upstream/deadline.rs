//! Deadlines of one attempt. A deadline may move with every token, so the timer behind it is only
//! set when something has to be waited for, and re-set when it fires too early.

use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

use tokio::time::Sleep;

use crate::api::ErrorCode;
use crate::clock::now;
use crate::units::Timestamp;

/// The deadline that ends an attempt first, and the error it ends with.
#[derive(Debug)]
pub(crate) struct Deadline {
    at: Timestamp,
    code: ErrorCode,
    /// The end of the whole request, which no later clock may outlive.
    total: Option<Timestamp>,
    timer: Option<(Timestamp, Pin<Box<Sleep>>)>,
}

impl Deadline {
    /// A deadline `limit` after `start`, bounded by the whole request's.
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

    /// Moves the deadline.
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

    /// Ready with the error once the deadline has passed.
    pub(crate) fn poll(&mut self, cx: &mut Context<'_>) -> Poll<ErrorCode> {
        loop {
            // A timer that fires before the deadline has been moved on is simply set again.
            if self.timer.as_ref().is_none_or(|(at, _)| *at > self.at) {
                let wait = self.at.since(now());
                self.timer = Some((self.at, Box::pin(tokio::time::sleep(wait))));
            }
            let Some((_, timer)) = self.timer.as_mut() else { return Poll::Pending };
            if timer.as_mut().poll(cx).is_pending() {
                return Poll::Pending;
            }
            if now() >= self.at {
                return Poll::Ready(self.code);
            }
            self.timer = None;
        }
    }
}
