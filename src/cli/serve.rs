//! `penstock serve`: runs the load balancer.

use clap::Args;
use penstock_config::Listener;
use rand::rngs::SmallRng;
use rand::{Rng, SeedableRng};

use super::error::CliError;
use super::logging;
use super::output::Output;
use super::source::ConfigArgs;
use crate::lifecycle::{InheritedSockets, Successor};
use crate::server::{self, ServeOptions};

const AFTER_HELP: &str = "\
SIGTERM and SIGINT shut down gracefully: readiness fails, the listeners close after
server.shutdown_delay, requests in flight finish, and the process exits, at the latest after
server.drain_timeout. A second signal exits at once.

SIGHUP reloads the configuration: requests in flight keep theirs, and an invalid file is refused.
POST /reload on the admin port does the same and returns the changes and the settings that need a
restart. POST /upgrade is a graceful upgrade: a new process takes over the listening sockets, and
this one exits after its last request. SIGUSR1 reopens the access log.

Exit codes: 0 stopped, 1 the start failed (e.g. a port is in use), 2 the configuration is invalid.";

#[derive(Debug, Args)]
#[command(after_help = AFTER_HELP)]
pub(super) struct ServeArgs {
    #[command(flatten)]
    config: ConfigArgs,

    /// Inherit the listening sockets of the process that starts this one (used by `POST /upgrade`)
    #[arg(long)]
    take_over: bool,
}

pub(super) fn run(args: &ServeArgs, _output: &mut Output) -> Result<(), CliError> {
    if !args.take_over {
        return start(args, None);
    }
    let inherited = InheritedSockets::take().map_err(CliError::NothingToTakeOver)?;
    let line = inherited.channel().map_err(CliError::NothingToTakeOver)?;
    let started = start(args, Some(inherited));
    if let Err(error) = &started {
        // The old process waits for this one, and goes on serving once it knows.
        line.report_failure(&error.to_string());
    }
    started
}

fn start(args: &ServeArgs, inherited: Option<InheritedSockets>) -> Result<(), CliError> {
    let source = args.config.source()?;
    let config = source.load()?;
    config.check_folders()?;
    let apply_log = logging::start(&config.log)?;
    // Not before logging has started: a service has no other place for them.
    for warning in &config.warnings {
        tracing::warn!("{warning}");
    }
    let listen: Vec<String> = config.server.listen.iter().map(Listener::describe).collect();
    let (listen, backends) = (listen.join(", "), config.backends.len());
    tracing::info!(version = env!("CARGO_PKG_VERSION"), listen, backends, "starting");
    let options = ServeOptions {
        seed: SmallRng::from_os_rng().random(),
        source: Some(source),
        apply_log: Some(apply_log),
        successor: Successor::of_process(),
        inherited,
        hooks: Vec::new(),
    };
    Ok(server::serve(config, options)?)
}
