//! Starts a program that outlives who asked for it, as a child of the service manager: a process in
//! between starts it and ends. systemd waits for the end of a main process that is its child, and for
//! no other: it would kill one that its predecessor started a moment after SIGTERM.

use std::ffi::{OsStr, OsString};
use std::io::{self, Write};
use std::os::fd::AsFd;
use std::os::unix::net::UnixStream;
use std::os::unix::process::ExitStatusExt;
use std::process::Command;

/// What the process in between is called with, before the program and its arguments.
pub(crate) const COMMAND: &str = "detached-launcher";
/// Added to the number of a signal, as shells do.
const BY_SIGNAL: i32 = 128;
/// What it ends with when there is no program to start.
const NOT_STARTED: u8 = 1;

/// The process in between: starts the program, tells its id on the socket that is the standard input
/// of both, and ends as the program does, unless it is ended before.
///
/// # Errors
/// When the standard input is not such a socket.
pub(crate) fn start(program: &OsStr, arguments: impl Iterator<Item = OsString>) -> io::Result<u8> {
    let mut channel = UnixStream::from(io::stdin().as_fd().try_clone_to_owned()?);
    match Command::new(program).args(arguments).spawn() {
        Ok(mut child) => {
            // In one piece: the program writes to the same socket.
            channel.write_all(format!("{}\n", child.id()).as_bytes())?;
            let status = child.wait()?;
            let by_signal = status.signal().map(|signal| BY_SIGNAL + signal);
            let code = status.code().or(by_signal).unwrap_or_default();
            Ok(u8::try_from(code).unwrap_or(u8::MAX))
        }
        Err(error) => {
            channel.write_all(format!("{}: {error}\n", program.display()).as_bytes())?;
            Ok(NOT_STARTED)
        }
    }
}
