//! The attributes of a key as arguments: for a new key, and for one that is changed.

use clap::Args;
use penstock_config::UnixTime;
use serde_json::{Map, Value, json};

use super::StoreArgs;
use super::values::{When, when, without_null};

#[derive(Debug, Args)]
pub(in crate::cli) struct AttributeArgs {
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

    /// Show the budget with the least left in its responses
    #[arg(long, value_name = "true|false")]
    sees_budget: Option<bool>,

    /// The objective of its requests that name none
    #[arg(long)]
    objective: Option<String>,

    /// The highest priority of its requests
    #[arg(long, allow_negative_numbers = true)]
    max_priority: Option<i32>,

    /// Its share of what waits in a queue [default: 1]
    #[arg(long)]
    weight: Option<u32>,

    /// Its ensembles at one time; 0 is none [default: ensembles.in_flight]
    #[arg(long)]
    ensembles: Option<usize>,

    /// Shorten its conversations to fit a context [default: as their model says]
    #[arg(long, value_name = "true|false")]
    context_shift: Option<bool>,

    /// Let it manage the models of Ollama backends
    #[arg(long, value_name = "true|false")]
    manage_models: Option<bool>,

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

    /// The time from which it is valid: 2027-01-31T18:00:00Z, or 12h from now
    #[arg(long, value_name = "TIME", value_parser = when)]
    not_before: Option<When>,

    /// The time at which it expires: 2027-01-31T18:00:00Z, or 90d from now
    #[arg(long, value_name = "TIME", value_parser = when)]
    expires: Option<When>,
}

impl AttributeArgs {
    /// Returns the given attributes. `held`: the limits that the key has already.
    pub(super) fn to_fields(&self, now: UnixTime, held: &Value) -> Map<String, Value> {
        let list = |items: &Vec<String>| if items.is_empty() { Value::Null } else { json!(items) };
        let given = without_null(json!({
            "requests_per_minute": self.requests_per_minute,
            "tokens_per_minute": self.tokens_per_minute,
            "tokens_per_day": self.tokens_per_day,
            "in_flight": self.in_flight,
        }));
        let mut limits =
            // Without a flag for a limit, the change is about none, and passes none along.
            held.as_object().filter(|_| !given.is_empty()).cloned().unwrap_or_default();
        limits.extend(given);
        without_null(json!({
            "team": self.team,
            "models": list(&self.models),
            "zones": list(&self.zones),
            "policies": list(&self.policies),
            "budget": self.budget,
            "sees_budget": self.sees_budget,
            "objective": self.objective,
            "max_priority": self.max_priority,
            "weight": self.weight,
            "ensembles": self.ensembles,
            "context_shift": self.context_shift,
            "manage_models": self.manage_models,
            "limits": if limits.is_empty() { Value::Null } else { Value::Object(limits) },
            "note": self.note,
            "not_before": self.not_before.map(|when| when.from(now)),
            "expires_at": self.expires.map(|when| when.from(now)),
        }))
    }
}

#[derive(Debug, Args)]
pub(in crate::cli) struct SetArgs {
    /// The id of the key, as `penstock keys list` shows it
    #[arg(value_name = "ID")]
    pub(super) id: String,

    #[command(flatten)]
    attributes: AttributeArgs,

    /// Attributes to remove, separated by commas, such as models,limits,expires_at
    #[arg(long, value_delimiter = ',', value_name = "ATTRIBUTES")]
    unset: Vec<String>,

    #[command(flatten)]
    pub(super) common: StoreArgs,
}

impl SetArgs {
    /// Returns the changes of the key; null removes an attribute. `held`: its limits.
    pub(super) fn to_json(&self, now: UnixTime, held: &Value) -> Value {
        let mut fields = self.attributes.to_fields(now, held);
        // After the others: an attribute that is both given and unset is removed.
        fields.extend(self.unset.iter().map(|name| (name.clone(), Value::Null)));
        Value::Object(fields)
    }
}
