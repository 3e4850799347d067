//! Graceful upgrade (hot restart): a new process takes over the listening sockets, so that a new
//! version replaces a running one and no connection is refused.
//!
//! 1. The old process starts the new one with its own arguments plus `--take-over`, through the
//!    [`detached_launcher`]. A socket pair connects the two; the new process finds its end as
//!    standard input.
//! 2. The old process passes all listening sockets in one `SCM_RIGHTS` message. Both processes then
//!    share the kernel's accept queues: a connection is accepted by one or the other, never
//!    refused.
//! 3. The old process receives two lines, in either order: the process id (from the launcher), and
//!    `ready` or an error (from the new process, after its first health checks).
//! 4. On `ready`, the old process sends one line with its state, announces the new main process to
//!    systemd and drains. Stored responses that it learns of meanwhile follow. The new process
//!    accepts connections once it has that line.
//!
//! The old process keeps accepting until step 4, so every failure leaves it serving: a child that
//! dies closes its end of the socket pair and its exit status is reported; a child that reports an
//! error is reaped; a child that reports nothing within `READY_TIMEOUT` is killed.

use std::ffi::OsString;
use std::io::{self, IoSlice, IoSliceMut, Write};
use std::os::fd::{AsFd, AsRawFd, OwnedFd, RawFd};
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::Duration;

use nix::sys::signal::{Signal, kill};
use nix::sys::socket::{ControlMessage, ControlMessageOwned, MsgFlags, recvmsg, sendmsg};
use nix::unistd::Pid;
use tokio::io::{AsyncBufReadExt, BufReader};

use super::detached_launcher;
use super::process_state::{LaterState, ProcessState, receive_state, send_line};

/// The flag of the new process.
pub(super) const TAKE_OVER: &str = "--take-over";
/// The time in which the new process must become ready.
const READY_TIMEOUT: Duration = Duration::from_secs(30);
/// The time in which a child that has closed its socket must exit.
const EXIT_TIMEOUT: Duration = Duration::from_secs(2);
/// The kernel's limit of descriptors in one message.
const MAX_SOCKETS: usize = 253;
/// The longest list of socket addresses.
const MAX_ADDRESS_BYTES: usize = 32 * 1024;
const READY: &str = "ready";

/// The address of a listening socket and its descriptor.
pub type Socket = (String, RawFd);

/// The reason why a graceful upgrade failed.
#[derive(Debug, thiserror::Error)]
pub enum UpgradeError {
    /// This is process 1, whose exit ends its container.
    #[error("process 1 cannot be upgraded: its exit would stop the container")]
    FirstProcess,
    /// The program or its arguments are unknown.
    #[error("this process was not started by `penstock serve`")]
    NotServing,
    /// More listening sockets than one message can hold.
    #[error("{0} listening sockets, of which at most {MAX_SOCKETS} can be passed to a new process")]
    TooManySockets(usize),
    /// The new process could not be started or contacted.
    #[error("the new process could not be started: {0}")]
    Start(#[source] io::Error),
    /// The new process reported why it cannot start.
    #[error("the new process could not start: {0}")]
    Refused(String),
    /// The new process exited without a report.
    #[error("the new process exited before it was ready ({0})")]
    Ended(ExitStatus),
    /// The new process was not ready in time and was killed.
    #[error("the new process was not ready within {0:?} and was killed")]
    TimedOut(Duration),
    /// Other commands are pending.
    #[error("another reload or upgrade is in progress")]
    Busy,
    /// This process is shutting down.
    #[error("this process is shutting down")]
    Stopping,
}

/// The command that starts the new process.
#[derive(Debug, Clone)]
pub struct Successor {
    /// The path by which this process was started, where a new version may be installed by now.
    pub program: PathBuf,
    /// Its arguments, without `--take-over`.
    pub arguments: Vec<OsString>,
}

/// Returns the path by which this process was started. A symbolic link in it is not resolved: it
/// may lead to a new version by now.
fn started_as() -> Option<PathBuf> {
    let running = std::env::current_exe().ok()?;
    let given = std::env::args_os().next().and_then(|given| std::path::absolute(given).ok());
    // A name that the shell has found in `PATH` is no path, and a caller may give any name.
    let is_running = |path: &PathBuf| path.canonicalize().is_ok_and(|real| real == running);
    Some(given.filter(is_running).unwrap_or(running))
}

impl Successor {
    /// Returns the program and arguments of this process.
    pub fn of_process() -> Option<Self> {
        let arguments = std::env::args_os().skip(1).filter(|argument| argument != TAKE_OVER);
        Some(Self { program: started_as()?, arguments: arguments.collect() })
    }

    /// Starts the new process, passes the sockets, waits until it is ready, and passes the state
    /// that `process_state` returns at that moment. Returns the process id, and the channel to it.
    ///
    /// # Errors
    /// [`UpgradeError`] if the new process is not ready; then it no longer runs.
    pub async fn take_over(
        &self,
        sockets: &[Socket],
        process_state: impl FnOnce() -> ProcessState,
    ) -> Result<(u32, tokio::net::UnixStream), UpgradeError> {
        if std::process::id() == 1 {
            return Err(UpgradeError::FirstProcess);
        }
        if sockets.len() > MAX_SOCKETS {
            return Err(UpgradeError::TooManySockets(sockets.len()));
        }
        let (ours, theirs) = UnixStream::pair().map_err(UpgradeError::Start)?;
        // The socket pair buffers the message until the new process reads it.
        send(&ours, sockets).map_err(UpgradeError::Start)?;
        let mut launcher = self.start(theirs).map_err(UpgradeError::Start)?;
        let mut channel = to_async(ours).map_err(UpgradeError::Start)?;
        let mut pid = None;
        let reported = read_report(&mut channel, &mut pid);
        match (tokio::time::timeout(READY_TIMEOUT, reported).await, pid) {
            (Ok(Ok(line)), Some(pid)) if line == READY => {
                // Not fatal: without this line, the new process serves with an empty state.
                if let Err(error) = send_line(&mut channel, &process_state()).await {
                    tracing::warn!(%error, "drains set by hand, predictions, what was used of limits and stored responses could not be passed to the new process");
                }
                // Without the launcher, the new process becomes a child of the service manager.
                terminate(&mut launcher, None);
                Ok((pid, channel))
            }
            (Ok(Ok(line)), pid) if line.is_empty() => Err(wait_for_exit(&mut launcher, pid).await),
            (Ok(Ok(line)), pid) => {
                let status = wait_for_exit(&mut launcher, pid).await;
                tracing::debug!(%status, "the new process exited after its error");
                Err(UpgradeError::Refused(line))
            }
            (Ok(Err(error)), pid) => {
                tracing::debug!(%error, "the new process closed its socket");
                Err(wait_for_exit(&mut launcher, pid).await)
            }
            (Err(_elapsed), pid) => {
                terminate(&mut launcher, pid);
                Err(UpgradeError::TimedOut(READY_TIMEOUT))
            }
        }
    }

    /// Starts the new process through the launcher, which is the running binary even if a new
    /// version has replaced its file.
    fn start(&self, channel: UnixStream) -> io::Result<Child> {
        Command::new("/proc/self/exe")
            .arg(detached_launcher::COMMAND)
            .arg(&self.program)
            .args(&self.arguments)
            .arg(TAKE_OVER)
            .stdin(Stdio::from(OwnedFd::from(channel)))
            // The watchdog expects pings from this process until the new one is the main process.
            .env_remove("WATCHDOG_PID")
            .spawn()
    }
}

fn to_async(channel: UnixStream) -> io::Result<tokio::net::UnixStream> {
    channel.set_nonblocking(true)?;
    tokio::net::UnixStream::from_std(channel)
}

/// Returns the status line of the new process, empty if it exits without one. `pid` is set once it
/// is known: the launcher sends it, so either may come first.
async fn read_report(
    channel: &mut tokio::net::UnixStream,
    pid: &mut Option<u32>,
) -> io::Result<String> {
    let mut lines = BufReader::new(channel).lines();
    let mut report = None;
    while report.is_none() || pid.is_none() {
        let line = match lines.next_line().await {
            Ok(Some(line)) => line,
            Ok(None) => break,
            // The new process closed the channel after its report, without receiving the sockets.
            Err(_) if report.is_some() => break,
            Err(error) => return Err(error),
        };
        // The launcher sends a number, and no report is one.
        match line.parse() {
            Ok(id) => *pid = Some(id),
            Err(_) => report = Some(line.trim().to_owned()),
        }
    }
    Ok(report.unwrap_or_default())
}

/// Waits for the exit of a process that will not serve; kills it after `EXIT_TIMEOUT`.
async fn wait_for_exit(launcher: &mut Child, pid: Option<u32>) -> UpgradeError {
    let until = penstock_clock::now().after(EXIT_TIMEOUT);
    while penstock_clock::now() < until {
        match launcher.try_wait() {
            Ok(Some(status)) => return UpgradeError::Ended(status),
            Ok(None) => tokio::time::sleep(Duration::from_millis(10)).await,
            Err(error) => return UpgradeError::Start(error),
        }
    }
    terminate(launcher, pid);
    match launcher.wait() {
        Ok(status) => UpgradeError::Ended(status),
        Err(error) => UpgradeError::Start(error),
    }
}

/// Kills the launcher, and the new process if its id is given.
fn terminate(launcher: &mut Child, pid: Option<u32>) {
    // The launcher has not reaped it yet, so the id cannot belong to another process.
    if let Some(pid) = pid.and_then(|pid| i32::try_from(pid).ok())
        && let Err(error) = kill(Pid::from_raw(pid), Signal::SIGKILL)
    {
        tracing::debug!(%error, "the new process had already exited");
    }
    let ended = launcher.kill().and_then(|()| launcher.wait());
    tracing::debug!(is_ended = ended.is_ok(), "launcher terminated");
}

fn send(channel: &UnixStream, sockets: &[Socket]) -> io::Result<()> {
    let addresses: Vec<&str> = sockets.iter().map(|(address, _)| address.as_str()).collect();
    let mut text = addresses.join("\n").into_bytes();
    // The NUL marks the end: a message that was cut has none and is refused.
    text.push(0);
    if text.len() > MAX_ADDRESS_BYTES {
        return Err(io::ErrorKind::FileTooLarge.into());
    }
    let descriptors: Vec<RawFd> = sockets.iter().map(|(_, descriptor)| *descriptor).collect();
    let rights = [ControlMessage::ScmRights(&descriptors)];
    let text = [IoSlice::new(&text)];
    sendmsg::<()>(channel.as_raw_fd(), &text, &rights, MsgFlags::MSG_NOSIGNAL, None)?;
    Ok(())
}

fn receive(channel: &UnixStream) -> io::Result<Vec<Socket>> {
    let mut text = vec![0; MAX_ADDRESS_BYTES];
    let mut room = nix::cmsg_space!([RawFd; MAX_SOCKETS]);
    let mut descriptors = Vec::new();
    let count = {
        let mut parts = [IoSliceMut::new(&mut text)];
        // Otherwise programs that this process starts would keep the listeners open.
        let flags = MsgFlags::MSG_CMSG_CLOEXEC;
        let message = recvmsg::<()>(channel.as_raw_fd(), &mut parts, Some(&mut room), flags)?;
        for control in message.cmsgs()? {
            if let ControlMessageOwned::ScmRights(rights) = control {
                descriptors.extend(rights);
            }
        }
        message.bytes
    };
    let text = text.get(..count).and_then(|text| text.strip_suffix(&[0]));
    let text = text.and_then(|text| std::str::from_utf8(text).ok()).ok_or(NOT_SOCKETS)?;
    let addresses: Vec<String> = text.lines().map(str::to_owned).collect();
    if addresses.len() != descriptors.len() {
        return Err(NOT_SOCKETS.into());
    }
    Ok(addresses.into_iter().zip(descriptors).collect())
}

const NOT_SOCKETS: io::ErrorKind = io::ErrorKind::InvalidData;

/// The sockets that a new process inherits, and its channel to the previous process.
#[derive(Debug)]
pub struct InheritedSockets {
    channel: UnixStream,
    sockets: Vec<Socket>,
}

impl InheritedSockets {
    /// Receives the sockets of the previous process on standard input.
    ///
    /// # Errors
    /// If standard input is not such a channel.
    pub fn take() -> io::Result<Self> {
        let channel = UnixStream::from(io::stdin().as_fd().try_clone_to_owned()?);
        // Checked before reading: a read from a terminal would wait for input.
        channel.peer_addr()?;
        let sockets = receive(&channel)?;
        Ok(Self { channel, sockets })
    }

    /// Returns a second handle of the channel, to report a failed start.
    ///
    /// # Errors
    /// If the limit of open files is reached.
    pub fn channel(&self) -> io::Result<Self> {
        Ok(Self { channel: self.channel.try_clone()?, sockets: Vec::new() })
    }

    /// Returns the sockets of these addresses. All others are closed, because this process does not
    /// accept on them.
    pub fn claim(&mut self, addresses: &[String]) -> Vec<Socket> {
        let all = std::mem::take(&mut self.sockets);
        let (claimed, others) =
            all.into_iter().partition(|(address, _)| addresses.contains(address));
        for (address, descriptor) in others {
            if let Err(error) = nix::unistd::close(descriptor) {
                tracing::warn!(address, %error, "cannot close an unused inherited socket");
            }
        }
        claimed
    }

    /// Reports to the previous process that this one is ready; returns the state to continue with,
    /// and the source of later ids. Blocks until the previous process has responded or is gone.
    pub fn report_ready(mut self) -> (ProcessState, LaterState) {
        self.send_line(READY);
        let (state, read) = receive_state(&self.channel).unwrap_or_else(|error| {
            tracing::warn!(%error, "what the previous process knew could not be taken over");
            Default::default()
        });
        (state, LaterState { read, channel: self.channel })
    }

    /// Reports why this process cannot start.
    pub fn report_failure(mut self, reason: &str) {
        self.send_line(&reason.replace('\n', "; "));
    }

    fn send_line(&mut self, line: &str) {
        if let Err(error) = self.channel.write_all(format!("{line}\n").as_bytes()) {
            tracing::warn!(%error, "the previous process is gone");
        }
    }
}

#[cfg(test)]
mod tests;
