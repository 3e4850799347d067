//! The arguments that describe a key, as the JSON object that the admin port takes, too.

use std::time::Duration;

use clap::Args;
use penstock_api::units::parse_duration;
use penstock_config::UnixTime;
use serde_json::{Map, Value, json};

use super::StoreArgs;
use super::attributes::AttributeArgs;

const DAY: u64 = 24 * 3600;

#[derive(Debug, Args)]
pub(in crate::cli) struct CreateArgs {
    /// The client's name in logs and metrics; names may be used again
    #[arg(long)]
    name: String,

    #[command(flatten)]
    attributes: AttributeArgs,

    #[command(flatten)]
    pub(super) common: StoreArgs,
}

#[derive(Debug, Args)]
pub(in crate::cli) struct RotateArgs {
    /// The id of the key, as `penstock keys list` shows it
    #[arg(value_name = "ID")]
    pub(super) id: String,

    /// The time that the old secret stays valid; 0s ends it at once
    #[arg(long, value_name = "TIME", default_value = "24h", value_parser = duration)]
    pub(super) overlap: Duration,

    #[command(flatten)]
    pub(super) common: StoreArgs,
}

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

fn duration(given: &str) -> Result<Duration, String> {
    let days = given.strip_suffix('d').and_then(|days| days.parse::<u64>().ok());
    match days {
        Some(days) => Ok(Duration::from_secs(days.saturating_mul(DAY))),
        None => parse_duration(given).map_err(|error| error.to_string()),
    }
}

impl CreateArgs {
    /// Returns the description of the key.
    pub(super) fn to_json(&self, now: UnixTime) -> Value {
        let mut fields = self.attributes.to_fields(now, &Value::Null);
        fields.insert("name".to_owned(), json!(self.name));
        Value::Object(fields)
    }
}

pub(super) fn without_null(value: Value) -> Map<String, Value> {
    let Value::Object(mut fields) = value else { return Map::new() };
    fields.retain(|_, value| !value.is_null());
    fields
}
