//! The configuration: YAML in, checked and resolved types out. One file per section; each option
//! is declared once, by `section!`, and everything else about it follows from there. Reads nothing
//! but the file, the secrets it names and the environment it is given.

mod access_log;
mod admin;
mod auth;
mod backends;
mod changes;
mod checks;
mod collections;
mod discovery;
mod document;
mod dump;
mod environment;
mod error;
mod glob;
mod health;
mod limits;
mod listener;
mod log;
mod model;
mod models_check;
mod proxies;
mod reader;
mod routing;
mod scorers;
mod secret;
mod server;
mod setting;
mod shadow;
mod shape;
mod source;
mod suggest;
mod telemetry;
mod timeouts;
mod tracing;
mod url;
mod values;
mod variables;

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;

pub use access_log::{AccessLogConfig, LogTarget};
pub use admin::AdminConfig;
pub use auth::{AuthConfig, ClientKey};
pub use backends::{AuthorizationPolicy, BackendConfig, BackendTls, Engine};
pub use changes::{Change, Changes};
pub use discovery::DiscoveryConfig;
pub use environment::{Environment, known_variables};
pub(crate) use error::without_position;
pub use error::{ConfigError, ConfigWarning, Fault, Oddity, Place, Problem};
pub use glob::ModelGlob;
pub use health::{BreakerConfig, HealthConfig};
pub use limits::{Http2Limits, LimitsConfig};
pub use listener::{ClientCertificates, ListenAddress, Listener, ListenerTls};
pub use log::{LogConfig, LogFormat, LogLevel};
pub use model::{ModelConfig, ModelEntry};
pub use models_check::ALIAS_HOPS;
pub use proxies::TrustedProxy;
pub use routing::{
    CooldownConfig, RetryBudget, RoutingConfig, Strategy, TokenEstimate, UnknownCapability, Weights,
};
pub use secret::{Secret, SecretError};
pub use server::{Cors, ForwardedFor, ServerConfig};
pub use shadow::ShadowConfig;
pub use source::ConfigSource;
pub(crate) use suggest::nearest;
pub use telemetry::{BackendTelemetry, TelemetryConfig, TelemetryUse};
pub use timeouts::{TimeoutOverrides, TimeoutsConfig};
pub use tracing::TracingConfig;
pub use url::{BackendUrl, UrlError};

use backends::{BackendItem, settle_backends};
use collections::{List, Table};
use document::{Content, Entry, Node, parse_document};
use environment::{apply_overrides, settle_scorers};
use health::GlobalHealth;
use reader::Reader;
use setting::{Setting, section};
use variables::expand_variables;

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
        pub health: HealthConfig ["health" as GlobalHealth] = HealthConfig::default(),
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
    /// Loads the file at `path`; `environment` fills its variables and overrides its settings, and
    /// `overrides` (`routing.strategy`, `random`) beat both.
    ///
    /// # Errors
    /// [`ConfigError`] with every fault found.
    pub fn load(
        path: &Path,
        environment: &Environment,
        overrides: &[(String, String)],
    ) -> Result<Self, ConfigError> {
        let text = std::fs::read_to_string(path)
            .map_err(|source| ConfigError::Unreadable { path: path.to_owned(), source })?;
        let base_dir = path.parent().unwrap_or(Path::new(""));
        let root = parse_document(&text, &Arc::from(path.to_string_lossy()))?;
        Self::build(root, base_dir, environment, overrides)
    }

    /// Parses `text`, which messages call `name`; relative paths in it start at `base_dir`.
    ///
    /// # Errors
    /// [`ConfigError`] with every fault found.
    pub fn parse(
        text: &str,
        name: &str,
        base_dir: &Path,
        environment: &Environment,
    ) -> Result<Self, ConfigError> {
        Self::build(parse_document(text, &Arc::from(name))?, base_dir, environment, &[])
    }

    fn build(
        mut root: Node,
        base_dir: &Path,
        environment: &Environment,
        overrides: &[(String, String)],
    ) -> Result<Self, ConfigError> {
        let mut reader = Reader::new(base_dir);
        wrap_list(&mut root);
        expand_variables(&mut root, environment, &mut reader.faults);
        apply_overrides(&mut root, environment, overrides, &mut reader.faults);
        settle_scorers(&mut root, &mut reader);
        let mut config = Self::default();
        if matches!(root.content, Content::Null) {
            root.content = Content::Map(Vec::new());
        }
        Self::update(&mut config, &root, &mut reader);
        if matches!(root.content, Content::Map(_)) && root.entry("backends").is_none() {
            reader.fault(&root.place, Problem::NoBackends);
        }
        // Only on what was read as it was meant: a faulty value would be judged by its default.
        if reader.faults.is_empty() {
            let items = root.at("backends").items();
            settle_backends(&mut config.backends, items, !config.auth.keys.is_empty());
            checks::check(&config, &root, &mut reader);
        }
        let Reader { mut faults, warnings, .. } = reader;
        if !faults.is_empty() {
            faults.sort_by(|one, other| one.place.cmp(&other.place));
            return Err(ConfigError::Invalid { faults });
        }
        config.warnings = warnings;
        Ok(config)
    }

    /// The effective configuration as YAML, every key shown and secrets masked. Loads back, except
    /// for the secrets.
    pub fn to_masked_yaml(&self) -> String {
        <Self as Setting>::dump(self).to_yaml()
    }
}

/// The JSON Schema of the configuration file.
pub fn json_schema() -> serde_json::Value {
    serde_json::json!({
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": "penstock configuration",
        "$defs": {"variable": {"type": "string", "pattern": r"\$\{"}},
        "anyOf": [Config::shape().to_schema(), List::<BackendItem>::shape().to_schema()],
    })
}

/// A file that is only a list is the list of its backends.
fn wrap_list(root: &mut Node) {
    if let Content::List(_) = root.content {
        let node = root.clone();
        let place = node.place.clone();
        root.content = Content::Map(vec![Entry { key: "backends".to_owned(), place, node }]);
    }
}

#[cfg(test)]
mod tests;
