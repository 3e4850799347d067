//! Starts a program as a child of the service manager instead of this process: an intermediate
//! process spawns it and exits, so that it is reparented (a double fork). systemd waits for the
//! exit of a main process only if that is its child. A grandchild would be killed right after
//! SIGTERM, without its drain.

use std::ffi::{OsStr, OsString};
use std::io::{self, Write};
use std::os::fd::AsFd;
use std::os::unix::net::UnixStream;
use std::os::unix::process::ExitStatusExt;
use std::process::Command;

/// The hidden command of the launcher, before the program and its arguments.
pub(crate) const COMMAND: &str = "detached-launcher";
/// The exit code of a process killed by a signal: this plus its number, as in shells.
const SIGNAL_BASE: i32 = 128;
/// The exit code if the program cannot be started.
const NOT_STARTED: u8 = 1;

/// Starts the program, writes its process id to the socket that is the standard input of both, and
/// exits with the program's exit code unless it is killed first.
///
/// # Errors
/// If standard input is not a socket.
pub(crate) fn start(program: &OsStr, arguments: impl Iterator<Item = OsString>) -> io::Result<u8> {
    let mut channel = UnixStream::from(io::stdin().as_fd().try_clone_to_owned()?);
    match Command::new(program).args(arguments).spawn() {
        Ok(mut child) => {
            // In one write: the program writes to the same socket.
            channel.write_all(format!("{}\n", child.id()).as_bytes())?;
            let status = child.wait()?;
            let by_signal = status.signal().map(|signal| SIGNAL_BASE + signal);
            let code = status.code().or(by_signal);
            debug_assert!(code.is_some(), "a process ends by exit or by signal");
            Ok(code.and_then(|code| u8::try_from(code).ok()).unwrap_or(u8::MAX))
        }
        Err(error) => {
            channel.write_all(format!("{}: {error}\n", program.display()).as_bytes())?;
            Ok(NOT_STARTED)
        }
    }
}
