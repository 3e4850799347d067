//! The access log: an observer that makes one JSON line per request and hands it to a thread that
//! writes. A request never waits for it: when too many lines wait, further ones are dropped and
//! counted. Lines hold no prompt, no key and no query, and are at most 4 KiB long.

mod file;
mod line;
mod time;

use std::io;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use crate::clock::unix_time;
use crate::config::{AccessLogConfig, LogTarget};
use crate::fleet::Outcome;
use crate::observe::queue::{BoundedQueue, Deliveries};
use crate::routing::{RequestObserver, RequestOutcome};
use file::LineWriter;

/// Lines that wait to be written; further ones are dropped and counted.
const MAX_QUEUED_LINES: usize = 8192;

/// Why there is no access log.
#[derive(Debug, thiserror::Error)]
#[expect(missing_docs, reason = "each variant is described by its message")]
pub enum AccessLogError {
    #[error("the access log {} cannot be opened: {source}", path.display())]
    Open { path: PathBuf, source: io::Error },
    #[error("the access log has no thread to write it: {0}")]
    Thread(io::Error),
}

/// Writes a line per request.
#[derive(Debug)]
pub struct AccessLog {
    queue: BoundedQueue,
    reopen: Arc<AtomicBool>,
    hashes: ahash::RandomState,
    sample: f64,
    sample_failed: f64,
}

impl AccessLog {
    /// Starts the log a configuration asks for; `None` where it is off.
    ///
    /// # Errors
    /// [`AccessLogError`] when it cannot be written.
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
        // Fixed keys: every penstock on the way of a request takes the same ones into its sample.
        let hashes = ahash::RandomState::with_seeds(1, 2, 3, 4);
        let AccessLogConfig { sample, sample_failed, .. } = *config;
        Ok(Some(Self { queue, reopen, hashes, sample, sample_failed }))
    }

    /// Opens the file anew, as after it was moved away.
    pub fn reopen(&self) {
        self.reopen.store(true, Ordering::Release);
        self.queue.wake();
    }

    /// Waits until everything so far is written, but no longer than `limit`.
    pub fn flush(&self, limit: Duration) {
        if !self.queue.flush(limit) {
            tracing::warn!("the access log was not written to its end");
        }
    }

    /// What became of the lines so far.
    pub fn deliveries(&self) -> Deliveries {
        self.queue.deliveries()
    }

    fn is_chosen(&self, outcome: &RequestOutcome<'_>) -> bool {
        let share = if outcome.outcome == Outcome::Ok { self.sample } else { self.sample_failed };
        // The whole range is a share of 1, so that 1 takes all of them and 0 none.
        let hash = match outcome.about.request_id {
            // Turned away before it had one: chosen by chance.
            "" => self.hashes.hash_one(unix_time()),
            id => self.hashes.hash_one(id),
        };
        let place = hash as f64 / u64::MAX as f64;
        share >= 1.0 || place < share
    }
}

impl RequestObserver for AccessLog {
    fn finished(&self, outcome: &RequestOutcome<'_>) {
        if !self.is_chosen(outcome) {
            return;
        }
        self.queue.put(line::to_line(outcome, unix_time()));
    }
}

#[cfg(test)]
mod tests;
