//! Why a command ends early, and the exit code that tells so.

use std::io;
use std::path::PathBuf;

use super::client::ClientError;
use crate::config::{ConfigError, UrlError};
use crate::fleet::dump::FleetError;
use crate::lifecycle::server::ServerError;
use crate::routing::CaptureError;

/// All went well.
pub(super) const OK: u8 = 0;
/// It failed.
pub(super) const FAILED: u8 = 1;
/// The arguments or a file they name are wrong.
pub(super) const USAGE: u8 = 2;

/// Why a command could not do what it was asked to.
#[derive(Debug, thiserror::Error)]
pub(super) enum CliError {
    #[error(
        "no configuration: give --config FILE, set PENSTOCK_CONFIG or write \
         /etc/penstock/penstock.yaml (`penstock demo` needs none)"
    )]
    NoConfig,
    #[error("the configuration is refused\n{0}")]
    Config(#[from] ConfigError),
    #[error(
        "nothing to explain: give a request (REQUEST.json, or - for standard input), --requests \
         FILE.jsonl or --decision FILE; see `penstock explain --help`"
    )]
    NothingToExplain,
    #[error("cannot read {}: {source}", path.display())]
    Unreadable { path: PathBuf, source: io::Error },
    #[error("{} is not JSON: {source}", path.display())]
    NotJson { path: PathBuf, source: serde_json::Error },
    #[error("{}: {source}", path.display())]
    Fleet { path: PathBuf, source: FleetError },
    #[error("{}: {source}", path.display())]
    Capture { path: PathBuf, source: CaptureError },
    #[error("{changed} of {all} decisions came out differently")]
    NotIdentical { changed: usize, all: usize },
    #[error("'{given}' is not a header: write 'name: value'")]
    Header { given: String },
    #[error("--admin: {0}")]
    AdminUrl(#[from] UrlError),
    #[error(
        "--config cannot be used with --admin: the running instance uses its own configuration"
    )]
    ConfigForAdmin,
    #[error("admin port: {0}")]
    Client(#[from] ClientError),
    #[error("the admin port returned {status}: {message}")]
    AdminRefused { status: u16, message: String },
    #[error("{0}")]
    Server(#[from] ServerError),
    #[error(
        "--take-over: no penstock hands its sockets over on standard input ({0}); \
         ask the running one: POST /upgrade on its admin port"
    )]
    NothingToTakeOver(io::Error),
    #[error("{place}: unknown '{given}'; there is {known}")]
    UnknownPolicy { place: String, given: String, known: String },
    #[error("{place}: {reason}")]
    Scorers { place: String, reason: String },
    #[error("{place}: {reason}")]
    PolicyFile { place: String, reason: String },
    #[error("standard input: {0}")]
    Input(io::Error),
    #[error("logging cannot be set up: {0}")]
    Logging(#[from] tracing_subscriber::util::TryInitError),
    #[error("the stand-in engines cannot be started: {0}")]
    Engines(io::Error),
    #[error("the demo was not ready within {0} s")]
    DemoNotReady(u64),
    #[error("the backends cannot be examined: {0}")]
    Runtime(io::Error),
    #[error("{failing} of the findings above fail")]
    Ill { failing: usize },
    #[error("cannot write to standard output: {0}")]
    Output(io::Error),
}

impl CliError {
    /// The code the process ends with.
    pub(super) fn exit_code(&self) -> u8 {
        match self {
            Self::NoConfig
            | Self::NothingToExplain
            | Self::Config(_)
            | Self::Unreadable { .. }
            | Self::NotJson { .. }
            | Self::Fleet { .. }
            | Self::Capture { .. }
            | Self::Header { .. }
            | Self::NothingToTakeOver(_)
            | Self::AdminUrl(_)
            | Self::ConfigForAdmin
            | Self::UnknownPolicy { .. }
            | Self::Scorers { .. }
            | Self::PolicyFile { .. } => USAGE,
            Self::Client(_)
            | Self::AdminRefused { .. }
            | Self::Server(_)
            | Self::Logging(_)
            | Self::Engines(_)
            | Self::DemoNotReady(_)
            | Self::Runtime(_)
            | Self::Ill { .. }
            | Self::NotIdentical { .. }
            | Self::Input(_)
            | Self::Output(_) => FAILED,
        }
    }

    /// Whether nobody reads our output any more.
    pub(super) fn is_broken_pipe(&self) -> bool {
        matches!(self, Self::Output(source) if source.kind() == io::ErrorKind::BrokenPipe)
    }
}
