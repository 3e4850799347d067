//! The access log: an observer that formats one JSON line per request for a writer thread. A
//! request never waits for it: when the queue is full, lines are dropped and counted. Lines contain
//! no prompt, no key and no query string, and are at most 6,272 bytes long.

mod file;
mod line;

use std::io;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use penstock_clock::unix_time;
use penstock_config::{AccessLogConfig, LogTarget};
use penstock_core::fleet::Outcome;
use penstock_core::routing::{RequestObserver, RequestOutcome};

use crate::observe::queue::{BoundedQueue, Deliveries};
use file::LineWriter;

/// The maximum number of lines that wait to be written; further ones are dropped and counted.
const MAX_QUEUED_LINES: usize = 8192;

/// The reason why the access log cannot start.
#[derive(Debug, thiserror::Error)]
pub enum AccessLogError {
    #[error("cannot open the access log {}: {source}", path.display())]
    Open { path: PathBuf, source: io::Error },
    #[error("cannot start the writer of the access log: {0}")]
    Thread(io::Error),
}

#[derive(Debug)]
pub struct AccessLog {
    queue: BoundedQueue,
    reopen: Arc<AtomicBool>,
    hashes: ahash::RandomState,
    sample: f64,
    sample_failed: f64,
    replay: bool,
}

impl AccessLog {
    /// Starts the configured log; `None` if it is off.
    ///
    /// # Errors
    /// [`AccessLogError`] when it cannot start.
    pub fn start(config: &AccessLogConfig) -> Result<Option<Self>, AccessLogError> {
        let path = match &config.path {
            LogTarget::Off => return Ok(None),
            LogTarget::Stdout => None,
            LogTarget::File(path) => Some(path.clone()),
        };
        let reopen = Arc::<AtomicBool>::default();
        let writer = LineWriter::open(path.clone(), Arc::clone(&reopen)).map_err(|source| {
            AccessLogError::Open { path: path.unwrap_or_else(|| "stdout".into()), source }
        })?;
        let queue =
            BoundedQueue::start(writer, MAX_QUEUED_LINES).map_err(AccessLogError::Thread)?;
        // Fixed keys: all instances that handle a request sample the same request ids.
        let hashes = ahash::RandomState::with_seeds(1, 2, 3, 4);
        let AccessLogConfig { sample, sample_failed, replay, .. } = *config;
        Ok(Some(Self { queue, reopen, hashes, sample, sample_failed, replay }))
    }

    /// Checks that the configured log can be opened. Creates no file.
    ///
    /// # Errors
    /// [`AccessLogError`] when it cannot.
    pub fn check(config: &AccessLogConfig) -> Result<(), AccessLogError> {
        let LogTarget::File(path) = &config.path else { return Ok(()) };
        file::check(path).map_err(|source| AccessLogError::Open { path: path.clone(), source })
    }

    /// Reopens the file, for log rotation.
    pub fn reopen(&self) {
        // The writer's thread opens the file: the caller does not wait for a disk.
        self.reopen.store(true, Ordering::Release);
        self.queue.wake();
    }

    /// Waits until all queued lines are written, at most `limit`.
    pub fn flush(&self, limit: Duration) {
        if !self.queue.flush(limit) {
            tracing::warn!("shutdown: not all lines of the access log were written");
        }
    }

    /// Returns the numbers of written, dropped and failed lines.
    pub fn deliveries(&self) -> Deliveries {
        self.queue.deliveries()
    }

    fn is_sampled(&self, outcome: &RequestOutcome<'_>) -> bool {
        let share = if outcome.outcome == Outcome::Ok { self.sample } else { self.sample_failed };
        let hash = match outcome.details.request_id {
            // A request that was refused before it got an id is sampled at random.
            "" => self.hashes.hash_one(unix_time()),
            id => self.hashes.hash_one(id),
        };
        let position = hash as f64 / u64::MAX as f64;
        share >= 1.0 || position < share
    }
}

impl RequestObserver for AccessLog {
    fn finished(&self, outcome: &RequestOutcome<'_>) {
        if !self.is_sampled(outcome) {
            return;
        }
        // The fields may be set for the reload gate alone.
        self.queue.put(line::to_line(outcome, unix_time(), self.replay));
    }
}

#[cfg(test)]
mod tests;
