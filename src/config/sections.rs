//! The sections of the file: one file per section, and here the whole they make.

pub(super) mod access_log;
pub(super) mod admin;
pub(super) mod auth;
pub(super) mod backends;
pub(super) mod discovery;
pub(super) mod health;
pub(super) mod limits;
pub(super) mod listener;
pub(super) mod log;
pub(super) mod model;
pub(super) mod proxies;
pub(super) mod routing;
pub(super) mod scorers;
pub(super) mod server;
pub(super) mod shadow;
pub(super) mod strategy;
pub(super) mod telemetry;
pub(super) mod timeouts;
pub(super) mod tracing;

use std::collections::BTreeMap;

use access_log::AccessLogConfig;
use admin::AdminConfig;
use auth::AuthConfig;
use backends::{BackendConfig, BackendItem};
use discovery::DiscoveryConfig;
use health::HealthConfig;
use limits::LimitsConfig;
use log::LogConfig;
use model::ModelConfig;
use routing::RoutingConfig;
use server::ServerConfig;
use strategy::Strategy;
use telemetry::{TelemetryConfig, TelemetryUse};
use timeouts::TimeoutsConfig;
use tracing::TracingConfig;

use super::syntax::collections::{List, Table};
use super::syntax::errors::ConfigWarning;
use super::syntax::setting::section;

section! {
    /// A penstock: what it listens on, how it chooses, and the backends it chooses from.
    pub struct Config {
        /// The data port.
        pub server: ServerConfig = ServerConfig::default(),
        /// Bounds on what clients may send and this process may hold.
        pub limits: LimitsConfig = LimitsConfig::default(),
        /// The admin port.
        pub admin: AdminConfig = AdminConfig::default(),
        /// What is written to standard error.
        pub log: LogConfig = LogConfig::default(),
        /// One JSON line per request.
        pub access_log: AccessLogConfig = AccessLogConfig::default(),
        /// Distributed traces.
        pub tracing: TracingConfig = TracingConfig::default(),
        /// Who may call the data port.
        pub auth: AuthConfig = AuthConfig::default(),
        /// How a backend is chosen, and what happens when it fails.
        pub routing: RoutingConfig = RoutingConfig::default(),
        /// When a backend counts as up.
        pub health: HealthConfig = HealthConfig::default(),
        /// How long an attempt may take.
        pub timeouts: TimeoutsConfig = TimeoutsConfig::default(),
        /// Asking backends which models they serve.
        pub discovery: DiscoveryConfig = DiscoveryConfig::default(),
        /// Asking engines how busy they are.
        pub telemetry: TelemetryConfig = TelemetryConfig::default(),
        /// What differs for single models.
        pub models: BTreeMap<String, ModelConfig> ["models" as Table<ModelConfig>] =
            BTreeMap::new(),
        /// The engines to send requests to.
        pub backends: Vec<BackendConfig> ["backends" as List<BackendItem>] = Vec::new(),
        /// What is odd about the file.
        pub warnings: Vec<ConfigWarning> [] = Vec::new(),
    }
}

impl Config {
    /// Whether engines are to be asked how busy they are.
    pub fn wants_telemetry(&self) -> bool {
        match self.telemetry.enabled {
            TelemetryUse::Always => true,
            TelemetryUse::Never => false,
            TelemetryUse::Auto => {
                let tried_out = self.routing.shadow.as_ref().map(|shadow| shadow.strategy);
                reads_telemetry(self.routing.strategy) || tried_out.is_some_and(reads_telemetry)
            }
        }
    }
}

fn reads_telemetry(strategy: Strategy) -> bool {
    // The others use only what penstock counts itself.
    strategy == Strategy::Weighted
}
