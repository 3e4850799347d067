//! Live usage: requests in flight and tokens per backend and model, as pages and as event streams.
//!
//! Requests push nothing. Every `usage.interval`, each stream compares the state with the one that
//! it sent last; all streams share one rendering. So a request pays nothing for subscribers, and a
//! slow reader delays only itself, skips the states that it missed, and gets the newest state last.

mod pages;
mod stream;

pub use stream::UsageStream;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::time::Duration;

use arc_swap::ArcSwap;
use async_trait::async_trait;
use bytes::Bytes;
use parking_lot::Mutex;
use penstock_api::units::Timestamp;
use penstock_api::{ErrorCode, UsageCall, UsageRequest};
use penstock_clock::now;
use penstock_core::routing::Generation;

use crate::downstream::counted::Counted;
use crate::observe::ledger::{Ledger, QueryError};
use crate::proxy::{EventSource, UsageApi, UsageRefusal, UsageResponse};

/// The maximum number of events per second in total: the interval grows with the number of open
/// streams.
// Rendering is shared, writing is not: many streams get fewer events each.
const EVENTS_PER_SECOND: u64 = 1000;

/// The reason why a call has no result.
#[derive(Debug, thiserror::Error)]
pub enum UsageError {
    /// The body or the query is invalid.
    #[error("{message}")]
    Invalid {
        /// A description of the error.
        message: &'static str,
    },
    /// Neither the fleet nor the ledger knows the model.
    #[error("model '{model}' not found")]
    UnknownModel {
        /// The name of the model.
        model: String,
    },
    /// The maximum number of streams (`usage.streams`) is open.
    #[error("too many usage streams are open (usage.streams: {limit})")]
    TooManyStreams { limit: usize },
    /// The ledger cannot be read.
    #[error("{0}")]
    Ledger(#[from] QueryError),
}

/// The response to a request for usage.
pub enum UsageReply {
    Page(Vec<u8>),
    Stream(UsageStream),
}

/// A rendering of the state.
#[derive(Debug, Default)]
struct Snapshot {
    /// The number of the snapshot. It grows when the state differs from the previous one.
    number: u64,
    /// The event in the form in which it is sent.
    event: Bytes,
}

#[derive(Debug)]
pub struct LiveUsage {
    ledger: Arc<Ledger>,
    generation: ArcSwap<Generation>,
    /// Set when the process shuts down: every stream ends.
    stopping: Arc<AtomicBool>,
    snapshot: ArcSwap<Snapshot>,
    /// The time of the snapshot. The stream that renders the next one holds the lock.
    made_at: Mutex<Option<Timestamp>>,
    streams: Arc<AtomicUsize>,
    /// The number of streams opened so far: spreads their events over the interval.
    opened: AtomicU64,
    refused: AtomicU64,
}

impl LiveUsage {
    /// The usage of a fleet. `stopping` ends all streams.
    pub fn new(
        ledger: Arc<Ledger>,
        generation: Arc<Generation>,
        stopping: Arc<AtomicBool>,
    ) -> Self {
        Self {
            ledger,
            generation: ArcSwap::new(generation),
            stopping,
            snapshot: ArcSwap::default(),
            made_at: Mutex::default(),
            streams: Arc::default(),
            opened: AtomicU64::new(0),
            refused: AtomicU64::new(0),
        }
    }

    /// Applies a new configuration and its fleet, also to the ledger.
    pub fn adopt(&self, generation: Arc<Generation>) {
        self.ledger.adopt(&generation);
        self.generation.store(generation);
    }

    pub fn ledger(&self) -> &Ledger {
        &self.ledger
    }

    /// Returns the number of open streams.
    pub fn streams(&self) -> usize {
        self.streams.load(Ordering::Relaxed)
    }

    /// Returns the number of streams refused because of `usage.streams`.
    pub fn refused_streams(&self) -> u64 {
        self.refused.load(Ordering::Relaxed)
    }

    /// Responds to a request.
    ///
    /// # Errors
    /// [`UsageError`] when there is nothing to respond with.
    pub async fn respond(
        self: &Arc<Self>,
        request: UsageRequest<'_>,
    ) -> Result<UsageReply, UsageError> {
        let page = match request.call {
            UsageCall::Stream => return Ok(UsageReply::Stream(self.subscribe()?)),
            UsageCall::Usage => pages::usage(&self.generation.load(), &self.ledger.totals()),
            UsageCall::TokenCounts => pages::token_counts(&self.ledger.totals()),
            UsageCall::Stats => self.stats(request).await?,
            UsageCall::Config => pages::config(&self.generation.load()),
            UsageCall::Days => self.days(request).await?,
            UsageCall::CacheStats => pages::CACHE_STATS.to_vec(),
            UsageCall::InvalidateCache => pages::CACHE_INVALIDATED.to_vec(),
        };
        Ok(UsageReply::Page(page))
    }

    /// Returns the health of the backends by their URLs, as the NOMYO Router reports it, and
    /// whether any of them is healthy. Without `has_details`, URLs stay private.
    pub fn health(&self, has_details: bool) -> (bool, Vec<u8>) {
        pages::health(&self.generation.load(), has_details)
    }

    fn subscribe(self: &Arc<Self>) -> Result<UsageStream, UsageError> {
        let limit = self.generation.load().config.usage.streams;
        let Some(open) = Counted::try_new(&self.streams, limit) else {
            self.refused.fetch_add(1, Ordering::Relaxed);
            return Err(UsageError::TooManyStreams { limit });
        };
        let serial = self.opened.fetch_add(1, Ordering::Relaxed);
        Ok(UsageStream::new(Arc::clone(self), serial, open))
    }

    /// Returns the time between two events of a stream.
    fn interval(&self) -> Duration {
        let open = u64::try_from(self.streams()).unwrap_or(u64::MAX);
        let shared = Duration::from_millis(open.saturating_mul(1000) / EVENTS_PER_SECOND);
        self.generation.load().config.usage.interval.max(shared)
    }

    /// Returns the current state, or a recent one. A stream that gets an old state gets the next
    /// one an interval later.
    fn snapshot(&self) -> Arc<Snapshot> {
        let latest = self.snapshot.load_full();
        let made_at = match latest.number {
            // A stream waits only for the first snapshot.
            0 => Some(self.made_at.lock()),
            _ => self.made_at.try_lock(),
        };
        let Some(mut made_at) = made_at else { return latest };
        let generation = self.generation.load();
        // Streams tick at different moments: within half an interval they share one rendering.
        let fresh = generation.config.usage.interval / 2;
        if made_at.is_some_and(|at| now().since(at) < fresh) {
            return self.snapshot.load_full();
        }
        let latest = self.snapshot.load_full();
        let page = pages::usage(&generation, &self.ledger.totals());
        *made_at = Some(now());
        let event = [b"data: ", page.as_slice(), b"\n\n"].concat();
        // The same state keeps its number, so no stream sends it again.
        if *event == *latest.event {
            return latest;
        }
        let next = Arc::new(Snapshot { number: latest.number + 1, event: event.into() });
        self.snapshot.store(Arc::clone(&next));
        next
    }

    async fn stats(&self, request: UsageRequest<'_>) -> Result<Vec<u8>, UsageError> {
        let asked = pages::requested_model(request.query, request.body)?;
        let totals = self.ledger.totals();
        let fleet = self.generation.load().fleet.topology();
        let known = totals.keys().map(|pair| &*pair.model);
        let known = known.chain(fleet.models().iter().map(|model| &*model.name));
        let Some(model) = pages::find_model(known, &asked).map(str::to_owned) else {
            return Err(UsageError::UnknownModel { model: asked });
        };
        let series = self.ledger.time_series(model.clone()).await?;
        Ok(pages::stats(&model, &totals, &series))
    }

    async fn days(&self, request: UsageRequest<'_>) -> Result<Vec<u8>, UsageError> {
        let (days, deletes) = pages::requested_days(request.body)?;
        let before = penstock_clock::unix_seconds().saturating_sub(u64::from(days) * 24 * 3600);
        // Whole days, so that the rows by minute of one day stay together.
        let groups = self.ledger.daily_groups(before - before % (24 * 3600), deletes).await?;
        Ok(pages::days(days, deletes, groups))
    }
}

#[async_trait]
impl UsageApi for Arc<LiveUsage> {
    async fn respond(&self, request: UsageRequest<'_>) -> Result<UsageResponse, UsageRefusal> {
        match LiveUsage::respond(self, request).await {
            Ok(UsageReply::Page(page)) => Ok(UsageResponse::Page(page)),
            Ok(UsageReply::Stream(stream)) => Ok(UsageResponse::Stream(Box::new(stream))),
            Err(error) => {
                let code = match &error {
                    UsageError::Invalid { .. } => ErrorCode::InvalidRequest,
                    UsageError::UnknownModel { .. } => ErrorCode::ModelNotFound,
                    UsageError::TooManyStreams { .. } | UsageError::Ledger(_) => {
                        ErrorCode::UsageUnavailable
                    }
                };
                Err(UsageRefusal { code, message: error.to_string() })
            }
        }
    }

    fn health(&self, has_details: bool) -> (bool, Vec<u8>) {
        LiveUsage::health(self, has_details)
    }
}

#[async_trait]
impl EventSource for UsageStream {
    async fn next(&mut self) -> Option<Bytes> {
        UsageStream::next(self).await
    }
}

#[cfg(test)]
mod tests;
