//! The sections of the configuration: one file per section; the whole configuration and its short
//! sections are here.

pub(super) mod access_log;
pub(super) mod aliases;
pub(super) mod auth;
pub(super) mod backends;
pub(super) mod budgets;
pub(super) mod default_model;
pub(super) mod ensembles;
pub(super) mod health;
pub(super) mod jwt;
pub(super) mod ledger;
pub(super) mod limits;
pub(super) mod listener;
pub(super) mod log;
pub(super) mod model;
mod name_sets;
pub(super) mod objectives;
pub(super) mod policies;
pub(super) mod price;
pub(super) mod prompt;
pub(super) mod proxies;
pub(super) mod queue;
pub(super) mod retry_unanswered;
pub(super) mod routing;
pub(super) mod scorers;
pub(super) mod server;
pub(super) mod shared_state;
pub(super) mod strategy;
pub(super) mod telemetry;
pub(super) mod timeouts;
pub(super) mod tracing;

use std::collections::BTreeMap;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::time::Duration;

use penstock_api::units::ByteSize;

use access_log::AccessLogConfig;
use auth::AuthConfig;
use backends::{BackendConfig, BackendItem};
use budgets::BudgetConfig;
use ensembles::EnsemblesConfig;
use health::HealthConfig;
use ledger::LedgerConfig;
use limits::LimitsConfig;
use log::LogConfig;
use model::ModelConfig;
use objectives::ObjectiveConfig;
use policies::PolicyConfig;
use queue::QueueConfig;
use routing::RoutingConfig;
use server::ServerConfig;
use shared_state::SharedStateConfig;
use strategy::Strategy;
use telemetry::{TelemetryConfig, TelemetryUse};
use timeouts::TimeoutsConfig;
use tracing::TracingConfig;

use super::model_table::ModelTable;
use super::syntax::collections::{ByModel, List, Off, Or, Table};
use super::syntax::errors::UnusablePath;
use super::syntax::secret::{Secret, SecretFile};
use super::syntax::setting::section;
use super::syntax::values::{AtLeastOne, NameServer, Positive};
use super::syntax::warnings::ConfigWarning;

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
        /// The places that requests may go to: the first policy that matches applies.
        pub policies: Vec<PolicyConfig> ["policies" as List<PolicyConfig>] = Vec::new(),
        /// The money that teams and keys may spend, by the prices of models.
        pub budgets: Vec<BudgetConfig> ["budgets" as List<BudgetConfig>] = Vec::new(),
        /// Settings per model.
        pub models: ModelTable<ModelConfig> ["models" as ByModel<ModelConfig>] =
            ModelTable::default(),
        /// The backends.
        pub backends: Vec<BackendConfig> ["backends" as List<BackendItem>] = Vec::new(),
        /// The files that a start cannot create; see [`Config::check_folders`].
        pub unusable_paths: Vec<UnusablePath> [] = Vec::new(),
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
                // Predictions read the size of an engine's KV cache, but without it they work, too.
                let is_auto = self.routing.strategy == Strategy::Auto;
                self.routing.predict
                    || (!is_auto && self.routing.predicts())
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

section! {
    /// The admin port: metrics, health, fleet, explain.
    pub struct AdminConfig {
        /// The address to listen on, or off. A token is required unless the address is loopback.
        pub listen: Option<SocketAddr> ["listen" as Or<Off, SocketAddr>] =
            Some(SocketAddr::new(IpAddr::V4(Ipv4Addr::LOCALHOST), 9090)),
        /// The maximum number of connections at one time.
        pub connections: usize ["connections" as AtLeastOne<usize>] = 256,
        /// Time to receive a request head, from the connection or the previous response on, and to
        /// drain a body that no endpoint expects.
        pub header_timeout: Duration ["header_timeout" as Positive] = Duration::from_secs(10),
        /// A file with the token that callers send as `Authorization: Bearer`.
        pub token: Option<Secret> ["token_file" as SecretFile] = None,
    }
}

section! {
    /// Live usage: requests in flight and tokens per backend and model.
    pub struct UsageConfig {
        /// The shortest time between two events of a usage stream. It is 1 ms per open stream if
        /// that is longer.
        pub interval: Duration ["interval" as Positive] = Duration::from_millis(100),
        /// The maximum number of open usage streams.
        pub streams: usize ["streams" as AtLeastOne<usize>] = 1024,
    }
}

section! {
    /// Ollama clients that manage models: pull, create, copy, delete and push.
    pub struct OllamaConfig {
        /// Lets every client manage models; where it is false, those whose key has
        /// `manage_models` may.
        pub manage_models: bool = false,
        /// The time that a backend may send no progress of a pull, create or push, or take no byte
        /// of an upload, before it has failed.
        pub progress_timeout: Duration ["progress_timeout" as Positive] = Duration::from_secs(600),
        /// The maximum number of commands and uploads that run at one time.
        pub commands: usize ["commands" as AtLeastOne<usize>] = 16,
        /// The largest file of a model that may be uploaded.
        pub max_blob_size: ByteSize = ByteSize::mib(256 * 1024),
    }
}

section! {
    /// Service discovery: query backends for the models they serve.
    pub struct DiscoveryConfig {
        /// Queries backends whose `models` are not listed.
        pub enabled: bool = true,
        /// Time between two queries of the list of models.
        pub interval: Duration ["interval" as Positive] = Duration::from_secs(30),
        /// Time between two queries of what is in memory, of engines that load models on demand.
        pub loaded_interval: Duration ["loaded_interval" as Positive] = Duration::from_secs(30),
        /// Time until a query that failed is repeated, if that is sooner.
        pub error_interval: Duration ["error_interval" as Positive] = Duration::from_secs(10),
        /// Time between two name resolutions of a backend; 2s at most while it is not healthy or
        /// its name does not resolve.
        pub dns_interval: Duration ["dns_interval" as Positive] = Duration::from_secs(10),
        /// DNS servers that resolve the names of backends, such as 10.0.0.10 or 127.0.0.1:8600.
        /// Default: the system's resolver.
        pub dns_servers: Vec<SocketAddr> ["dns_servers" as List<NameServer>] = Vec::new(),
        /// The maximum number of backends that one name becomes with `resolve: each` or `srv`.
        pub max_addresses: u32 ["max_addresses" as AtLeastOne<u32>] = 128,
        /// Timeout of a query.
        pub timeout: Duration ["timeout" as Positive] = Duration::from_secs(5),
        /// The time in which an unknown model is a 503 while a backend has never reported its
        /// models; then it is a 404 that names those backends.
        pub give_up: Duration = Duration::from_secs(30),
    }
}
