//! The configuration: YAML in, checked and resolved types out. One file per section; `section!`
//! declares each option once, and everything else about it is derived from there. Reads nothing but
//! the file, the secrets it names, the environment it is given and, for keys that expired, the
//! clock.

mod changes;
mod checks;
mod file;
mod misplaced;
mod model_table;
mod overridable;
mod overrides;
mod sections;
mod syntax;
pub mod tls;
mod unknown_variable;

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::sync::Arc;

pub use changes::{Change, Changes};
pub use checks::MAX_BACKENDS;
pub use checks::models::ALIAS_HOPS;
pub use model_table::ModelTable;
pub use overridable::known_variables;
pub use sections::access_log::{AccessLogConfig, LogTarget};
pub use sections::aliases::{AliasTarget, AliasTargets, SplitBy};
pub use sections::auth::{AuthConfig, ClientKey, RateLimits};
pub use sections::backends::{AuthorizationPolicy, BackendConfig, ConnectionTls, Resolve};
pub use sections::budgets::{BudgetConfig, BudgetPeriod, BudgetScope, MAX_BUDGETS};
pub use sections::default_model::DefaultModel;
pub use sections::ensembles::EnsemblesConfig;
pub use sections::health::{BreakerConfig, HealthConfig};
pub use sections::jwt::{
    CertificateName, ClaimNames, JwksSource, JwtConfig, MAX_ISSUERS, TokenAlgorithm,
};
pub use sections::ledger::{LedgerConfig, RequestUsage};
pub use sections::limits::{Http2Limits, LimitsConfig};
pub use sections::listener::{ClientCertificates, ListenAddress, Listener, ListenerTls};
pub use sections::log::{LogConfig, LogFormat, LogLevel};
pub use sections::model::{ModelConfig, ModelEntry};
pub use sections::objectives::{MAX_PRIORITY, ObjectiveConfig};
pub use sections::policies::{
    CLOUD_ZONE, LOCAL_ZONE, MAX_POLICIES, PolicyConfig, QualityConfig, TierMode,
};
pub use sections::price::Price;
pub use sections::prompt::Prompt;
pub use sections::proxies::TrustedProxy;
pub use sections::queue::{FairnessId, QueueConfig, QueueOrder};
pub use sections::retry_unanswered::RetryUnanswered;
pub use sections::routing::{
    BY_MODEL, CooldownConfig, HeadroomPreference, ReloadGateConfig, RetryBudget, RoutingConfig,
    ShadowConfig, UnknownCapability,
};
pub use sections::server::{Compat, Cors, ForwardedFor, ServerConfig};
pub use sections::shared_state::{BudgetsAlone, RedisAddress, SharedStateConfig};
pub use sections::strategy::{Strategy, Weights};
pub use sections::telemetry::{BackendTelemetry, TelemetryConfig, TelemetryUse};
pub use sections::timeouts::{TimeoutOverrides, TimeoutsConfig};
pub use sections::tracing::TracingConfig;
pub use sections::{AdminConfig, Config, DiscoveryConfig, OllamaConfig, UsageConfig};
pub use syntax::environment::Environment;
pub use syntax::errors::{
    ConfigError, ConfigFault, Encoding, OtherFormat, Problem, PromptError, SecretError,
    SyntaxCause, UnusablePath, UrlError, without_position,
};
pub use syntax::glob::ModelGlob;
pub use syntax::key_hash::KeyHash;
pub use syntax::secret::Secret;
pub use syntax::source_place::SourcePlace;
pub use syntax::suggest::nearest;
pub use syntax::unix_time::UnixTime;
pub use syntax::url::BackendUrl;
pub use syntax::values::is_plain_name;
pub use syntax::warnings::{ConfigWarning, Warning};

use checks::Soundness;
use misplaced::suggest_places;
use overrides::{apply_overrides, resolve_scorer_conflicts};
use sections::backends::{BackendItem, settle_backends};
use syntax::collections::List;
use syntax::document::{Content, Entry, Node, parse_document};
use syntax::encoding::decode;
use syntax::reader::Reader;
use syntax::setting::Setting;
use syntax::variables::expand_variables;

impl Config {
    /// Loads the file at `path`. `environment` fills its variables and overrides its settings;
    /// `overrides` (`routing.strategy`, `random`) take precedence over both.
    ///
    /// # Errors
    /// [`ConfigError`] with every error found.
    pub fn load(
        path: &Path,
        environment: &Environment,
        overrides: &[(String, String)],
    ) -> Result<Self, ConfigError> {
        let bytes = file::read(path)
            .map_err(|source| ConfigError::Unreadable { path: path.to_owned(), source })?;
        let base_dir = path.parent().unwrap_or(Path::new(""));
        let name = Arc::from(path.to_string_lossy());
        let root = parse_document(&decode(bytes, &name)?, &name)?;
        Self::build(root, base_dir, environment, overrides)
    }

    /// Parses `text`, which messages call `name`; relative paths in it start at `base_dir`.
    ///
    /// # Errors
    /// [`ConfigError`] with every error found.
    pub fn parse(
        text: &str,
        name: &str,
        base_dir: &Path,
        environment: &Environment,
    ) -> Result<Self, ConfigError> {
        Self::parse_with(text, name, base_dir, environment, &[])
    }

    /// Parses `text` as [`Config::parse`] does, with settings that override those of the text, as
    /// flags do.
    ///
    /// # Errors
    /// [`ConfigError`] with every error found.
    pub fn parse_with(
        text: &str,
        name: &str,
        base_dir: &Path,
        environment: &Environment,
        overrides: &[(String, String)],
    ) -> Result<Self, ConfigError> {
        Self::build(parse_document(text, &Arc::from(name))?, base_dir, environment, overrides)
    }

    fn build(
        mut root: Node,
        base_dir: &Path,
        environment: &Environment,
        overrides: &[(String, String)],
    ) -> Result<Self, ConfigError> {
        let mut reader = Reader::new(base_dir);
        wrap_list(&mut root);
        let mut mentioned = BTreeSet::new();
        // Before the overrides, whose values are taken as they are.
        expand_variables(&mut root, environment, &mut mentioned, &mut reader.faults);
        apply_overrides(&mut root, environment, &mentioned, overrides, &mut reader.faults);
        let strategy_reason = resolve_scorer_conflicts(&mut root, &mut reader);
        let mut config = Self::default();
        match root.content {
            // An empty file gets the message that it has no backends.
            Content::Null => root.content = Content::Map(Vec::new()),
            Content::Scalar(_) => {
                reader.fault(&root.place, Problem::NotAMapping { found: root.kind() });
            }
            Content::List(_) | Content::Map(_) => {}
        }
        if matches!(root.content, Content::Map(_)) {
            Self::update(&mut config, &root, &mut reader);
            config.routing.strategy_reason = strategy_reason;
        }
        if matches!(root.content, Content::Map(_)) && root.entry("backends").is_none() {
            reader.fault(&root.place, Problem::NoBackends);
        }
        if !reader.faults.is_empty() {
            suggest_places(&mut reader.faults, &Self::shape());
        }
        settle(&mut config, &root, &mut reader);
        let Reader { mut faults, mut warnings, .. } = reader;
        if !faults.is_empty() {
            // In the order of the file, not in that of the checks.
            faults.sort_by(|one, other| one.place.cmp(&other.place));
            warnings.sort_by(|one, other| one.place.cmp(&other.place));
            return Err(ConfigError::Invalid { faults, warnings });
        }
        config.warnings = warnings;
        Ok(config)
    }

    /// Returns the effective configuration as YAML, with every key shown and secrets masked. It can
    /// be loaded again, except for the secrets.
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

/// Fills in values that depend on several settings, and checks the rules across them. An invalid
/// setting has its default here, so everything that depends on it is skipped.
fn settle(config: &mut Config, root: &Node, reader: &mut Reader) {
    let sound = Soundness::after(&reader.faults);
    let items = root.entry("backends").map_or(&[][..], |entry| entry.node.items());
    inherit_health(config, items, &sound, reader);
    settle_backends(&mut config.backends, items, !config.auth.is_open());
    load_backend_tls(config, items, &sound, reader);
    if sound.holds_at(root, "shared_state") {
        load_redis_tls(config, root, reader);
    }
    config.unusable_paths = checks::unusable_paths(config, root, &sound);
    // Last: the rules read settled values.
    checks::check(config, root, &sound, reader);
}

/// Reads the files of each backend's `tls`, so that users of the configuration need no I/O for
/// them.
fn load_backend_tls(config: &mut Config, items: &[Node], sound: &Soundness, reader: &mut Reader) {
    for (index, (backend, item)) in config.backends.iter_mut().zip(items).enumerate() {
        // `tls` beside a plain URL is refused by the checks.
        if backend.url.https
            && sound.holds(item)
            && let Err(source) = backend.load_tls()
        {
            let key = format!("backends[{index}].tls");
            reader.fault(item.key_place("tls"), Problem::Tls { key, source });
        }
    }
}

/// Reads the files of `shared_state.tls`.
fn load_redis_tls(config: &mut Config, root: &Node, reader: &mut Reader) {
    if let Err(source) = config.shared_state.load_tls() {
        let key = "shared_state.tls".to_owned();
        reader.fault(root.at("shared_state").key_place("tls"), Problem::Tls { key, source });
    }
}

/// Reads each backend's `health` again, on top of the global one.
fn inherit_health(config: &mut Config, items: &[Node], sound: &Soundness, reader: &mut Reader) {
    for (backend, item) in config.backends.iter_mut().zip(items) {
        backend.health = config.health.clone();
        if let Some(Entry { node, .. }) =
            item.entry("health").filter(|entry| sound.holds(&entry.node))
        {
            HealthConfig::update(&mut backend.health, node, reader);
        }
    }
}

/// Turns a file that is only a list into a configuration with these backends.
fn wrap_list(root: &mut Node) {
    if let Content::List(_) = root.content {
        let node = root.clone();
        let place = node.place.clone();
        root.content = Content::Map(vec![Entry { key: "backends".to_owned(), place, node }]);
    }
}

/// A file, the environment and the flags that override it.
#[derive(Debug, Clone)]
pub struct ConfigSource {
    pub path: PathBuf,
    /// The environment: values of `${NAME}`, and overrides.
    pub environment: Environment,
    /// Overrides from the command line, which take precedence.
    pub overrides: Vec<(String, String)>,
}

impl ConfigSource {
    /// Loads the configuration, including the files with secrets.
    ///
    /// # Errors
    /// [`ConfigError`] with every error found.
    pub fn load(&self) -> Result<Config, ConfigError> {
        Config::load(&self.path, &self.environment, &self.overrides)
    }
}

#[cfg(test)]
mod tests;
