//! The arguments that describe a key, as the JSON object that the admin port takes, too.

use std::time::Duration;

use clap::Args;
use penstock_config::UnixTime;
use serde_json::{Value, json};

use super::StoreArgs;
use super::attributes::AttributeArgs;
use super::values::{When, duration, when, without_null};

#[derive(Debug, Args)]
pub(in crate::cli) struct CreateArgs {
    /// The client's name in logs and metrics; names may be used again
    #[arg(long)]
    name: String,

    #[command(flatten)]
    attributes: AttributeArgs,

    /// Print the secret alone, for a script
    #[arg(long, conflicts_with = "json")]
    pub(super) quiet: bool,

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

    /// Print the secret alone, for a script
    #[arg(long, conflicts_with = "json")]
    pub(super) quiet: bool,

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

    /// The end of the token, after which it is forgotten: 2027-01-31T18:00:00Z, or 1h from now
    /// [default: it is never forgotten]
    #[arg(long, value_name = "TIME", value_parser = when)]
    expires: Option<When>,

    #[command(flatten)]
    pub(super) common: StoreArgs,
}

#[derive(Debug, Args)]
pub(in crate::cli) struct RestoreTokenArgs {
    /// The `jti` of the token
    #[arg(long)]
    pub(super) jti: String,

    /// The issuer that it was revoked for [default: it was revoked for every issuer]
    #[arg(long)]
    pub(super) issuer: Option<String>,

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

impl CreateArgs {
    /// Returns the description of the key.
    pub(super) fn to_json(&self, now: UnixTime) -> Value {
        let mut fields = self.attributes.to_fields(now, &Value::Null);
        fields.insert("name".to_owned(), json!(self.name));
        Value::Object(fields)
    }
}
