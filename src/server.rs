//! The composition root: the only file that sees everything. Builds the data plane, the checks, the
//! admin port and the signals, and runs them as services of one Pingora server.

use std::net::{SocketAddr, TcpListener};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use async_trait::async_trait;
use pingora::listeners::{L4BufferSettings, ListenerConfig};
use pingora::server::configuration::ServerConf;
use pingora::server::{RunArgs, Server, ShutdownSignal, ShutdownSignalWatch, ShutdownWatch};
use pingora::services::background::{BackgroundService, background_service};
use pingora::services::listening::Service;
use tokio::signal::unix::{Signal, SignalKind, signal};

use crate::access_log::{AccessLog, AccessLogError};
use crate::admin::Admin;
use crate::config::Config;
use crate::decisions::DecisionLog;
use crate::generation::Generation;
use crate::metrics::Metrics;
use crate::probe::Prober;
use crate::proxy::{DataPlane, Proxy};
use crate::routing::RequestObserver;
use crate::spans::SpanExporter;

/// Answers up to this size leave in one write together with their head.
const WRITE_BUFFER: usize = 2048;
const SWEEP_EVERY: Duration = Duration::from_secs(1);
/// How often a stopping server looks whether it is idle.
const IDLE_CHECK: Duration = Duration::from_millis(20);
/// How long a stop waits for the last lines of logs.
const FLUSH_LIMIT: Duration = Duration::from_secs(2);

/// Why a server cannot start.
#[derive(Debug, thiserror::Error)]
pub enum ServerError {
    /// An address cannot be listened on.
    #[error("cannot listen on {address}: {source}")]
    Listen {
        /// The address.
        address: SocketAddr,
        /// What the system says.
        source: std::io::Error,
    },
    /// The metrics cannot be set up.
    #[error("the metrics cannot be set up: {0}")]
    Metrics(#[from] prometheus::Error),
    /// The access log cannot be written.
    #[error("{0}")]
    AccessLog(#[from] AccessLogError),
    /// There is no thread for the export of spans.
    #[error("the export of spans cannot start: {0}")]
    Spans(std::io::Error),
}

/// What a server is told besides its configuration.
#[derive(Debug, Clone, Copy)]
pub struct ServeOptions {
    /// Starts everything random: picks, jitter, request ids.
    pub seed: u64,
}

/// Runs a penstock until it is told to stop and is done with what is in flight.
///
/// # Errors
/// [`ServerError`] when it cannot start.
pub fn serve(config: Config, options: ServeOptions) -> Result<(), ServerError> {
    let addresses = config.server.listen.iter().chain(&config.admin.listen);
    for address in addresses {
        // Asked for ahead, because Pingora ends the process when it cannot listen.
        let free = TcpListener::bind(address);
        free.map_err(|source| ServerError::Listen { address: *address, source })?;
    }
    let parts = Parts::new(config, options)?;
    let mut server = Server::new_with_opt_and_conf(None, server_conf(parts.config()));
    server.bootstrap();
    parts.add_to(&mut server);
    server.run(RunArgs { shutdown_signal: Box::new(StopSignal(parts.stopping)) });
    Ok(())
}

/// Pingora's own settings; whatever users can set comes from our configuration.
fn server_conf(config: &Config) -> ServerConf {
    ServerConf {
        threads: config.server.threads,
        // Pingora sleeps this long before it ends; `Stopper` ends the process as soon as it can.
        grace_period_seconds: Some(config.server.drain_timeout.as_secs().max(1)),
        graceful_shutdown_timeout_seconds: Some(1),
        ..ServerConf::default()
    }
}

struct Parts {
    proxy: Arc<Proxy>,
    prober: Prober,
    metrics: Arc<Metrics>,
    decisions: Arc<DecisionLog>,
    access_log: Option<Arc<AccessLog>>,
    spans: Option<Arc<SpanExporter>>,
    stopping: Arc<AtomicBool>,
}

impl Parts {
    fn new(config: Config, options: ServeOptions) -> Result<Self, ServerError> {
        let generation = Arc::new(Generation::new(config));
        let metrics = Arc::new(Metrics::new(&generation)?);
        let decisions = Arc::new(DecisionLog::default());
        let access_log = AccessLog::start(&generation.config.access_log)?.map(Arc::new);
        let mut observers: Vec<Box<dyn RequestObserver>> =
            vec![Box::new(Arc::clone(&metrics)), Box::new(Arc::clone(&decisions))];
        if let Some(log) = &access_log {
            observers.push(Box::new(Arc::clone(log)));
        }
        let spans = SpanExporter::start(&generation.config.tracing).map_err(ServerError::Spans)?;
        let spans = spans.map(Arc::new);
        if let Some(spans) = &spans {
            observers.push(Box::new(Arc::clone(spans)));
        }
        let registry = Arc::clone(&generation.registry);
        let prober = Prober::new(registry, &generation.config, options.seed);
        let proxy = Arc::new(Proxy::new(generation, observers, options.seed));
        let stopping = Arc::default();
        Ok(Self { proxy, prober, metrics, decisions, access_log, spans, stopping })
    }

    fn config(&self) -> &Config {
        self.proxy.config()
    }

    fn add_to(&self, server: &mut Server) {
        let config = self.config();
        let plane = DataPlane(Arc::clone(&self.proxy));
        let app = plane.into_app(&server.configuration);
        let mut data = Service::new("penstock data".to_owned(), app);
        data.threads = Some(config.server.threads);
        for address in &config.server.listen {
            let buffers = L4BufferSettings::new(0, WRITE_BUFFER);
            data.add_listener(ListenerConfig::tcp(address.to_string()).l4_buffer(buffers));
        }
        server.add_service(data);
        if let Some(address) = config.admin.listen {
            let admin = Admin {
                proxy: Arc::clone(&self.proxy),
                metrics: Arc::clone(&self.metrics),
                decisions: Arc::clone(&self.decisions),
                access_log: self.access_log.clone(),
                spans: self.spans.clone(),
                waiting: self.prober.waiting(),
                stopping: Arc::clone(&self.stopping),
            };
            let mut service = Service::new("penstock admin".to_owned(), admin.into_app());
            service.threads = Some(1);
            service.add_tcp(&address.to_string());
            server.add_service(service);
        }
        server.add_service(background_service("penstock checks", self.prober.clone()));
        let (proxy, access_log) = (Arc::clone(&self.proxy), self.access_log.clone());
        let reopener = LogReopener(access_log.clone());
        server.add_service(background_service("penstock logs", reopener));
        let upkeep = Upkeep { proxy, access_log, spans: self.spans.clone() };
        server.add_service(background_service("penstock upkeep", upkeep));
    }
}

/// Periodic work on the data plane, and the end of the process once it is drained.
struct Upkeep {
    proxy: Arc<Proxy>,
    access_log: Option<Arc<AccessLog>>,
    spans: Option<Arc<SpanExporter>>,
}

#[async_trait]
impl BackgroundService for Upkeep {
    async fn start(&self, mut shutdown: ShutdownWatch) {
        let mut sweep = tokio::time::interval(SWEEP_EVERY);
        while !*shutdown.borrow_and_update() {
            tokio::select! {
                _ = sweep.tick() => self.proxy.sweep(),
                changed = shutdown.changed() => {
                    if changed.is_err() {
                        return;
                    }
                }
            }
        }
        self.end_when_idle().await;
    }
}

impl Upkeep {
    async fn end_when_idle(&self) {
        // Listened for before it is said, so that whoever reads it may send one.
        let mut again = second_signal();
        let limit = self.proxy.config().server.drain_timeout;
        let in_flight = self.proxy.in_flight();
        tracing::info!(in_flight, ?limit, "stopping: finishing what is in flight");
        let drained = async {
            // The last bytes of the last answers leave before the process does.
            let mut idle_checks = 0;
            while idle_checks < 3 {
                tokio::time::sleep(IDLE_CHECK).await;
                idle_checks = if self.proxy.in_flight() == 0 { idle_checks + 1 } else { 0 };
            }
        };
        let forced = async {
            match again.as_mut() {
                Some(signal) => drop(signal.recv().await),
                None => std::future::pending().await,
            }
        };
        tokio::select! {
            () = drained => tracing::info!("stopped"),
            () = forced => tracing::warn!(in_flight = self.proxy.in_flight(), "stopped by a second signal"),
            () = tokio::time::sleep(limit) => {
                let in_flight = self.proxy.in_flight();
                tracing::warn!(in_flight, "stopped: the drain timeout has passed");
            }
        }
        if let Some(log) = &self.access_log {
            log.flush(FLUSH_LIMIT);
        }
        if let Some(spans) = &self.spans {
            spans.flush(FLUSH_LIMIT);
        }
        std::process::exit(0);
    }
}

/// SIGUSR1: opens the access log anew. Without a log it is heard and does nothing, because what it
/// does by itself is to end the process.
struct LogReopener(Option<Arc<AccessLog>>);

#[async_trait]
impl BackgroundService for LogReopener {
    async fn start(&self, mut shutdown: ShutdownWatch) {
        let mut moved = match signal(SignalKind::user_defined1()) {
            Ok(moved) => moved,
            Err(error) => return tracing::error!(%error, "SIGUSR1 cannot be watched"),
        };
        loop {
            tokio::select! {
                _ = moved.recv() => if let Some(log) = &self.0 { log.reopen() },
                _ = shutdown.changed() => return,
            }
        }
    }
}

fn second_signal() -> Option<Signal> {
    signal(SignalKind::interrupt()).ok()
}

/// SIGTERM and SIGINT: stop accepting, finish what is in flight.
struct StopSignal(Arc<AtomicBool>);

#[async_trait]
impl ShutdownSignalWatch for StopSignal {
    async fn recv(&self) -> ShutdownSignal {
        let signals = (signal(SignalKind::terminate()), signal(SignalKind::interrupt()));
        match signals {
            (Ok(mut terminate), Ok(mut interrupt)) => {
                tokio::select! {
                    _ = terminate.recv() => {}
                    _ = interrupt.recv() => {}
                }
            }
            (Err(error), _) | (_, Err(error)) => {
                tracing::error!(%error, "signals cannot be watched: end the process with SIGKILL");
                std::future::pending::<()>().await;
            }
        }
        self.0.store(true, Ordering::Release);
        ShutdownSignal::GracefulTerminate
    }
}
