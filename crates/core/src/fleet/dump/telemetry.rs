//! Engine telemetry in a dump.

use std::time::Duration;

use penstock_api::units::{Timestamp, widen};
use serde::{Deserialize, Serialize, Serializer};

use super::{FleetError, duration_of};
use crate::fleet::{Adapters, BackendState, EngineDetails, EngineSample, Standing};

/// A scrape interval longer than any use of a dump.
const ENDLESS_INTERVAL: Duration = Duration::from_secs(1 << 32);
/// The age of a stale sample if the dump has none.
const STALE_AGE: Duration = Duration::from_secs(1);
/// The least age at which telemetry counts as failing.
const MIN_FAILING_AGE: Duration = Duration::from_millis(2_001);

/// The telemetry of a backend. Only values that a decision reads and the cache's size are read
/// back.
#[derive(Debug, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct TelemetryRow {
    #[serde(skip_serializing_if = "Option::is_none")]
    waiting: Option<f32>,
    #[serde(skip_serializing_if = "Option::is_none")]
    running: Option<f32>,
    #[serde(skip_serializing_if = "Option::is_none", serialize_with = "with_few_digits")]
    kv_utilization: Option<f32>,
    /// The effective load of a decision; computed from the others.
    #[serde(skip_serializing_if = "Option::is_none")]
    load: Option<f32>,
    #[serde(skip_serializing_if = "Option::is_none")]
    age_s: Option<f64>,
    standing: Option<StandingName>,
    #[serde(skip_serializing_if = "Option::is_none")]
    block_size: Option<u32>,
    #[serde(skip_serializing_if = "Option::is_none")]
    blocks: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    prefix_caching: Option<bool>,
    #[serde(skip_serializing_if = "Option::is_none")]
    adapters_running: Option<Vec<String>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    adapters_waiting: Option<Vec<String>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    max_adapters: Option<u32>,
    #[serde(skip_serializing_if = "Option::is_none")]
    prefix_hits: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    prefix_queries: Option<u64>,
}

#[expect(clippy::ref_option, reason = "serde asks for it")]
fn with_few_digits<S: Serializer>(part: &Option<f32>, into: S) -> Result<S::Ok, S::Error> {
    part.map(widen).serialize(into)
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
enum StandingName {
    Unknown,
    Fresh,
    Stale,
    Failing,
}

impl StandingName {
    /// The age of a sample that fits this standing: `dumped` if possible.
    fn age(self, dumped: Duration) -> Duration {
        match self {
            Self::Unknown | Self::Fresh => dumped,
            Self::Stale if dumped.is_zero() => STALE_AGE,
            Self::Stale => dumped,
            Self::Failing => dumped.max(MIN_FAILING_AGE),
        }
    }
}

impl TelemetryRow {
    /// The telemetry of a backend; `None` before its first successful scrape.
    pub(super) fn of(state: &BackendState, now: Timestamp) -> Option<Self> {
        let telemetry = &state.telemetry;
        telemetry.sample()?;
        let readings = telemetry.read(&state.load, now);
        let details = telemetry.details().map(|all| (*all).clone()).unwrap_or_default();
        let names = |all: &[Box<str>]| all.iter().map(|name| name.to_string()).collect();
        let adapters = details.adapters.as_ref();
        let (hits, queries) = telemetry.prefix_cache();
        Some(Self {
            waiting: readings.waiting,
            running: readings.running,
            kv_utilization: readings.kv_utilization,
            load: Some(readings.load),
            age_s: readings.age.map(|age| age.to_duration().as_secs_f64()),
            standing: Some(match readings.standing {
                Standing::Unknown => StandingName::Unknown,
                Standing::Fresh => StandingName::Fresh,
                Standing::Stale => StandingName::Stale,
                Standing::Failing => StandingName::Failing,
            }),
            block_size: details.block_size,
            blocks: details.blocks,
            prefix_caching: details.prefix_caching,
            adapters_running: adapters.map(|all| names(&all.running)),
            adapters_waiting: adapters.map(|all| names(&all.waiting)),
            max_adapters: adapters.and_then(|all| all.max),
            prefix_hits: Some(hits).filter(|_| queries > 0),
            prefix_queries: Some(queries).filter(|queries| *queries > 0),
        })
    }

    /// Publishes this row as the telemetry of a backend. Must be called after the backend's own
    /// load is applied.
    ///
    /// # Errors
    /// When the age is out of range.
    pub(super) fn overlay(
        &self,
        backend: &str,
        state: &BackendState,
        now: Timestamp,
    ) -> Result<(), FleetError> {
        let standing = self.standing.unwrap_or(StandingName::Fresh);
        let age = standing.age(duration_of(backend, "age_s", self.age_s)?.unwrap_or_default());
        if standing == StandingName::Unknown {
            return Ok(());
        }
        // No scrape will follow, so the sample must keep its standing. The process may be younger
        // than the sample, so its age alone cannot show that.
        let interval =
            if standing == StandingName::Fresh { ENDLESS_INTERVAL } else { Duration::ZERO };
        let in_flight = state.load.in_flight();
        // The load in the dump includes the requests dispatched since the scrape.
        let reported = self.waiting.zip(self.running).map(|(waiting, running)| waiting + running);
        let since = self.load.zip(reported).map_or(0.0, |(load, reported)| load - reported);
        state.telemetry.publish(EngineSample {
            waiting: self.waiting,
            running: self.running,
            kv_utilization: self.kv_utilization,
            in_flight: before(in_flight, since),
            sent_at: now.before(age),
            interval,
        });
        if standing == StandingName::Failing {
            state.telemetry.fail();
        }
        let adapters = self.adapters_running.as_ref().map(|running| Adapters {
            running: boxed(running),
            waiting: boxed(self.adapters_waiting.as_deref().unwrap_or_default()),
            max: self.max_adapters,
            dropped: 0,
        });
        let (block_size, blocks) = (self.block_size, self.blocks);
        state.telemetry.learn_details(&EngineDetails {
            block_size,
            blocks,
            prefix_caching: self.prefix_caching,
            adapters,
            ..EngineDetails::default()
        });
        Ok(())
    }
}

fn boxed(names: &[String]) -> Vec<Box<str>> {
    names.iter().map(|name| name.as_str().into()).collect()
}

/// The number in flight before `since` more were dispatched.
#[expect(clippy::cast_possible_truncation, reason = "saturates")]
fn before(in_flight: u32, since: f32) -> u32 {
    let before = i64::from(in_flight).saturating_sub(since.round() as i64);
    u32::try_from(before.clamp(0, u32::MAX.into())).unwrap_or(u32::MAX)
}
