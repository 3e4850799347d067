//! Streams that their clients leave because nothing comes any more.
//!
//! **Why.** A worker that hangs behind a live HTTP server may still send the start of each stream:
//! a role, a first token, comments that keep the connection alive. Each start is a sign of life, so
//! that such a backend is never frozen, and clients that leave after a few seconds meet no timeout.
//!
//! **What it proves.** Little: a model may think for long, and its stream carry comments alone. So
//! a stream has stalled only after several times the longest recent TTFT of the model on any
//! backend, and counts like a fault: compared with the other backends, where the same prompts would
//! make a model think as long.

use std::time::Duration;

use penstock_api::units::Timestamp;

/// The number of expected waits without a token after which a stream has stalled.
const WAITS: u32 = 3;
/// The shortest silence of a stream that has stalled.
const MIN_STALL: Duration = Duration::from_millis(750);

/// The silence after which a stream has stalled whose first token may take `longest`.
pub(super) fn limit(longest: Duration) -> Duration {
    longest.saturating_mul(WAITS).max(MIN_STALL)
}

/// The silence of a stream in flight.
#[derive(Debug, Default)]
pub(in crate::fleet) struct StallWatch {
    /// The time of its last token, at first its start.
    last_token: Timestamp,
    /// The time of its first token.
    first_token: Option<Timestamp>,
    /// The silence after which it has stalled; `None` if unknown.
    limit: Option<Duration>,
}

impl StallWatch {
    pub(in crate::fleet) fn new(sent: Timestamp, limit: Option<Duration>) -> Self {
        Self { last_token: sent, first_token: None, limit }
    }

    pub(in crate::fleet) fn note_token(&mut self, now: Timestamp) {
        self.last_token = now;
        self.first_token.get_or_insert(now);
    }

    /// Returns whether tokens come at `now` for longer than it takes to see a stream stall.
    pub(in crate::fleet) fn is_flowing(&self, now: Timestamp) -> bool {
        let limit = self.limit.unwrap_or(MIN_STALL);
        self.first_token.is_some_and(|first| now.since(first) >= limit)
    }

    /// Ends the watch: the silence is that of a client which does not read.
    pub(in crate::fleet) fn end(&mut self) {
        self.limit = None;
    }

    pub(in crate::fleet) fn has_stalled(&self, now: Timestamp) -> bool {
        self.limit.is_some_and(|limit| now.since(self.last_token) >= limit)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn stream_stalls_after_several_waits_since_its_last_token() {
        let at = |millis: u64| Timestamp(millis * 1000);
        let mut watch = StallWatch::new(at(1000), Some(limit(Duration::from_secs(2))));
        assert!(!watch.has_stalled(at(6999)) && watch.has_stalled(at(7000)));
        assert!(!watch.is_flowing(at(60_000)));
        watch.note_token(at(7000));
        assert!(!watch.has_stalled(at(12_999)) && watch.has_stalled(at(13_000)));
        assert!(!watch.is_flowing(at(12_999)) && watch.is_flowing(at(13_000)));
        watch.end();
        assert!(!watch.has_stalled(at(60_000)), "its client does not read");
        assert!(!StallWatch::new(at(0), None).has_stalled(at(60_000)), "nothing is measured");
        assert_eq!(limit(Duration::from_millis(10)), MIN_STALL);
    }
}
