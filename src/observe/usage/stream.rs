//! One subscriber of the usage stream.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use bytes::Bytes;

use super::LiveUsage;
use crate::downstream::counted::Counted;

/// The interval at which a stream without events sends a comment, so that both sides notice a lost
/// connection.
const HEARTBEAT_INTERVAL: Duration = Duration::from_secs(15);
const HEARTBEAT: Bytes = Bytes::from_static(b": heartbeat\n\n");
/// The golden ratio: its multiples spread evenly between 0 and 1.
const GOLDEN_RATIO: f64 = 0.618_033_988_749_895;

#[derive(Debug)]
pub struct UsageStream {
    usage: Arc<LiveUsage>,
    serial: u64,
    _open: Counted,
    /// The number of the last snapshot sent.
    sent: Option<u64>,
    /// The time since something was sent.
    silent: Duration,
    looks: u64,
}

impl UsageStream {
    pub(super) fn new(usage: Arc<LiveUsage>, serial: u64, open: Counted) -> Self {
        Self { usage, serial, _open: open, sent: None, silent: Duration::ZERO, looks: 0 }
    }

    /// Returns the next event: the state at once, then each change, and a comment after some time
    /// without a change. `None` when the process shuts down.
    pub async fn next(&mut self) -> Option<Bytes> {
        loop {
            if self.looks > 0 {
                let pause = self.pause();
                tokio::time::sleep(pause).await;
                self.silent += pause;
            }
            self.looks += 1;
            if self.usage.stopping.load(Ordering::Acquire) {
                return None;
            }
            let snapshot = self.usage.snapshot();
            if self.sent != Some(snapshot.number) {
                self.sent = Some(snapshot.number);
                self.silent = Duration::ZERO;
                return Some(snapshot.event.clone());
            }
            if self.silent >= HEARTBEAT_INTERVAL {
                self.silent = Duration::ZERO;
                return Some(HEARTBEAT);
            }
        }
    }

    /// Returns the time until the next comparison. The first differs from stream to stream, so that
    /// streams opened together do not all write at the same moment.
    fn pause(&self) -> Duration {
        let interval = self.usage.interval();
        if self.looks == 1 {
            return interval.mul_f64((self.serial as f64 * GOLDEN_RATIO).fract());
        }
        interval
    }
}
