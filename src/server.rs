//! The composition root: the only file that knows every part. Builds the data plane, health checks,
//! admin port and signal handling, and runs them as services of one Pingora server.

mod listeners;
mod stores;

pub(crate) use listeners::try_listen;
use stores::{open_key_store, open_ledger, report_budgets, restore_days, share_budgets};

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use parking_lot::Mutex;
use penstock_config::tls::TlsError;
use penstock_config::{Config, ConfigSource, ListenAddress};
use penstock_core::routing::{Generation, PrefixObserver, RequestObserver, ShadowObserver};
use pingora::apps::ServerApp;
use pingora::server::configuration::ServerConf;
use pingora::server::{RunArgs, Server, ShutdownWatch};
use pingora::services::background::{BackgroundService, background_service};
use pingora::services::listening::Service;
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::Semaphore;

use crate::admin::Admin;
use crate::data_port::DataPlane;
use crate::discovery::DiscoveryService;
use crate::key_store::KeyStoreError;
use crate::lifecycle::systemd::Notifier;
use crate::lifecycle::{
    ApplyLog, CommandSender, ControlLoop, InheritedSockets, ListenerService, Reloader, SHADOW_HOST,
    Shutdown, ShutdownHook, ShutdownTrigger, Socket, Sockets, StopAccepting, Successor, Supervisor,
    check_threads, install_signal_handlers, look_up_at_start, raise_limit,
};
use crate::observe::access_log::{AccessLog, AccessLogError};
use crate::observe::debug_log::DebugLog;
use crate::observe::decision_log::DecisionLog;
use crate::observe::ledger::Ledger;
use crate::observe::metrics::Metrics;
use crate::observe::otlp::SpanExporter;
use crate::observe::recent::RecentTraffic;
use crate::observe::usage::LiveUsage;
use crate::proxy::{Proxy, ProxyParts};
use crate::shared_state::SharedState;

/// The grace period that Pingora gets: one year, which is as good as no end.
const GRACE_PERIOD: Duration = Duration::from_secs(365 * 24 * 3600);
/// The time limit for a shutdown hook to flush its queue.
const MAX_FLUSH_TIME: Duration = Duration::from_secs(2);
/// The same limit for the ledger, whose file another process may hold locked.
const MAX_LEDGER_FLUSH_TIME: Duration = Duration::from_secs(5);

/// The reason why a server cannot start.
#[derive(Debug, thiserror::Error)]
pub enum ServerError {
    /// The server cannot listen on an address.
    #[error("cannot listen on {address}: {source}")]
    Listen { address: ListenAddress, source: std::io::Error },
    /// The metrics library refuses a histogram.
    #[error("cannot set up metrics: {0}")]
    Metrics(#[from] prometheus::Error),
    /// The access log cannot be opened.
    #[error("{0}")]
    AccessLog(#[from] AccessLogError),
    /// The thread of the span exporter cannot start.
    #[error("cannot start the span exporter: {0}")]
    Spans(std::io::Error),
    /// The thread of the token ledger cannot start.
    #[error("cannot start the token ledger: {0}")]
    Ledger(std::io::Error),
    /// The store of client keys cannot be used.
    #[error("auth.store: cannot use {}: {source}", path.display())]
    KeyStore { path: PathBuf, source: KeyStoreError },
    /// The thread of the shadow strategy cannot start.
    #[error("cannot start the shadow strategy: {0}")]
    Shadow(std::io::Error),
    /// The names of backends cannot be looked up.
    #[error("cannot look up the names of backends: {0}")]
    Lookup(#[source] std::io::Error),
    /// The system refuses a thread.
    #[error(
        "cannot start its threads: {0}; raise the limit of memory (`ulimit -v`) or of tasks, or lower \
         server.threads"
    )]
    Threads(#[source] std::io::Error),
    /// A certificate cannot be used.
    #[error("cannot set up TLS: {0}")]
    Tls(#[from] TlsError),
}

impl ServerError {
    /// The store of client keys at `path` cannot be used.
    pub(crate) fn key_store(path: &Path, source: KeyStoreError) -> Self {
        Self::KeyStore { path: path.to_owned(), source }
    }
}

/// Options of a server besides its configuration.
pub struct ServeOptions {
    /// Seed of all random numbers: picks, jitter, request ids.
    pub seed: u64,
    /// Source of the configuration, for reloads.
    pub source: Option<ConfigSource>,
    /// Applies log settings after a reload.
    pub apply_log: Option<ApplyLog>,
    /// The command that starts the new process of an upgrade.
    pub successor: Option<Successor>,
    /// Sockets inherited from the previous process.
    pub inherited: Option<InheritedSockets>,
    /// Run before the process exits, after everything is written.
    pub hooks: Vec<ShutdownHook>,
}

/// Runs the load balancer until it has shut down gracefully.
///
/// # Errors
/// [`ServerError`] when it cannot start.
pub fn serve(config: Config, mut options: ServeOptions) -> Result<(), ServerError> {
    install_signal_handlers();
    let addresses = listeners::addresses(&config);
    let names: Vec<String> = addresses.iter().map(ListenAddress::socket_name).collect();
    let inherited = options.inherited.as_mut().map(|one| one.claim(&names));
    for (address, own) in addresses.into_iter().zip(names) {
        let is_ours = |sockets: &Vec<Socket>| sockets.iter().any(|(name, _)| *name == own);
        // Checked first, because Pingora tries again for 30 s before it gives up.
        if !inherited.as_ref().is_some_and(is_ours) {
            let checked = try_listen(&address);
            checked.map_err(|source| ServerError::Listen { address, source })?;
        }
    }
    raise_limit(&config);
    check_threads(&config).map_err(ServerError::Threads)?;
    let parts = Parts::new(config, &mut options, Sockets::new(inherited))?;
    let mut server = Server::new_with_opt_and_conf(None, server_conf(parts.proxy.config()));
    server.bootstrap();
    let shutdown_trigger = ShutdownTrigger {
        proxy: Arc::clone(&parts.proxy),
        stop: Arc::clone(&parts.stop),
        notifier: Arc::clone(&parts.notifier),
        sockets: listeners::socket_files(parts.proxy.config()),
    };
    parts.add_to(&mut server, options);
    server.run(RunArgs { shutdown_signal: Box::new(shutdown_trigger) });
    Ok(())
}

/// Pingora's settings; all user settings come from our configuration.
fn server_conf(config: &Config) -> ServerConf {
    ServerConf {
        threads: config.server.threads,
        // Pingora would sleep for this time before it exits; `Supervisor` exits when the drain is
        // done.
        grace_period_seconds: Some(GRACE_PERIOD.as_secs()),
        graceful_shutdown_timeout_seconds: Some(1),
        ..ServerConf::default()
    }
}

struct Parts {
    proxy: Arc<Proxy>,
    prober: DiscoveryService,
    metrics: Arc<Metrics>,
    decisions: Arc<DecisionLog>,
    access_log: Option<Arc<AccessLog>>,
    spans: Option<Arc<SpanExporter>>,
    usage: Arc<LiveUsage>,
    recent: Arc<RecentTraffic>,
    shared: Option<Arc<SharedState>>,
    sockets: Arc<Sockets>,
    stop: Arc<Shutdown>,
    notifier: Arc<Notifier>,
}

impl Parts {
    fn new(
        config: Config,
        options: &mut ServeOptions,
        sockets: Arc<Sockets>,
    ) -> Result<Self, ServerError> {
        let seed = options.seed;
        let groups = look_up_at_start(&config).map_err(ServerError::Lookup)?;
        let generation = Generation::with_groups(config, groups);
        let generation = generation.with_shadow(None, SHADOW_HOST).map_err(ServerError::Shadow)?;
        let generation = Arc::new(generation);
        let metrics = Arc::new(Metrics::new(&generation)?);
        let decisions = Arc::new(DecisionLog::default());
        let access_log = AccessLog::start(&generation.config.access_log)?.map(Arc::new);
        let (ledger, budgets) = open_ledger(&generation)?;
        let mut observers = usual_observers(&metrics, &decisions, &ledger);
        let recent = Arc::new(RecentTraffic::default());
        recent.configure(generation.config.routing.reload_gate.as_ref());
        observers.push(Arc::<RecentTraffic>::clone(&recent));
        if let Some(log) = &access_log {
            observers.push(Arc::<AccessLog>::clone(log));
        }
        let spans = SpanExporter::start(&generation.config.tracing).map_err(ServerError::Spans)?;
        let spans = spans.map(Arc::new);
        if let Some(spans) = &spans {
            observers.push(Arc::<SpanExporter>::clone(spans));
        }
        let prober = DiscoveryService::new(&generation.fleet, &generation.config, seed);
        let shared = SharedState::new(&generation.config.shared_state, seed);
        let shared_budgets = share_budgets(shared.as_ref(), &budgets, &ledger);
        let stopping = Arc::default();
        let (own, counted) = (Arc::clone(&generation), Arc::clone(&ledger));
        let usage = Arc::new(LiveUsage::new(counted, own, Arc::clone(&stopping)));
        let parts = ProxyParts {
            observers,
            shared: shared.clone(),
            budgets,
            shared_budgets: shared_budgets.clone(),
            key_store: open_key_store(&generation.config)?,
            usage: Some(Box::new(Arc::clone(&usage))),
            stopping,
            seed,
        };
        let proxy = Arc::new(Proxy::new(Arc::clone(&generation), parts)?);
        restore_days(&generation.config, &proxy);
        let mut hooks = shutdown_hooks(access_log.as_ref(), spans.as_ref(), &ledger);
        hooks.extend(shared_budgets.map(report_budgets));
        hooks.append(&mut options.hooks);
        Ok(Self {
            proxy,
            prober,
            metrics,
            decisions,
            access_log,
            spans,
            usage,
            recent,
            shared,
            sockets,
            stop: Arc::new(Shutdown::new(hooks)),
            notifier: Arc::new(Notifier::of_process()),
        })
    }

    fn add_to(self, server: &mut Server, options: ServeOptions) {
        let (commands, receiver) = CommandSender::channel();
        let data = self.data_service(&server.configuration);
        let runtime = data.runtime();
        server.add_service(data);
        if let Some(address) = self.proxy.config().admin.listen {
            let admin = Admin {
                proxy: Arc::clone(&self.proxy),
                metrics: Arc::clone(&self.metrics),
                decisions: Arc::clone(&self.decisions),
                access_log: self.access_log.clone(),
                spans: self.spans.clone(),
                usage: Arc::clone(&self.usage),
                waiting: self.prober.waiting(),
                scraping: self.prober.scraper().budget(),
                stopping: self.proxy.stopping(),
                commands,
            };
            let mut service = Service::new("penstock admin".to_owned(), admin.into_app());
            service.threads = Some(1);
            service.add_tcp(&address.to_string());
            // Stays open during the drain, so that it can be observed.
            let until = StopAccepting::AfterUpgrade;
            server.add_service(ListenerService::new(service, &self.sockets, &self.stop, until));
        }
        server.add_service(background_service("penstock checks", self.prober.clone()));
        // One thread: its CPU clock measures the cost of all scrapes.
        server.add_service(background_service("penstock telemetry", self.prober.scraper()));
        if let Some(shared) = self.shared {
            let service = SharedStateService(shared, Arc::clone(&self.proxy));
            server.add_service(background_service("penstock shared state", service));
        }
        server.add_service(background_service("penstock logs", LogReopener(self.access_log)));
        let waiting = self.prober.waiting();
        let control_loop = ControlLoop {
            receiver,
            reloader: Reloader {
                source: options.source,
                apply_log: options.apply_log,
                proxy: Arc::clone(&self.proxy),
                prober: self.prober,
                metrics: self.metrics,
                usage: self.usage,
                recent: self.recent,
                reading: Arc::new(Semaphore::new(1)),
            },
            successor: options.successor,
            sockets: Arc::clone(&self.sockets),
            stop: Arc::clone(&self.stop),
            notifier: Arc::clone(&self.notifier),
        };
        let supervisor = Supervisor {
            proxy: self.proxy,
            runtime,
            waiting,
            sockets: self.sockets,
            notifier: self.notifier,
            stop: self.stop,
            inherited: Mutex::new(options.inherited),
            control_loop: Mutex::new(Some(control_loop)),
            strategies: Mutex::default(),
        };
        // Each service has a separate runtime, so a stuck data plane does not stop the supervisor.
        server.add_service(background_service("penstock supervisor", supervisor));
    }

    fn data_service(
        &self,
        conf: &Arc<ServerConf>,
    ) -> ListenerService<Service<impl ServerApp + Send + Sync + 'static>> {
        let config = self.proxy.config();
        let app = DataPlane(Arc::clone(&self.proxy)).into_app(conf);
        let mut data = Service::new("penstock data".to_owned(), app);
        data.threads = Some(config.server.threads);
        for listener in listeners::listeners(config) {
            data.add_listener(listener);
        }
        ListenerService::new(data, &self.sockets, &self.stop, StopAccepting::OnShutdown)
    }
}

/// The observers that every process has.
fn usual_observers(
    metrics: &Arc<Metrics>,
    decisions: &Arc<DecisionLog>,
    ledger: &Arc<Ledger>,
) -> Vec<Arc<dyn RequestObserver>> {
    vec![
        Arc::new(PrefixObserver),
        Arc::new(ShadowObserver),
        Arc::<Metrics>::clone(metrics),
        Arc::<DecisionLog>::clone(decisions),
        Arc::<Ledger>::clone(ledger),
        Arc::new(DebugLog),
    ]
}

/// Hooks that write the counts of the ledger and the queues of log lines and spans before the
/// process exits.
fn shutdown_hooks(
    log: Option<&Arc<AccessLog>>,
    spans: Option<&Arc<SpanExporter>>,
    ledger: &Arc<Ledger>,
) -> Vec<ShutdownHook> {
    let ledger = Arc::clone(ledger);
    let mut all: Vec<ShutdownHook> = vec![Box::new(move || {
        let is_written = ledger.flush(MAX_LEDGER_FLUSH_TIME);
        tracing::debug!(is_written, "token ledger closed");
    })];
    if let Some(log) = log.cloned() {
        all.push(Box::new(move || log.flush(MAX_FLUSH_TIME)));
    }
    if let Some(spans) = spans.cloned() {
        all.push(Box::new(move || spans.flush(MAX_FLUSH_TIME)));
    }
    all
}

/// Runs until the process exits: requests that end during the drain are reported, too.
struct SharedStateService(Arc<SharedState>, Arc<Proxy>);

#[async_trait]
impl BackgroundService for SharedStateService {
    async fn start(&self, _shutdown: ShutdownWatch) {
        let (shared, proxy) = (&self.0, &self.1);
        let load = Arc::clone(shared).share_load(|| proxy.generation(), || proxy.is_stopping());
        let budgets = async {
            if let Some(budgets) = proxy.shared_budgets.clone() {
                budgets.run().await;
            }
        };
        let keys = async {
            if let Some(store) = proxy.keys.store() {
                Arc::clone(store).share(Arc::clone(shared)).await;
            }
        };
        tokio::join!(Arc::clone(shared).run(), load, budgets, keys);
    }
}

/// Reopens the access log on SIGUSR1, for log rotation. Handles the signal even without a log,
/// because its default action would kill the process.
struct LogReopener(Option<Arc<AccessLog>>);

#[async_trait]
impl BackgroundService for LogReopener {
    async fn start(&self, mut shutdown: ShutdownWatch) {
        let mut rotated = match signal(SignalKind::user_defined1()) {
            Ok(rotated) => rotated,
            Err(error) => return tracing::error!(%error, "cannot install the SIGUSR1 handler"),
        };
        loop {
            tokio::select! {
                _ = rotated.recv() => if let Some(log) = &self.0 { log.reopen() },
                _ = shutdown.changed() => return,
            }
        }
    }
}
