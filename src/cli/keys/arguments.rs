//! The arguments that describe a key, as the JSON object that the admin port takes, too.

use std::time::Duration;

use clap::Args;
use penstock_api::units::parse_duration;
use penstock_config::UnixTime;
use serde_json::{Map, Value, json};

use super::StoreArgs;

const DAY: u64 = 24 * 3600;

#[derive(Debug, Args)]
pub(in crate::cli) struct CreateArgs {
    /// The client's name in logs and metrics; names may be used again
    #[arg(long)]
    name: String,

    /// The team that the client belongs to
    #[arg(long)]
    team: Option<String>,

    /// The models it may use, with * and ?, separated by commas [default: all]
    #[arg(long, value_delimiter = ',')]
    models: Vec<String>,

    /// The zones its requests may go to, separated by commas [default: all]
    #[arg(long, value_delimiter = ',')]
    zones: Vec<String>,

    /// The policies its requests may name, separated by commas
    #[arg(long, value_delimiter = ',')]
    policies: Vec<String>,

    /// The name of its budget
    #[arg(long)]
    budget: Option<String>,

    /// The objective of its requests that name none
    #[arg(long)]
    objective: Option<String>,

    /// The highest priority of its requests
    #[arg(long, allow_negative_numbers = true)]
    max_priority: Option<i32>,

    /// Its share of what waits in a queue [default: 1]
    #[arg(long)]
    weight: Option<u32>,

    /// Requests per minute
    #[arg(long)]
    requests_per_minute: Option<u32>,

    /// Tokens per minute
    #[arg(long)]
    tokens_per_minute: Option<u32>,

    /// Tokens per day (UTC)
    #[arg(long)]
    tokens_per_day: Option<usize>,

    /// Requests in flight at one time
    #[arg(long)]
    in_flight: Option<u32>,

    /// A note for people
    #[arg(long)]
    note: Option<String>,

    /// When it becomes valid: 2027-01-31T18:00:00Z, or 12h from now
    #[arg(long, value_name = "TIME", value_parser = when)]
    not_before: Option<When>,

    /// When it expires: 2027-01-31T18:00:00Z, or 90d from now
    #[arg(long, value_name = "TIME", value_parser = when)]
    expires: Option<When>,

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

#[derive(Debug, Args)]
pub(in crate::cli) struct RevokeTokenArgs {
    /// The `jti` of the token
    #[arg(long)]
    jti: String,

    /// The `iss` of the token [default: the tokens of every issuer with that jti]
    #[arg(long)]
    issuer: Option<String>,

    /// When the token expires, so that it can be forgotten: 2027-01-31T18:00:00Z, or 1h from now
    /// [default: it is never forgotten]
    #[arg(long, value_name = "TIME", value_parser = when)]
    expires: Option<When>,

    #[command(flatten)]
    pub(super) common: StoreArgs,
}

impl RevokeTokenArgs {
    /// Returns the description of the token.
    pub(super) fn to_json(&self, now: UnixTime) -> Value {
        Value::Object(without_null(json!({
            "jti": self.jti,
            "issuer": self.issuer,
            "expires_at": self.expires.map(|when| when.from(now)),
        })))
    }
}

/// A point in time as a person writes it.
#[derive(Debug, Clone, Copy)]
enum When {
    At(UnixTime),
    In(Duration),
}

impl When {
    fn from(self, now: UnixTime) -> UnixTime {
        match self {
            Self::At(time) => time,
            Self::In(duration) => now.after(duration),
        }
    }
}

fn when(given: &str) -> Result<When, String> {
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
        let list = |items: &Vec<String>| if items.is_empty() { Value::Null } else { json!(items) };
        let limits = without_null(json!({
            "requests_per_minute": self.requests_per_minute,
            "tokens_per_minute": self.tokens_per_minute,
            "tokens_per_day": self.tokens_per_day,
            "in_flight": self.in_flight,
        }));
        let fields = without_null(json!({
            "name": self.name,
            "team": self.team,
            "models": list(&self.models),
            "zones": list(&self.zones),
            "policies": list(&self.policies),
            "budget": self.budget,
            "objective": self.objective,
            "max_priority": self.max_priority,
            "weight": self.weight,
            "limits": if limits.is_empty() { Value::Null } else { Value::Object(limits) },
            "note": self.note,
            "not_before": self.not_before.map(|when| when.from(now)),
            "expires_at": self.expires.map(|when| when.from(now)),
        }));
        Value::Object(fields)
    }
}

fn without_null(value: Value) -> Map<String, Value> {
    let Value::Object(mut fields) = value else { return Map::new() };
    fields.retain(|_, value| !value.is_null());
    fields
}
