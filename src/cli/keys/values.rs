//! The values of arguments about keys: times as people write them, and JSON without nulls.

use std::time::Duration;

use penstock_api::units::parse_duration;
use penstock_config::UnixTime;
use serde_json::{Map, Value};

const DAY: u64 = 24 * 3600;

/// A point in time as a person writes it.
#[derive(Debug, Clone, Copy)]
pub(super) enum When {
    At(UnixTime),
    In(Duration),
}

impl When {
    pub(super) fn from(self, now: UnixTime) -> UnixTime {
        match self {
            Self::At(time) => time,
            Self::In(duration) => now.after(duration),
        }
    }
}

pub(super) fn when(given: &str) -> Result<When, String> {
    match UnixTime::parse(given) {
        Some(time) => Ok(When::At(time)),
        None => duration(given).map(When::In).map_err(|_other| {
            "write a time as 2027-01-31T18:00:00Z, or from now on as 90d or 12h".to_owned()
        }),
    }
}

pub(super) fn duration(given: &str) -> Result<Duration, String> {
    // Keys are valid for longer than the durations of settings, which have no days.
    let days = given.strip_suffix('d').and_then(|days| days.parse::<u64>().ok());
    match days {
        Some(days) => Ok(Duration::from_secs(days.saturating_mul(DAY))),
        None => parse_duration(given).map_err(|error| error.to_string()),
    }
}

pub(super) fn without_null(value: Value) -> Map<String, Value> {
    let Value::Object(mut fields) = value else { return Map::new() };
    fields.retain(|_, value| !value.is_null());
    fields
}
