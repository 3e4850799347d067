//! Events of the circuit breaker for log and metrics: opened, with the reason, or closed.

use std::time::Duration;

penstock_api::named! {
    /// The reason for which a breaker opened.
    pub enum OpenReason {
        /// Connect failures in a row.
        Unreachable = "unreachable",
        /// A larger share of faults than on other backends; concerns a model, not the whole
        /// backend.
        Faults = "faults",
        /// A larger share of requests refused with a 4xx than on other backends; concerns a model.
        Refusals = "refusals",
        /// A health check failed after a fault.
        HealthCheck = "health_check",
        /// The probe of the half-open breaker failed.
        Probe = "probe",
    }
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub enum BreakerTransition {
    Opened {
        reason: OpenReason,
        pause: Duration,
    },
    /// A probe closed it.
    Closed,
    /// The evidence about a model changed.
    Model(ModelTransition),
}

/// A model that is now paused on a backend for all clients, or released on some.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ModelTransition {
    pub model: Box<str>,
    /// The duration of the backend's pause and its reason, if it is paused.
    pub paused: Option<(Duration, OpenReason)>,
    /// The names of the backends that are released.
    pub released: Vec<Box<str>>,
}

impl BreakerTransition {
    /// Writes one log line for each backend.
    pub fn log(self, backend: &str) {
        match self {
            Self::Opened { reason, pause } => {
                let (reason, open_s) = (reason.name(), pause.as_secs_f64());
                tracing::warn!(backend, reason, open_s, "circuit breaker opened");
            }
            Self::Closed => tracing::info!(backend, "circuit breaker closed"),
            Self::Model(ModelTransition { model, paused, released }) => {
                if let Some((pause, reason)) = paused {
                    let (reason, open_s) = (reason.name(), pause.as_secs_f64());
                    tracing::warn!(backend, %model, reason, open_s, "circuit breaker opened");
                }
                for backend in released {
                    tracing::info!(%backend, %model, "circuit breaker closed");
                }
            }
        }
    }
}
