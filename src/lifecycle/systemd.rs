//! Notifications to systemd: the datagrams of sd_notify(3), if `NOTIFY_SOCKET` is set. Implemented
//! here because the `sd-notify` crate (0.5) does not connect to abstract sockets (`@name`), which
//! service managers of containers use. Bottom layer: independent of the rest of penstock.

use std::fmt::Write as _;
use std::io;
use std::os::unix::net::UnixDatagram;
use std::time::Duration;

use penstock_api::units::to_micros;

/// A state that systemd is notified of.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SystemdState<'a> {
    /// Startup or a reload is complete.
    Ready,
    Reloading,
    Stopping,
    /// A status line for operators.
    Status(&'a str),
    Watchdog,
    /// This process is the main process of the service from now on.
    MainPid(u32),
    /// Startup or shutdown takes at least this much longer.
    ExtendTimeout(Duration),
}

impl SystemdState<'_> {
    fn write(self, message: &mut String) {
        let written = match self {
            Self::Ready => writeln!(message, "READY=1"),
            Self::Reloading => {
                writeln!(message, "RELOADING=1\nMONOTONIC_USEC={}", monotonic_micros())
            }
            Self::Stopping => writeln!(message, "STOPPING=1"),
            // A line break would start another assignment.
            Self::Status(line) => writeln!(message, "STATUS={}", line.replace('\n', " ")),
            Self::Watchdog => writeln!(message, "WATCHDOG=1"),
            Self::MainPid(pid) => writeln!(message, "MAINPID={pid}"),
            Self::ExtendTimeout(time) => {
                writeln!(message, "EXTEND_TIMEOUT_USEC={}", to_micros(time))
            }
        };
        debug_assert!(written.is_ok(), "writing to a string cannot fail");
    }
}

/// Returns the monotonic time, which systemd compares with the start of a reload.
fn monotonic_micros() -> u64 {
    let time = nix::time::clock_gettime(nix::time::ClockId::CLOCK_MONOTONIC);
    debug_assert!(time.is_ok(), "every system has a monotonic clock");
    to_micros(time.map_or(Duration::ZERO, Duration::from))
}

/// Sends notifications; does nothing without a service manager.
#[derive(Debug)]
pub struct Notifier {
    socket: Option<(UnixDatagram, Address)>,
    watchdog: Option<Duration>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
enum Address {
    Path(String),
    /// A Linux socket name without a file.
    Abstract(String),
}

impl Address {
    fn of(text: &str) -> Option<Self> {
        match text.strip_prefix('@') {
            Some(name) => Some(Self::Abstract(name.to_owned())),
            None if text.starts_with('/') => Some(Self::Path(text.to_owned())),
            // Not supported: vsock and others, for virtual machines.
            None => None,
        }
    }
}

impl Notifier {
    /// Creates a notifier from the environment of this process.
    pub fn of_process() -> Self {
        let variable = |name: &str| std::env::var(name).ok();
        let address = variable("NOTIFY_SOCKET").and_then(|text| Address::of(&text));
        let socket = address.and_then(|address| Some((UnixDatagram::unbound().ok()?, address)));
        // Children inherit the variables, and only the main process may ping
        // (sd_watchdog_enabled(3)).
        let is_for_this_process =
            variable("WATCHDOG_PID").is_none_or(|pid| pid.parse() == Ok(std::process::id()));
        let micros = variable("WATCHDOG_USEC").filter(|_| is_for_this_process && socket.is_some());
        let micros = micros.and_then(|text| text.parse().ok()).filter(|micros| *micros > 0);
        Self { socket, watchdog: micros.map(Duration::from_micros) }
    }

    /// Creates a notifier that sends nothing.
    pub fn silent() -> Self {
        Self { socket: None, watchdog: None }
    }

    /// Returns the timeout of the watchdog; [`SystemdState::Watchdog`] must be sent more often.
    /// `None` without a watchdog.
    pub fn watchdog(&self) -> Option<Duration> {
        self.watchdog
    }

    /// Returns whether a service manager receives notifications.
    pub fn is_active(&self) -> bool {
        self.socket.is_some()
    }

    /// Sends all states in one message. A failure is logged and otherwise ignored.
    pub fn notify(&self, states: &[SystemdState<'_>]) {
        let Some((socket, address)) = &self.socket else { return };
        let mut message = String::new();
        states.iter().for_each(|state| state.write(&mut message));
        if let Err(error) = send(socket, address, message.as_bytes()) {
            tracing::debug!(%error, "systemd notification failed");
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
    fn message_has_one_variable_per_line() {
        let mut message = String::new();
        let states = [
            SystemdState::Ready,
            SystemdState::Status("two\nlines"),
            SystemdState::MainPid(7),
            SystemdState::ExtendTimeout(Duration::from_secs(2)),
        ];
        states.iter().for_each(|state| state.write(&mut message));
        let expected = "READY=1\nSTATUS=two lines\nMAINPID=7\nEXTEND_TIMEOUT_USEC=2000000\n";
        assert_eq!(message, expected);
    }

    #[test]
    fn reload_carries_the_monotonic_time() {
        let mut message = String::new();
        SystemdState::Reloading.write(&mut message);
        let (_, time) = message.trim().split_once("RELOADING=1\nMONOTONIC_USEC=").unwrap();
        assert!(time.parse::<u64>().unwrap() > 0);
    }

    #[test]
    fn path_and_abstract_sockets_are_supported() {
        assert_eq!(Address::of("/run/notify"), Some(Address::Path("/run/notify".to_owned())));
        assert_eq!(Address::of("@notify"), Some(Address::Abstract("notify".to_owned())));
        assert_eq!(Address::of("vsock:2:1"), None);
        Notifier::silent().notify(&[SystemdState::Ready]);
    }
}
