//! What the circuit breaker reports to log and metrics: that it opened, and why, or that it closed.

use std::time::Duration;

/// Why a breaker opened.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum OpenReason {
    /// Connect failures in a row.
    Unreachable,
    /// Faults in a row, or too large a share of faults.
    Faults,
    /// A health check failed after a fault.
    HealthCheck,
    /// The probe of the half-open breaker failed.
    Probe,
}

impl OpenReason {
    /// Every reason.
    pub const ALL: [Self; 4] = [Self::Unreachable, Self::Faults, Self::HealthCheck, Self::Probe];

    /// The name in metrics and log lines.
    pub fn name(self) -> &'static str {
        match self {
            Self::Unreachable => "unreachable",
            Self::Faults => "faults",
            Self::HealthCheck => "health_check",
            Self::Probe => "probe",
        }
    }
}

/// A breaker that opened or closed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum BreakerTransition {
    /// It opened.
    Opened {
        /// Why.
        reason: OpenReason,
        /// For how long.
        pause: Duration,
    },
    /// A probe closed it.
    Closed,
}

impl BreakerTransition {
    /// Writes it to the log, as one line.
    pub fn log(self, backend: &str) {
        match self {
            Self::Opened { reason, pause } => {
                let (reason, open_s) = (reason.name(), pause.as_secs_f64());
                tracing::warn!(backend, reason, open_s, "circuit breaker opened");
            }
            Self::Closed => tracing::info!(backend, "circuit breaker closed"),
        }
    }
}
