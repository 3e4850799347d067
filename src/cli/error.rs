//! Errors of commands, and their exit codes.

use std::io;
use std::path::PathBuf;

use penstock_config::{ConfigError, UrlError};
use penstock_core::fleet::dump::FleetError;
use penstock_core::routing::CaptureError;

use super::client::ClientError;
use crate::server::ServerError;

pub(super) const OK: u8 = 0;
pub(super) const FAILED: u8 = 1;
/// Invalid arguments, or an invalid file that they name.
pub(super) const USAGE: u8 = 2;

/// The reason why a command failed.
#[derive(Debug, thiserror::Error)]
pub(super) enum CliError {
    #[error(
        "no configuration: pass --config FILE, set PENSTOCK_CONFIG or create \
         /etc/penstock/penstock.yaml (`penstock demo` needs none)"
    )]
    NoConfig,
    #[error("invalid configuration\n{0}")]
    Config(#[from] ConfigError),
    #[error(
        "nothing to explain: pass a request (REQUEST.json, or - for standard input), --requests \
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
    #[error("{changed} of {all} decisions differ")]
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
    #[error(
        "the response is not one of a penstock's admin port, or of another version: check the \
         address. It begins: {body}"
    )]
    AdminResponse { source: serde_json::Error, body: String },
    #[error("the admin port returned {status}: {message}")]
    AdminRefused { status: u16, message: String },
    #[error("{0}")]
    Server(#[from] ServerError),
    #[error(
        "--take-over: standard input is not an upgrade socket ({0}); start a graceful upgrade with \
         POST /upgrade on the admin port"
    )]
    NothingToTakeOver(io::Error),
    #[error("{place}: unknown '{given}' (known: {known})")]
    UnknownPolicy { place: String, given: String, known: String },
    #[error("{place}: {reason}")]
    Scorers { place: String, reason: String },
    #[error("{place}: {reason}")]
    PolicyFile { place: String, reason: String },
    #[error("standard input: {0}")]
    Input(io::Error),
    #[error("cannot set up logging: {0}")]
    Logging(#[from] tracing_subscriber::util::TryInitError),
    /// An error of one command, declared in its own file.
    #[error("{error}")]
    Command {
        /// The exit code: [`FAILED`] or [`USAGE`].
        code: u8,
        error: Box<dyn std::error::Error + Send + Sync>,
    },
    #[error("cannot write to standard output: {0}")]
    Output(io::Error),
}

impl CliError {
    /// A failure of one command.
    pub(super) fn failure(error: impl std::error::Error + Send + Sync + 'static) -> Self {
        Self::Command { code: FAILED, error: Box::new(error) }
    }

    /// The exit code of the process.
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
            Self::Command { code, .. } => *code,
            Self::Client(_)
            | Self::AdminResponse { .. }
            | Self::AdminRefused { .. }
            | Self::Server(_)
            | Self::Logging(_)
            | Self::NotIdentical { .. }
            | Self::Input(_)
            | Self::Output(_) => FAILED,
        }
    }

    /// Returns whether the reader of standard output closed it.
    pub(super) fn is_broken_pipe(&self) -> bool {
        matches!(self, Self::Output(source) if source.kind() == io::ErrorKind::BrokenPipe)
    }
}
