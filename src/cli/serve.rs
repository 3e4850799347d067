//! `penstock serve`: runs the load balancer.

use clap::Args;
use rand::rngs::SmallRng;
use rand::{Rng, SeedableRng};

use super::error::CliError;
use super::logging;
use super::source::ConfigArgs;
use crate::server::{self, ServeOptions};

const AFTER_HELP: &str = "\
SIGTERM and SIGINT stop it: it stops accepting, finishes what is in flight and exits, at the latest
after server.drain_timeout. A second SIGINT ends it at once.

Exit codes: 0 stopped, 1 it could not start (a port is taken), 2 the configuration is wrong.";

#[derive(Debug, Args)]
#[command(after_help = AFTER_HELP)]
pub(super) struct ServeArgs {
    #[command(flatten)]
    config: ConfigArgs,
}

pub(super) fn run(args: &ServeArgs) -> Result<(), CliError> {
    let config = args.config.load()?;
    logging::start(&config.log)?;
    for warning in &config.warnings {
        tracing::warn!("{warning}");
    }
    let (listen, backends) = (&config.server.listen, config.backends.len());
    tracing::info!(version = env!("CARGO_PKG_VERSION"), ?listen, backends, "starting");
    let seed = SmallRng::from_os_rng().random();
    Ok(server::serve(config, ServeOptions { seed })?)
}
