//! What the circuit breaker reports to log and metrics: that it opened, and why, or that it closed.

use std::time::Duration;

/// Why a breaker opened.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum OpenReason {
    /// Connect failures in a row.
    Unreachable,
    /// A larger share of faults than on other backends; of a model, not of the whole backend.
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
#[derive(Debug, Clone, PartialEq, Eq)]
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
    /// The evidence about a model changed.
    Model(ModelTransition),
}

/// A model that is paused on a backend for all clients, or is no longer on some.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ModelTransition {
    /// The model's name.
    pub model: Box<str>,
    /// For how long the backend is paused, if it is.
    pub paused: Option<Duration>,
    /// The names of the backends that are let in again.
    pub released: Vec<Box<str>>,
}

impl BreakerTransition {
    /// Writes it to the log: a line for each backend.
    pub fn log(self, backend: &str) {
        match self {
            Self::Opened { reason, pause } => {
                let (reason, open_s) = (reason.name(), pause.as_secs_f64());
                tracing::warn!(backend, reason, open_s, "circuit breaker opened");
            }
            Self::Closed => tracing::info!(backend, "circuit breaker closed"),
            Self::Model(ModelTransition { model, paused, released }) => {
                if let Some(pause) = paused {
                    let (reason, open_s) = (OpenReason::Faults.name(), pause.as_secs_f64());
                    tracing::warn!(backend, %model, reason, open_s, "circuit breaker opened");
                }
                for backend in released {
                    tracing::info!(%backend, %model, "circuit breaker closed");
                }
            }
        }
    }
}
