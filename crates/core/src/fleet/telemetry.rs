//! Engine telemetry as decisions read it: the scraper publishes it whole, and readers need no lock.
//! A reading is `None` before the first scrape and once the last sample is stale: unknown never
//! reads as idle.

mod cell;
mod details;

pub use details::{Adapters, EngineDetails};

pub use penstock_scoring::Standing;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::time::Duration;

use arc_swap::ArcSwapOption;
use penstock_api::units::{Micros, Timestamp};

use super::load::Load;
use cell::SampleCell;

/// The age, in intervals of a sample, above which the sample is stale.
// Two lost scrapes in a row must not blind the decisions.
const FRESH_INTERVALS: u64 = 3;
/// The least age at which a sample counts as failing if the last scrape failed.
const MIN_FAILING_AGE_MICROS: u64 = 2_000_000;

/// The result of one scrape. Values that the engine does not report are `None`.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct EngineSample {
    /// Requests queued in the engine.
    pub waiting: Option<f32>,
    pub running: Option<f32>,
    /// The share of its KV cache in use.
    pub kv_utilization: Option<f32>,
    /// Penstock's requests in flight there when the scrape was sent.
    pub in_flight: u32,
    /// The time at which the scrape was sent.
    pub sent_at: Timestamp,
    /// The planned time to the next scrape: the unit of the sample's age.
    pub interval: Duration,
}

impl EngineSample {
    /// Returns the sample with non-finite values removed and the others clamped to their range.
    #[must_use]
    pub fn in_range(self) -> Self {
        let within = |value: Option<f32>, most: f32| {
            value.filter(|value| value.is_finite()).map(|value| value.clamp(0.0, most))
        };
        Self {
            waiting: within(self.waiting, f32::MAX),
            running: within(self.running, f32::MAX),
            kv_utilization: within(self.kv_utilization, 1.0),
            ..self
        }
    }
}

/// The telemetry of one backend as a decision reads it. Numbers are finite and in range.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub struct Readings {
    /// Requests queued in the engine; `None` unless a fresh sample has it.
    pub waiting: Option<f32>,
    /// Requests running there; `None` unless a fresh sample has it.
    pub running: Option<f32>,
    /// The effective load in requests: waiting + running + dispatched since the scrape was sent −
    /// ended since, at least 0. Without telemetry it is [`Load::counted_exactly`]. If the engine
    /// reports only one of waiting and running, or no request at all, it is at least that.
    pub load: f32,
    /// The share of the KV cache in use; `None` unless a fresh sample has it.
    pub kv_utilization: Option<f32>,
    /// The age of the last sample; `None` before the first.
    pub age: Option<Micros>,
    /// The currency of the readings.
    pub standing: Standing,
}

/// The telemetry of one backend.
#[derive(Debug, Default)]
pub struct Telemetry {
    sample: SampleCell,
    is_failing: AtomicBool,
    restarts: AtomicU32,
    outages: AtomicU32,
    scrapes: AtomicU64,
    failures: AtomicU64,
    prefix_hits: AtomicU64,
    prefix_queries: AtomicU64,
    details: ArcSwapOption<EngineDetails>,
}

impl Telemetry {
    /// Reads the telemetry at `now` of the backend with `load`. Takes no lock and allocates
    /// nothing.
    #[expect(clippy::cast_precision_loss, reason = "a load needs few digits")]
    pub fn read(&self, load: &Load, now: Timestamp) -> Readings {
        let in_flight = load.in_flight();
        let own = load.counted_exactly();
        let Some(sample) = self.sample.read() else {
            return Readings { load: own, ..Readings::default() };
        };
        let age = Micros(now.0.saturating_sub(sample.sent_at().0));
        let standing = self.standing(age, sample.interval());
        let age = Some(age);
        if standing != Standing::Fresh {
            return Readings { load: own, age, standing, ..Readings::default() };
        }
        let sample = sample.unpack();
        let EngineSample { waiting, running, kv_utilization, .. } = sample;
        // Sent or ended since the scrape was sent: the engine may not have counted that yet.
        let since = (i64::from(in_flight) - i64::from(sample.in_flight)) as f32;
        let load = match (waiting, running) {
            // Nothing, in spite of requests in flight: the page may be that of another process.
            (Some(0.0), Some(0.0)) => own.max(since),
            (Some(waiting), Some(running)) => waiting + running + since,
            // Half of the load is unknown, so that penstock's own count is the least that is there.
            (Some(known), None) | (None, Some(known)) => own.max(known + since),
            (None, None) => own,
        };
        let load = load.clamp(0.0, f32::MAX);
        Readings { waiting, running, load, kv_utilization, age, standing }
    }

    fn standing(&self, age: Micros, interval: Micros) -> Standing {
        if age.0 <= interval.0.saturating_mul(FRESH_INTERVALS) {
            return Standing::Fresh;
        }
        let is_failing = self.is_failing.load(Ordering::Relaxed);
        if is_failing && age.0 > MIN_FAILING_AGE_MICROS {
            Standing::Failing
        } else {
            Standing::Stale
        }
    }

    /// The last sample; `None` before the first.
    pub fn sample(&self) -> Option<EngineSample> {
        self.sample.read().map(|sample| sample.unpack())
    }

    /// Publishes the result of a scrape.
    pub fn publish(&self, sample: EngineSample) {
        self.sample.write(sample.in_range());
        self.is_failing.store(false, Ordering::Relaxed);
        self.scrapes.fetch_add(1, Ordering::Relaxed);
    }

    /// Stops the telemetry because the engine is no longer scraped: the last report grows old, and
    /// no failure counts against the engine.
    pub fn stop(&self) {
        self.is_failing.store(false, Ordering::Relaxed);
    }

    /// Records a failed scrape.
    pub fn fail(&self) {
        self.is_failing.store(true, Ordering::Relaxed);
        self.failures.fetch_add(1, Ordering::Relaxed);
    }

    /// The numbers of successful and failed scrapes.
    pub fn scrapes(&self) -> (u64, u64) {
        (self.scrapes.load(Ordering::Relaxed), self.failures.load(Ordering::Relaxed))
    }

    /// The number of restarts of the engine that were noticed.
    pub fn restarts(&self) -> u32 {
        self.restarts.load(Ordering::Relaxed)
    }

    /// The number of restarts and outages of the engine. Cache state learned in another epoch may
    /// belong to a process that is gone.
    pub fn epoch(&self) -> u32 {
        self.restarts().wrapping_add(self.outages.load(Ordering::Relaxed))
    }

    /// Counts an outage: the engine may have restarted while its health checks failed.
    pub fn record_outage(&self) {
        self.outages.fetch_add(1, Ordering::Relaxed);
    }

    /// The details that change rarely; `None` before the engine has reported any.
    pub fn details(&self) -> Option<Arc<EngineDetails>> {
        self.details.load_full()
    }

    /// Records the details that change rarely. Returns whether they show a restart of the engine.
    pub fn learn_details(&self, new: &EngineDetails) -> bool {
        let old = self.details.load();
        if old.as_deref() == Some(new) {
            return false;
        }
        let has_restarted = old.as_deref().is_some_and(|old| new.is_younger_than(old));
        let mut kept = new.clone();
        // The latest start wins: several processes behind one address alternate without a restart.
        let started = [new.started_at, old.as_deref().and_then(|old| old.started_at)];
        kept.started_at = started.into_iter().flatten().reduce(f64::max);
        self.details.store(Some(Arc::new(kept)));
        if has_restarted {
            self.restart();
        }
        has_restarted
    }

    /// Counts a restart that was noticed otherwise than by the start time.
    pub fn restart(&self) {
        self.restarts.fetch_add(1, Ordering::Relaxed);
    }

    /// The tokens found in the engine's prefix cache, and the tokens looked up, since it started.
    pub fn prefix_cache(&self) -> (u64, u64) {
        (self.prefix_hits.load(Ordering::Relaxed), self.prefix_queries.load(Ordering::Relaxed))
    }

    /// Records the engine's own count of prefix cache hits and queries, in tokens.
    pub fn learn_prefix_cache(&self, hits: u64, queries: u64) {
        self.prefix_hits.store(hits, Ordering::Relaxed);
        self.prefix_queries.store(queries, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests;
