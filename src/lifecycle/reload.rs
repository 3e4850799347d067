//! Puts a configuration into force while requests run: loaded and checked whole, built beside the one
//! in force, and swapped in one step. A faulty file changes nothing.

use std::sync::Arc;
use std::time::Duration;

use serde::Serialize;

use crate::clock::now;
use crate::config::{Change, Changes, ConfigError, ConfigSource, LogConfig};
use crate::discovery::DiscoveryService;
use crate::fleet::Health;
use crate::observe::metrics::Metrics;
use crate::proxy::Proxy;
use crate::routing::Generation;
use crate::tls::Look;
use crate::units::to_millis;

/// How long new backends may take to be checked before requests may be sent to them.
const FIRST_CHECKS: Duration = Duration::from_secs(5);

/// Lets the log follow its section of a configuration.
pub type ApplyLog = Box<dyn Fn(&LogConfig) + Send + Sync>;

/// Why a configuration was not put into force.
#[derive(Debug, thiserror::Error)]
pub enum ReloadError {
    /// It is faulty.
    #[error("{0}")]
    Config(#[from] ConfigError),
    /// It did not come from a file.
    #[error("this penstock was not started with a configuration file")]
    NoFile,
    /// There is no thread for the strategy it tries out.
    #[error("the shadow cannot start: {0}")]
    Shadow(#[source] std::io::Error),
    /// Too many reloads wait.
    #[error("other reloads are under way")]
    Busy,
    /// There is nobody left to do it.
    #[error("this penstock is stopping")]
    Stopping,
}

/// What a reload came to.
#[derive(Debug, Serialize)]
pub struct ReloadReport {
    /// Settings that differ from those before, secrets masked.
    pub changed: Vec<Change>,
    /// What became of the backends.
    pub backends: BackendsReport,
    /// Settings of the file that differ from those this process started with, and that it cannot
    /// follow without a restart.
    pub restart_needed: Vec<String>,
    /// What is odd about the file.
    pub warnings: Vec<String>,
    /// How long it took, the first checks of new backends included.
    pub took_ms: f64,
}

/// What a reload did to the backends, by name.
#[derive(Debug, Serialize)]
pub struct BackendsReport {
    /// New ones.
    pub added: Vec<String>,
    /// Those that get no new requests any more.
    pub removed: Vec<String>,
    /// New ones that are not healthy.
    pub not_healthy: Vec<String>,
}

/// Reloads, one at a time.
pub struct Reloader {
    /// Where the configuration comes from.
    pub source: Option<ConfigSource>,
    /// What the log follows.
    pub apply_log: Option<ApplyLog>,
    /// The data plane.
    pub proxy: Arc<Proxy>,
    /// What watches the backends.
    pub prober: DiscoveryService,
    /// What counts.
    pub metrics: Arc<Metrics>,
}

impl Reloader {
    /// Loads the configuration and puts it into force. Says in the log and in the metrics what came
    /// of it.
    ///
    /// # Errors
    /// Why the configuration in force stays as it is.
    pub async fn reload(&self) -> Result<ReloadReport, ReloadError> {
        let reloaded = self.try_reload().await;
        self.metrics.reloads.count(reloaded.is_ok());
        match &reloaded {
            Ok(report) => tell(report),
            Err(error) => {
                tracing::error!("the configuration is refused, the one before goes on: {error}");
            }
        }
        reloaded
    }

    async fn try_reload(&self) -> Result<ReloadReport, ReloadError> {
        let started = now();
        let source = self.source.clone().ok_or(ReloadError::NoFile)?;
        // Files may lie on a slow disk; the work of this thread must not wait for it.
        let loading = tokio::task::spawn_blocking(move || source.load());
        let config = loading.await.map_err(|_ended| ReloadError::Stopping)??;
        let before = self.proxy.generation();
        let changes = Changes::between(&before.config, &config);
        let restart = Changes::between(self.proxy.config(), &config);
        let generation = before.succeeded_by(config).with_shadow(Some(&before));
        let generation = Arc::new(generation.map_err(ReloadError::Shadow)?);
        let first_checks = self.prober.watch(&generation.fleet, &generation.config);
        let is_checked = tokio::time::timeout(FIRST_CHECKS, first_checks).await.is_ok();
        tracing::debug!(is_checked, "the new configuration takes over");
        // Counters first: an attempt on a new backend must find its own.
        self.metrics.learn_backends(&generation.fleet.topology());
        self.proxy.adopt(Arc::clone(&generation));
        self.proxy.clients().refresh_certificates(Look::Asked);
        if let Some(apply) = &self.apply_log {
            apply(&generation.config.log);
        }
        let Changes { added, removed, .. } = &changes;
        let not_healthy = not_healthy(&generation, added);
        Ok(ReloadReport {
            restart_needed: restart.needing_restart().into_iter().map(str::to_owned).collect(),
            backends: BackendsReport {
                added: added.clone(),
                removed: removed.clone(),
                not_healthy,
            },
            changed: changes.settings,
            warnings: generation.config.warnings.iter().map(ToString::to_string).collect(),
            took_ms: to_millis(now().since(started)),
        })
    }
}

fn not_healthy(generation: &Generation, names: &[String]) -> Vec<String> {
    let fleet = generation.fleet.topology();
    let is_ill = |name: &&String| {
        let backend = fleet.backend(name);
        backend.is_some_and(|backend| backend.state.health.status() != Health::Healthy)
    };
    names.iter().filter(is_ill).cloned().collect()
}

fn tell(report: &ReloadReport) {
    let changed: Vec<&str> = report.changed.iter().map(|change| &*change.setting).collect();
    let BackendsReport { added, removed, .. } = &report.backends;
    tracing::info!(?changed, ?added, ?removed, "the configuration is reloaded");
    for warning in &report.warnings {
        tracing::warn!("{warning}");
    }
    if !report.restart_needed.is_empty() {
        let settings = report.restart_needed.join(", ");
        tracing::warn!("these settings need a restart to take effect: {settings}");
    }
}
