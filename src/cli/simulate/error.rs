//! The errors of a simulation.

use std::io;
use std::path::PathBuf;

use penstock_config::ConfigError;
use penstock_sim::engine::SpecError;
use penstock_sim::experiment::UnservedModel;
use penstock_sim::run::RunError;
use penstock_sim::workload::{TraceError, WorkloadError};
use penstock_sim::world::WorldError;

use crate::cli::engines::UnusableEngine;
use crate::cli::error::{CliError, FAILED, USAGE};

#[derive(Debug, thiserror::Error)]
pub(super) enum SimulateError {
    #[error("pass a workload: a file, a trace, or one of {known} (described by --list)")]
    NoWorkload { known: String },
    #[error("there is no file and no preset '{given}' (presets: {known}; described by --list)")]
    UnknownWorkload { given: String, known: String },
    #[error("cannot read {}: {source}", path.display())]
    Unreadable { path: PathBuf, source: io::Error },
    #[error("{}: {source}", path.display())]
    Workload { path: PathBuf, source: WorkloadError },
    #[error("{}: {source}", path.display())]
    Trace { path: PathBuf, source: TraceError },
    #[error("invalid configuration\n{0}")]
    Config(#[from] ConfigError),
    #[error("{0}")]
    Engine(#[from] UnusableEngine),
    #[error("--engine: no backend '{given}' (backends: {known})")]
    UnknownBackend { given: String, known: String },
    #[error("{0}")]
    Spec(#[from] SpecError),
    #[error("{0}")]
    World(#[from] WorldError),
    #[error("{0}")]
    Model(#[from] UnservedModel),
    #[error("{flag}: {reason}")]
    Flag { flag: &'static str, reason: String },
    #[error(
        "the configurations have {first} and {other} backends; compare fleets of the same size, or pass --backends"
    )]
    Backends { first: usize, other: usize },
    #[error("there is no such configuration")]
    NoVariant,
    #[error("cannot write {}: {source}", path.display())]
    Unwritable { path: PathBuf, source: io::Error },
    #[error("{}: no backend has enough streams to learn from: {source}", path.display())]
    TooFew { path: PathBuf, source: RunError },
    #[error(
        "the simulation's {figure} is {error:.0} % off from that of the log, and 25 % is the most: no advice"
    )]
    Uncalibrated { figure: &'static str, error: f64 },
    #[error("a thread of the simulation ended early")]
    Thread,
    #[error("{0} of the assertions failed")]
    Assertions(String),
}

impl From<SimulateError> for CliError {
    fn from(error: SimulateError) -> Self {
        let code = match &error {
            SimulateError::Assertions(_)
            | SimulateError::Thread
            | SimulateError::Uncalibrated { .. }
            | SimulateError::Unwritable { .. } => FAILED,
            SimulateError::NoWorkload { .. }
            | SimulateError::UnknownWorkload { .. }
            | SimulateError::Unreadable { .. }
            | SimulateError::Workload { .. }
            | SimulateError::Trace { .. }
            | SimulateError::Config(_)
            | SimulateError::Engine(_)
            | SimulateError::UnknownBackend { .. }
            | SimulateError::Spec(_)
            | SimulateError::World(_)
            | SimulateError::Model(_)
            | SimulateError::Flag { .. }
            | SimulateError::Backends { .. }
            | SimulateError::TooFew { .. }
            | SimulateError::NoVariant => USAGE,
        };
        Self::Command { code, error: Box::new(error) }
    }
}
