//! `penstock serve`: runs the load balancer.

use clap::Args;
use rand::rngs::SmallRng;
use rand::{Rng, SeedableRng};

use super::error::CliError;
use super::logging;
use super::source::ConfigArgs;
use crate::config::Listener;
use crate::lifecycle::server::{self, ServeOptions};
use crate::lifecycle::{InheritedSockets, Successor};

const AFTER_HELP: &str = "\
SIGTERM and SIGINT stop it: readiness fails, and after server.shutdown_delay it stops accepting,
finishes what is in flight and exits, at the latest after server.drain_timeout. A second one of them
ends it at once.

SIGHUP loads the configuration again: requests under way keep theirs, a faulty file is refused and
the configuration in force goes on. POST /reload on the admin port does the same and answers with
what changed, and with the settings that need a restart. POST /upgrade starts the program anew,
lets it take over the listening sockets, and ends this one once its last request is done.

Exit codes: 0 stopped, 1 it could not start (a port is taken), 2 the configuration is wrong.";

#[derive(Debug, Args)]
#[command(after_help = AFTER_HELP)]
pub(super) struct ServeArgs {
    #[command(flatten)]
    config: ConfigArgs,

    /// Take the listening sockets from the penstock that starts this one (`POST /upgrade` does so)
    #[arg(long)]
    take_over: bool,
}

pub(super) fn run(args: &ServeArgs) -> Result<(), CliError> {
    if !args.take_over {
        return start(args, None);
    }
    let inherited = InheritedSockets::take().map_err(CliError::NothingToTakeOver)?;
    let line = inherited.channel().map_err(CliError::NothingToTakeOver)?;
    let started = start(args, Some(inherited));
    if let Err(error) = &started {
        line.report_failure(&error.to_string());
    }
    started
}

fn start(args: &ServeArgs, inherited: Option<InheritedSockets>) -> Result<(), CliError> {
    let source = args.config.source()?;
    let config = source.load()?;
    let apply_log = logging::start(&config.log)?;
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
    };
    Ok(server::serve(config, options)?)
}
