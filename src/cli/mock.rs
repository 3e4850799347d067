//! `penstock mock`: a mock engine at an address, to try a configuration without an engine.

use std::net::{SocketAddr, TcpListener};
use std::time::Duration;

use clap::Args;
use clap::builder::NonEmptyStringValueParser;
use penstock_mock::{EngineModel, Flavour, MockEngine, MockSpec, Pace};
use tokio::runtime::Builder;
use tokio::signal::unix::{SignalKind, signal};

use super::error::CliError;
use super::output::Output;

const AFTER_HELP: &str = "\
Looks like a vLLM server and responds with invented text: its name, the model, and words. It reports
tokens, so that limits, budgets and the ledger count, and its requests in progress at /metrics.
Each model can do everything that a request may need. Press Ctrl-C to stop.

Examples:
  penstock mock --listen 127.0.0.1:8001 --name gpu --models small,large
  penstock mock --listen 127.0.0.1:8002 --name hosted --models large --tokens 200

Exit codes: 0 stopped, 1 the address cannot be listened on.";

const FIRST_TOKEN: Duration = Duration::from_millis(20);
const PER_TOKEN: Duration = Duration::from_millis(2);

#[derive(Debug, Args)]
#[command(after_help = AFTER_HELP)]
pub(super) struct MockArgs {
    /// The address to listen on
    #[arg(long, value_name = "ADDRESS", default_value = "127.0.0.1:8000")]
    listen: SocketAddr,

    /// The name of the engine, which is part of every response
    #[arg(long, default_value = "mock")]
    name: String,

    /// The models it serves, separated by commas
    #[arg(long, value_delimiter = ',', required = true, value_parser = NonEmptyStringValueParser::new())]
    models: Vec<String>,

    /// The length of a response, unless the request sets a lower limit
    #[arg(long, value_name = "N", default_value_t = 40)]
    tokens: u32,
}

/// The reason why the engine does not run.
#[derive(Debug, thiserror::Error)]
enum MockError {
    #[error("cannot listen on {address}: {source}")]
    Listen { address: SocketAddr, source: std::io::Error },
    #[error("cannot run: {0}")]
    Run(std::io::Error),
}

fn cannot_run(source: std::io::Error) -> CliError {
    CliError::failure(MockError::Run(source))
}

pub(super) fn run(args: &MockArgs, output: &mut Output) -> Result<(), CliError> {
    let runtime =
        Builder::new_multi_thread().worker_threads(1).enable_all().build().map_err(cannot_run)?;
    let address = args.listen;
    let cannot_listen = |source| CliError::failure(MockError::Listen { address, source });
    // Mock engines share a port with whatever listens there in the same way; a user must not.
    TcpListener::bind(address).map(drop).map_err(cannot_listen)?;
    runtime.block_on(async {
        let mut interrupted = signal(SignalKind::interrupt()).map_err(cannot_run)?;
        let mut terminated = signal(SignalKind::terminate()).map_err(cannot_run)?;
        let engine = MockEngine::start(args.spec(), address).await.map_err(cannot_listen)?;
        let (name, url, models) = (&args.name, engine.url(), args.models.join(", "));
        output.line(format!("{name} listens on {url} with {models}"))?;
        tokio::select! {
            _ = interrupted.recv() => {}
            _ = terminated.recv() => {}
        }
        Ok(())
    })
}

impl MockArgs {
    fn spec(&self) -> MockSpec {
        let pace =
            Pace { first_token: FIRST_TOKEN, per_token: PER_TOKEN, tokens: self.tokens.max(1) };
        let models = self.models.iter().map(|id| EngineModel::new(id));
        let spec = MockSpec::new(&self.name, models);
        MockSpec { flavour: Flavour::Vllm, pace, reports_load: true, keep_bodies: false, ..spec }
    }
}
