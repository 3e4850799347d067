//! The hidden command that a graceful upgrade runs to start the new process. Internal, so that no
//! help, manual or completion lists it.

use std::ffi::OsString;

use super::error::{CliError, USAGE};
use super::output::Output;
use crate::lifecycle::detached_launcher;

/// Runs the launcher if the arguments name it; returns the exit code of the new process.
pub(super) fn run(mut arguments: impl Iterator<Item = OsString>) -> Option<u8> {
    if arguments.next()? != detached_launcher::COMMAND {
        return None;
    }
    let program = arguments.next()?;
    let started = detached_launcher::start(&program, arguments);
    Some(started.unwrap_or_else(|error| {
        Output::of_process().complain("error", CliError::NothingToTakeOver(error));
        USAGE
    }))
}
