//! Hot reload: the new configuration is loaded and validated completely, built next to the one in
//! force, and swapped in one atomic step. Requests in flight finish with the configuration they
//! started with. An invalid file changes nothing.

use std::io;
use std::sync::Arc;
use std::time::Duration;

use penstock_api::units::{show_duration, to_millis};
use penstock_clock::now;
use penstock_config::{Change, Changes, Config, ConfigError, ConfigSource, LogConfig};
use penstock_core::fleet::{Groups, Health};
use penstock_core::routing::Generation;
use penstock_core::routing::audit::ShadowHost;
use penstock_sim::replay::PredictedEffect;
use serde::Serialize;
use tokio::sync::Semaphore;

use super::reload_gate::{GateError, simulate, simulated_config};
use crate::discovery::{DiscoveryService, look_up_groups};
use crate::downstream::port_tls::Look;
use crate::observe::metrics::Metrics;
use crate::observe::recent::RecentTraffic;
use crate::observe::usage::LiveUsage;
use crate::proxy::Proxy;

/// The time limit for reading the configuration and the files that it names.
const MAX_READING: Duration = Duration::from_secs(30);
/// The time limit for the first health checks of new backends.
const FIRST_CHECKS: Duration = Duration::from_secs(5);

/// The clock and the thread that the process provides to the shadow strategy. Routing has neither.
pub(crate) const SHADOW_HOST: ShadowHost = ShadowHost { now, spawn: spawn_thread };

/// Applies the `log` section of a configuration.
pub type ApplyLog = Box<dyn Fn(&LogConfig) + Send + Sync>;

/// The reason why a configuration was not applied.
#[derive(Debug, thiserror::Error)]
pub enum ReloadError {
    #[error("{0}")]
    Config(#[from] ConfigError),
    /// It did not come from a file.
    #[error("this process was not started with a configuration file")]
    NoFile,
    /// It has no keys while those of the store stay in effect.
    #[error(
        "without auth.store the keys that it holds would reach the backends, but they stay valid until a restart: \
         keep it, or restart penstock"
    )]
    StoreRemoved,
    /// The thread of its shadow strategy cannot start.
    #[error("the shadow cannot start: {0}")]
    Shadow(#[source] std::io::Error),
    /// The required simulation could not run.
    #[error("{0}")]
    Gate(#[from] GateError),
    /// The new configuration would be worse.
    #[error("the simulation of recent traffic refuses it: {}", .0.regression.as_deref().unwrap_or_default())]
    Regression(Box<PredictedEffect>),
    /// Too many reloads are pending.
    #[error("too many reloads are pending")]
    Busy,
    /// The file, or one that it names, is on a file system that does not respond.
    #[error(
        "the configuration, or a file that it names, cannot be read within {}: its file system does not respond",
        show_duration(MAX_READING)
    )]
    Unreadable,
    /// An empty list of backends would replace those in use.
    #[error(
        "'backends' is empty, and {in_use} are in use: every request would fail; drain them, or restart with this file"
    )]
    NoBackends {
        /// The number of backends in use.
        in_use: usize,
    },
    /// The process is shutting down.
    #[error("this process is shutting down")]
    Stopping,
}

/// The result of a reload.
#[derive(Debug, Serialize)]
pub struct ReloadReport {
    /// Changed settings, secrets masked.
    pub changed: Vec<Change>,
    pub backends: BackendsReport,
    /// Changed settings that take effect only after a restart.
    pub restart_needed: Vec<String>,
    pub warnings: Vec<String>,
    /// The result of simulating recent traffic, if that was done.
    pub simulation: Option<PredictedEffect>,
    /// The duration, including the first health checks of new backends.
    pub took_ms: f64,
}

/// Changes of the backends, by name.
#[derive(Debug, Serialize)]
pub struct BackendsReport {
    pub added: Vec<String>,
    /// Removed backends; they receive no new requests.
    pub removed: Vec<String>,
    /// New backends that are not healthy.
    pub not_healthy: Vec<String>,
}

pub struct Reloader {
    pub source: Option<ConfigSource>,
    pub apply_log: Option<ApplyLog>,
    pub proxy: Arc<Proxy>,
    pub prober: DiscoveryService,
    pub metrics: Arc<Metrics>,
    /// The traffic served in the last minutes.
    pub recent: Arc<RecentTraffic>,
    /// Counts tokens by the backends and prices of the configuration.
    pub usage: Arc<LiveUsage>,
    /// Held while the file is read: an earlier reload may hang in the file system.
    pub reading: Arc<Semaphore>,
}

impl Reloader {
    /// Loads and applies the configuration; logs and counts the result. With `simulate`, or if
    /// `routing.reload_gate` always requires it, recent traffic is simulated first.
    ///
    /// # Errors
    /// [`ReloadError`] if the configuration in force stays unchanged.
    pub async fn reload(&self, simulate: Option<Duration>) -> Result<ReloadReport, ReloadError> {
        let reloaded = self.try_reload(simulate).await;
        self.metrics.reloads.count(reloaded.is_ok());
        match &reloaded {
            Ok(report) => log_report(report),
            Err(error) => {
                tracing::error!("configuration refused, the previous one stays in force: {error}");
            }
        }
        reloaded
    }

    async fn try_reload(&self, simulate: Option<Duration>) -> Result<ReloadReport, ReloadError> {
        let started = now();
        let config = self.load().await?;
        let before = self.proxy.generation();
        let in_use = before.config.backends.len();
        if config.backends.is_empty() && in_use > 0 {
            return Err(ReloadError::NoBackends { in_use });
        }
        if config.auth.is_open() && self.proxy.keys.store().is_some() {
            return Err(ReloadError::StoreRemoved);
        }
        let changes = Changes::between(&before.config, &config);
        // Compared with the start of the process: a setting may be pending since an earlier reload.
        let restart = Changes::between(self.proxy.config(), &config);
        let groups = look_up_groups(&config, before.fleet.groups()).await;
        let simulation = self.simulation(&before, &config, &groups, simulate).await?;
        let generation = self.adopt(&before, config, groups).await?;
        if !changes.is_empty() && generation.config.routing.reload_gate.is_some() {
            self.recent.note_replaced(simulated_config(&before));
        }
        self.proxy.clients.refresh_certificates(Look::Requested);
        // Only now: a refused configuration changes nothing, not even the log.
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
            simulation,
            took_ms: to_millis(now().since(started)),
        })
    }

    /// Loads the configuration. Files may be on a slow disk, which must not block this thread. If a
    /// file system does not respond at all, one thread hangs; later reloads do not start a second
    /// one.
    async fn load(&self) -> Result<Config, ReloadError> {
        let source = self.source.clone().ok_or(ReloadError::NoFile)?;
        let reading = Arc::clone(&self.reading).try_acquire_owned();
        let reading = reading.map_err(|_hanging| ReloadError::Unreadable)?;
        let loading = tokio::task::spawn_blocking(move || {
            // Held until the read ends, even if the timeout below has given up on it.
            let _held = reading;
            source.load()
        });
        let loaded = tokio::time::timeout(MAX_READING, loading).await;
        let loaded = loaded.map_err(|_late| ReloadError::Unreadable)?;
        Ok(loaded.map_err(|_ended| ReloadError::Stopping)??)
    }

    /// Simulates the recent traffic if requested or configured. Too little traffic refuses only a
    /// reload that requested the simulation.
    async fn simulation(
        &self,
        before: &Generation,
        next: &Config,
        groups: &Groups,
        requested: Option<Duration>,
    ) -> Result<Option<PredictedEffect>, ReloadError> {
        // The gate in force counts: the recent traffic is kept by its settings.
        let gate = before.config.routing.reload_gate.as_ref();
        let usual = gate.filter(|gate| gate.always).map(|gate| gate.window);
        let Some(window) = requested.or(usual) else { return Ok(None) };
        match simulate(&self.recent, before, next, groups, window).await {
            Ok(report) if report.regression.is_some() => {
                Err(ReloadError::Regression(Box::new(report)))
            }
            Ok(report) => Ok(Some(report)),
            Err(error @ GateError::Simulation(_)) if requested.is_none() => {
                tracing::warn!("{error}");
                Ok(None)
            }
            Err(error) => Err(error.into()),
        }
    }

    /// Replaces the members of the groups of the configuration in force.
    ///
    /// # Errors
    /// [`ReloadError`] if the members in force stay.
    pub async fn replace_members(&self, groups: Groups) -> Result<(), ReloadError> {
        let before = self.proxy.generation();
        self.adopt(&before, before.config.clone(), groups).await?;
        Ok(())
    }

    /// Puts a configuration in force, once its new backends have been checked.
    async fn adopt(
        &self,
        before: &Generation,
        config: Config,
        groups: Groups,
    ) -> Result<Arc<Generation>, ReloadError> {
        let generation = before.succeeded_by(config, groups);
        let generation = generation.with_shadow(Some(before), SHADOW_HOST);
        let generation = Arc::new(generation.map_err(ReloadError::Shadow)?);
        // New backends are checked before the swap; one that hangs delays it by `FIRST_CHECKS`.
        let first_checks = self.prober.watch(&generation.fleet, &generation.config);
        let is_checked = tokio::time::timeout(FIRST_CHECKS, first_checks).await.is_ok();
        tracing::debug!(is_checked, "applying the new configuration");
        // Counters first: an attempt on a new backend needs them.
        self.metrics.learn_backends(&generation.fleet.topology());
        self.recent.configure(generation.config.routing.reload_gate.as_ref());
        self.usage.adopt(Arc::clone(&generation));
        self.proxy.adopt(Arc::clone(&generation));
        Ok(generation)
    }
}

fn not_healthy(generation: &Generation, names: &[String]) -> Vec<String> {
    let fleet = generation.fleet.topology();
    let is_unhealthy = |name: &&String| {
        let backend = fleet.backend(name);
        backend.is_some_and(|backend| backend.state.health.status() != Health::Healthy)
    };
    names.iter().filter(is_unhealthy).cloned().collect()
}

fn log_report(report: &ReloadReport) {
    let changed: Vec<&str> = report.changed.iter().map(|change| &*change.setting).collect();
    let BackendsReport { added, removed, .. } = &report.backends;
    tracing::info!(?changed, ?added, ?removed, "configuration reloaded");
    for warning in &report.warnings {
        tracing::warn!("{warning}");
    }
    if !report.restart_needed.is_empty() {
        let settings = report.restart_needed.join(", ");
        tracing::warn!("these settings take effect after a restart: {settings}");
    }
}

fn spawn_thread(name: &str, job: Box<dyn FnOnce() + Send>) -> io::Result<()> {
    std::thread::Builder::new().name(name.to_owned()).spawn(job).map(drop)
}
