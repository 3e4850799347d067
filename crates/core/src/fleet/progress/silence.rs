//! The requests that got no byte since the last progress of a backend.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use penstock_api::units::Timestamp;

use super::EXPECTED_PART;

/// The first two requests that wait for their first byte since the last progress, in the order they
/// were sent.
#[derive(Debug, Default)]
pub(super) struct Silence {
    /// The start of the first request; older than the last progress if there is none.
    first_sent: AtomicU64,
    /// The start of the second request, in the same way.
    second_sent: AtomicU64,
    /// The latest expected time of the first bytes of both, in microseconds from the first start.
    expected: AtomicU64,
}

impl Silence {
    /// Records a request whose first byte is expected after `expected` microseconds, and after
    /// `ahead` more for the prompts before it. `last` is the time of the last progress.
    pub(super) fn note_sent(&self, expected: u64, ahead: u64, last: Timestamp, now: Timestamp) {
        let is_since = |sent: &AtomicU64| sent.load(Ordering::Relaxed) > last.0;
        if !is_since(&self.first_sent) {
            self.expected.store(expected.saturating_add(ahead), Ordering::Relaxed);
            self.first_sent.store(now.0, Ordering::Relaxed);
        } else if !is_since(&self.second_sent) {
            // Engines read prompts one after the other.
            let before = self.expected.load(Ordering::Relaxed);
            self.expected.store(before.saturating_add(expected), Ordering::Relaxed);
            self.second_sent.store(now.0, Ordering::Relaxed);
        }
    }

    /// Returns whether the first bytes of two requests are long overdue, after `time` at least.
    pub(super) fn is_overdue(&self, time: Duration, last: Timestamp, now: Timestamp) -> bool {
        let waited = |sent: &AtomicU64| {
            let sent = sent.load(Ordering::Relaxed);
            (sent > last.0).then(|| now.since(Timestamp(sent)))
        };
        let expected = Duration::from_micros(self.expected.load(Ordering::Relaxed));
        // The second request gets a fair part of the time, too.
        waited(&self.second_sent).is_some_and(|waited| waited >= time / 2)
            && waited(&self.first_sent)
                .is_some_and(|waited| waited >= time && expected <= waited / EXPECTED_PART)
    }
}
