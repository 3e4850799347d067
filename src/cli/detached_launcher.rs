//! What a hand-over starts, to start the new process. Nothing for people, so that no help, manual or
//! completion names it.

use std::ffi::OsString;

use super::error::{CliError, USAGE};
use super::output::Output;
use crate::lifecycle::detached_launcher;

/// Does it where the arguments say so; the exit code is the new process's own.
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
