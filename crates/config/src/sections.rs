//! The sections of the configuration: one file per section, and the whole configuration here.

pub(super) mod access_log;
pub(super) mod admin;
pub(super) mod aliases;
pub(super) mod auth;
pub(super) mod backends;
pub(super) mod default_model;
pub(super) mod discovery;
pub(super) mod ensembles;
pub(super) mod health;
pub(super) mod ledger;
pub(super) mod limits;
pub(super) mod listener;
pub(super) mod log;
pub(super) mod model;
pub(super) mod objectives;
pub(super) mod ollama;
pub(super) mod price;
pub(super) mod prompt;
pub(super) mod proxies;
pub(super) mod queue;
pub(super) mod rate_limits;
pub(super) mod reload_gate;
pub(super) mod retry_unanswered;
mod retry_without;
pub(super) mod routing;
pub(super) mod scorers;
pub(super) mod server;
pub(super) mod shadow;
pub(super) mod shared_state;
pub(super) mod strategy;
pub(super) mod telemetry;
pub(super) mod timeouts;
pub(super) mod tracing;
pub(super) mod usage;

use std::collections::BTreeMap;

use access_log::AccessLogConfig;
use admin::AdminConfig;
use auth::AuthConfig;
use backends::{BackendConfig, BackendItem};
use discovery::DiscoveryConfig;
use ensembles::EnsemblesConfig;
use health::HealthConfig;
use ledger::LedgerConfig;
use limits::LimitsConfig;
use log::LogConfig;
use model::ModelConfig;
use objectives::ObjectiveConfig;
use ollama::OllamaConfig;
use queue::QueueConfig;
use routing::RoutingConfig;
use server::ServerConfig;
use shared_state::SharedStateConfig;
use strategy::Strategy;
use telemetry::{TelemetryConfig, TelemetryUse};
use timeouts::TimeoutsConfig;
use tracing::TracingConfig;
use usage::UsageConfig;

use super::syntax::collections::{List, Table};
use super::syntax::errors::ConfigWarning;
use super::syntax::setting::section;

section! {
    /// The configuration of penstock.
    pub struct Config {
        /// The data port.
        pub server: ServerConfig = ServerConfig::default(),
        /// Limits on what clients may send and on the memory of this process.
        pub limits: LimitsConfig = LimitsConfig::default(),
        /// The admin port.
        pub admin: AdminConfig = AdminConfig::default(),
        /// Log messages on standard error.
        pub log: LogConfig = LogConfig::default(),
        /// One JSON line per request.
        pub access_log: AccessLogConfig = AccessLogConfig::default(),
        /// Distributed tracing.
        pub tracing: TracingConfig = TracingConfig::default(),
        /// Tokens per backend, model and client key, in a database.
        pub ledger: LedgerConfig = LedgerConfig::default(),
        /// Live usage.
        pub usage: UsageConfig = UsageConfig::default(),
        /// Ollama clients that manage models.
        pub ollama: OllamaConfig = OllamaConfig::default(),
        /// Ensembles: one response made of several.
        pub ensembles: EnsemblesConfig = EnsemblesConfig::default(),
        /// API keys of clients.
        pub auth: AuthConfig = AuthConfig::default(),
        /// State that several penstocks share.
        pub shared_state: SharedStateConfig = SharedStateConfig::default(),
        /// Requests that wait for a backend with room.
        pub queue: QueueConfig = QueueConfig::default(),
        /// The choice of a backend, and the reaction to its failures.
        pub routing: RoutingConfig = RoutingConfig::default(),
        /// Health checks, slow start and circuit breaker.
        pub health: HealthConfig = HealthConfig::default(),
        /// Timeouts of one attempt, and of the request.
        pub timeouts: TimeoutsConfig = TimeoutsConfig::default(),
        /// Service discovery of models.
        pub discovery: DiscoveryConfig = DiscoveryConfig::default(),
        /// Engine telemetry.
        pub telemetry: TelemetryConfig = TelemetryConfig::default(),
        /// Objectives of requests, by name.
        pub objectives: BTreeMap<String, ObjectiveConfig> ["objectives" as Table<ObjectiveConfig>] =
            BTreeMap::new(),
        /// Settings per model.
        pub models: BTreeMap<String, ModelConfig> ["models" as Table<ModelConfig>] =
            BTreeMap::new(),
        /// The backends.
        pub backends: Vec<BackendConfig> ["backends" as List<BackendItem>] = Vec::new(),
        /// Warnings about the file.
        pub warnings: Vec<ConfigWarning> [] = Vec::new(),
    }
}

impl Config {
    /// Returns whether engines are scraped.
    pub fn wants_telemetry(&self) -> bool {
        let is_auto = self.routing.strategy == Strategy::Auto;
        self.needs_telemetry() || (is_auto && self.telemetry.enabled == TelemetryUse::Auto)
    }

    /// Returns whether engines that suffer from scrapes are scraped as well: only if the operator
    /// has configured something that reads their metrics.
    pub fn needs_telemetry(&self) -> bool {
        match self.telemetry.enabled {
            TelemetryUse::Always => true,
            TelemetryUse::Never => false,
            TelemetryUse::Auto => {
                let tried_out = self.routing.shadow.as_ref().map(|shadow| shadow.strategy);
                // Predictions read the size of an engine's KV cache.
                self.routing.predicts()
                    || self.routing.strategy == Strategy::Weighted
                    || tried_out.is_some_and(reads_telemetry)
            }
        }
    }
}

fn reads_telemetry(strategy: Strategy) -> bool {
    // The other strategies use only counts of penstock itself.
    matches!(strategy, Strategy::Auto | Strategy::Weighted)
}
