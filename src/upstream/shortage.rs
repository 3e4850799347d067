//! The resource that this process or its machine lacks when it cannot connect. Such a failure says
//! nothing about the backend.

use std::io;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use nix::errno::Errno;
use penstock_api::units::Timestamp;
use penstock_clock::now;

/// The interval of at most one log line: every request may meet the same shortage.
const LOG_EVERY: Duration = Duration::from_secs(10);

/// The time from which the next line may be logged.
static LOG_AT: AtomicU64 = AtomicU64::new(0);

/// A resource that this machine has run out of.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Shortage {
    /// Descriptors, of this process or of the system.
    Descriptors,
    /// Local ports towards one address.
    Ports,
    /// Memory, or buffers of the kernel.
    Memory,
}

impl Shortage {
    /// The shortage that a system error means.
    pub(crate) fn of(error: &io::Error) -> Option<Self> {
        match Errno::from_raw(error.raw_os_error()?) {
            Errno::EMFILE | Errno::ENFILE => Some(Self::Descriptors),
            Errno::EADDRNOTAVAIL => Some(Self::Ports),
            Errno::ENOMEM | Errno::ENOBUFS => Some(Self::Memory),
            _ => None,
        }
    }

    /// The text for logs and errors.
    pub(crate) fn text(self) -> &'static str {
        match self {
            Self::Descriptors => "penstock has no file descriptors left",
            Self::Ports => "no local ports are left for connections to the backend",
            Self::Memory => "the system has no memory left for connections",
        }
    }

    fn remedy(self) -> &'static str {
        match self {
            Self::Descriptors => "raise LimitNOFILE (systemd) or `ulimit -n`",
            Self::Ports => "widen net.ipv4.ip_local_port_range, or give the backend more addresses",
            Self::Memory => "add memory, or lower `limits.connections`",
        }
    }

    /// Logs the shortage, at most once per `LOG_EVERY`.
    pub(crate) fn log(self) {
        let (now, due) = (now(), LOG_AT.load(Ordering::Relaxed));
        let next = now.after(LOG_EVERY).0;
        let relaxed = Ordering::Relaxed;
        // Of the threads that meet the shortage together, the one that wins the exchange logs it.
        if now >= Timestamp(due) && LOG_AT.compare_exchange(due, next, relaxed, relaxed).is_ok() {
            tracing::error!(remedy = self.remedy(), "{}", self.text());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shortages_of_this_machine_differ_from_failures_of_the_backend() {
        let of = |errno: Errno| Shortage::of(&io::Error::from(errno));
        assert_eq!(of(Errno::EMFILE), Some(Shortage::Descriptors));
        assert_eq!(of(Errno::ENFILE), Some(Shortage::Descriptors));
        assert_eq!(of(Errno::EADDRNOTAVAIL), Some(Shortage::Ports));
        assert_eq!(of(Errno::ENOMEM), Some(Shortage::Memory));
        assert_eq!(of(Errno::ENOBUFS), Some(Shortage::Memory));
        for other in [Errno::ECONNREFUSED, Errno::ETIMEDOUT, Errno::ENETUNREACH] {
            assert_eq!(of(other), None);
        }
    }
}
