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
    /// The expected waits of the first and of the second one, in microseconds. The second begins
    /// when the first ends: engines read prompts one after the other.
    first_expected: AtomicU64,
    second_expected: AtomicU64,
}

impl Silence {
    /// Records a request whose first byte is expected after `expected` microseconds, and after
    /// `ahead` more for the prompts before it. `last` is the time of the last progress.
    pub(super) fn note_sent(&self, expected: u64, ahead: u64, last: Timestamp, now: Timestamp) {
        let is_since = |sent: &AtomicU64| sent.load(Ordering::Relaxed) > last.0;
        if !is_since(&self.first_sent) {
            self.first_expected.store(expected.saturating_add(ahead), Ordering::Relaxed);
            self.first_sent.store(now.0, Ordering::Relaxed);
        } else if !is_since(&self.second_sent) {
            self.second_expected.store(expected, Ordering::Relaxed);
            self.second_sent.store(now.0, Ordering::Relaxed);
        }
    }

    fn is_recorded(&self, sent: Timestamp) -> bool {
        [&self.first_sent, &self.second_sent]
            .iter()
            .any(|one| one.load(Ordering::Relaxed) == sent.0)
    }

    /// Removes the request sent at `sent`: it was given too little time.
    pub(super) fn withdraw(&self, sent: Timestamp) {
        if self.first_sent.load(Ordering::Relaxed) == sent.0 {
            // The second one takes its place, if there is one.
            let expected = self.second_expected.load(Ordering::Relaxed);
            self.first_expected.store(expected, Ordering::Relaxed);
            self.first_sent.store(self.second_sent.swap(0, Ordering::Relaxed), Ordering::Relaxed);
        } else if self.is_recorded(sent) {
            self.second_sent.store(0, Ordering::Relaxed);
        }
    }

    /// Records a request that its client left in vain, unless it is recorded: both places may have
    /// been taken when it was sent.
    pub(super) fn keep(&self, expected: u64, ahead: u64, last: Timestamp, sent: Timestamp) {
        if sent > last && !self.is_recorded(sent) {
            self.note_sent(expected, ahead, last, sent);
        }
    }

    /// Returns whether the first bytes of two requests are long overdue, after `time` at least.
    pub(super) fn is_overdue(&self, time: Duration, last: Timestamp, now: Timestamp) -> bool {
        let waited = |sent: &AtomicU64| {
            let sent = sent.load(Ordering::Relaxed);
            (sent > last.0).then(|| now.since(Timestamp(sent)))
        };
        let [first, second] = [&self.first_expected, &self.second_expected]
            .map(|expected| Duration::from_micros(expected.load(Ordering::Relaxed)));
        let expected = first.saturating_add(second);
        // The second request gets a fair part of the time, too.
        waited(&self.second_sent).is_some_and(|waited| waited >= time / 2)
            && waited(&self.first_sent)
                .is_some_and(|waited| waited >= time && expected <= waited / EXPECTED_PART)
    }
}
