//! Tells the service manager how this process is doing: the datagrams of sd_notify(3), where
//! `NOTIFY_SOCKET` asks for them. Bottom layer: knows nothing of penstock.

use std::fmt::Write as _;
use std::io;
use std::os::unix::net::UnixDatagram;
use std::time::Duration;

use crate::units::to_micros;

/// One thing to tell.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum State<'a> {
    /// The start, or a reload, is done.
    Ready,
    /// A reload begins.
    Reloading,
    /// The process has been told to stop.
    Stopping,
    /// A line for people.
    Status(&'a str),
    /// The process lives and works.
    Watchdog,
    /// This process is the service from now on.
    MainPid(u32),
    /// Starting or stopping goes on for so long at least.
    ExtendTimeout(Duration),
}

impl State<'_> {
    fn write(self, message: &mut String) {
        let written = match self {
            Self::Ready => writeln!(message, "READY=1"),
            Self::Reloading => {
                writeln!(message, "RELOADING=1\nMONOTONIC_USEC={}", monotonic_micros())
            }
            Self::Stopping => writeln!(message, "STOPPING=1"),
            Self::Status(line) => writeln!(message, "STATUS={}", line.replace('\n', " ")),
            Self::Watchdog => writeln!(message, "WATCHDOG=1"),
            Self::MainPid(pid) => writeln!(message, "MAINPID={pid}"),
            Self::ExtendTimeout(time) => {
                writeln!(message, "EXTEND_TIMEOUT_USEC={}", to_micros(time))
            }
        };
        debug_assert!(written.is_ok(), "writing to a text cannot fail");
    }
}

/// The clock that the service manager compares a reload with.
fn monotonic_micros() -> u64 {
    let time = nix::time::clock_gettime(nix::time::ClockId::CLOCK_MONOTONIC);
    let time = time.map(Duration::from).unwrap_or_default();
    to_micros(time)
}

/// Where to tell it; nowhere without a service manager.
#[derive(Debug)]
pub struct Notifier {
    socket: Option<(UnixDatagram, Address)>,
    watchdog: Option<Duration>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
enum Address {
    Path(String),
    /// Linux' names without a file.
    Abstract(String),
}

impl Address {
    fn of(text: &str) -> Option<Self> {
        match text.strip_prefix('@') {
            Some(name) => Some(Self::Abstract(name.to_owned())),
            None if text.starts_with('/') => Some(Self::Path(text.to_owned())),
            // vsock and others, of virtual machines that are services.
            None => None,
        }
    }
}

impl Notifier {
    /// What the environment of this process asks for.
    pub fn of_process() -> Self {
        let variable = |name: &str| std::env::var(name).ok();
        let address = variable("NOTIFY_SOCKET").and_then(|text| Address::of(&text));
        let socket = address.and_then(|address| Some((UnixDatagram::unbound().ok()?, address)));
        let is_mine =
            variable("WATCHDOG_PID").is_none_or(|pid| pid.parse() == Ok(std::process::id()));
        let micros = variable("WATCHDOG_USEC").filter(|_| is_mine && socket.is_some());
        let micros = micros.and_then(|text| text.parse().ok()).filter(|micros| *micros > 0);
        Self { socket, watchdog: micros.map(Duration::from_micros) }
    }

    /// One that tells nobody.
    pub fn silent() -> Self {
        Self { socket: None, watchdog: None }
    }

    /// How often [`State::Watchdog`] must be told at least; `None` when nobody waits for it.
    pub fn watchdog(&self) -> Option<Duration> {
        self.watchdog
    }

    /// Whether anybody listens.
    pub fn is_heard(&self) -> bool {
        self.socket.is_some()
    }

    /// Tells all of it in one message. That nobody took it is no reason to fail: the log says so.
    pub fn tell(&self, states: &[State<'_>]) {
        let Some((socket, address)) = &self.socket else { return };
        let mut message = String::new();
        states.iter().for_each(|state| state.write(&mut message));
        if let Err(error) = send(socket, address, message.as_bytes()) {
            tracing::debug!(%error, "the service manager was not told");
        }
    }
}

fn send(socket: &UnixDatagram, address: &Address, message: &[u8]) -> io::Result<()> {
    match address {
        Address::Path(path) => socket.send_to(message, path)?,
        Address::Abstract(name) => send_abstract(socket, name, message)?,
    };
    Ok(())
}

#[cfg(target_os = "linux")]
fn send_abstract(socket: &UnixDatagram, name: &str, message: &[u8]) -> io::Result<usize> {
    use std::os::linux::net::SocketAddrExt;
    let address = std::os::unix::net::SocketAddr::from_abstract_name(name)?;
    socket.send_to_addr(message, &address)
}

#[cfg(not(target_os = "linux"))]
fn send_abstract(_socket: &UnixDatagram, _name: &str, _message: &[u8]) -> io::Result<usize> {
    Err(io::ErrorKind::Unsupported.into())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_message_is_one_variable_per_line() {
        let mut message = String::new();
        let states = [
            State::Ready,
            State::Status("two\nlines"),
            State::MainPid(7),
            State::ExtendTimeout(Duration::from_secs(2)),
        ];
        states.iter().for_each(|state| state.write(&mut message));
        let expected = "READY=1\nSTATUS=two lines\nMAINPID=7\nEXTEND_TIMEOUT_USEC=2000000\n";
        assert_eq!(message, expected);
    }

    #[test]
    fn a_reload_carries_the_monotonic_time() {
        let mut message = String::new();
        State::Reloading.write(&mut message);
        let (_, time) = message.trim().split_once("RELOADING=1\nMONOTONIC_USEC=").unwrap();
        assert!(time.parse::<u64>().unwrap() > 0);
    }

    #[test]
    fn sockets_with_and_without_a_file_are_understood() {
        assert_eq!(Address::of("/run/notify"), Some(Address::Path("/run/notify".to_owned())));
        assert_eq!(Address::of("@notify"), Some(Address::Abstract("notify".to_owned())));
        assert_eq!(Address::of("vsock:2:1"), None);
        Notifier::silent().tell(&[State::Ready]);
    }
}
