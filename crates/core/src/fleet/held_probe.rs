//! The probe slots of circuit breakers, cooldowns, freezes and pauses by evidence: a request holds
//! at most one.

use std::sync::Arc;

use super::backend::BackendState;
use super::cooldown::Cooldown;
use super::load::Probe;
use super::model_evidence::ModelEvidence;
use super::paused_backend::PausedBackend;
use super::permit_request::PermitRequest;

/// A probe slot that is held.
#[derive(Debug)]
pub(super) enum HeldProbe {
    None,
    Breaker,
    Cooldown(Arc<Cooldown>),
    /// With the pause before it, in microseconds.
    Frozen(u64),
    Evidence(Arc<PausedBackend>),
}

impl HeldProbe {
    /// Takes the probe slot; `None` if another attempt holds it or nothing is left to probe.
    pub(super) fn try_take(
        state: &BackendState,
        evidence: Option<&ModelEvidence>,
        request: &PermitRequest,
    ) -> Option<Self> {
        match request.probe {
            Probe::None => Some(Self::None),
            Probe::Breaker => state.breaker.probe.try_take().then_some(Self::Breaker),
            Probe::Cooldown => {
                let cooldown = state.cooldowns.covering(request.scope, request.now)?;
                cooldown.probe.try_take().then_some(Self::Cooldown(cooldown))
            }
            Probe::Frozen => state.progress.try_take_probe(request.now).map(Self::Frozen),
            Probe::Evidence => {
                let paused = evidence?.try_take_probe(request.client, state.serial, request.now)?;
                Some(Self::Evidence(paused))
            }
        }
    }

    pub(super) fn free(&self, state: &BackendState) {
        match self {
            Self::None => {}
            Self::Breaker => state.breaker.probe.free(),
            Self::Cooldown(cooldown) => cooldown.probe.free(),
            Self::Frozen(_) => state.progress.free_probe(),
            Self::Evidence(paused) => paused.probe.free(),
        }
    }

    pub(super) fn kind(&self) -> Probe {
        match self {
            Self::None => Probe::None,
            Self::Breaker => Probe::Breaker,
            Self::Cooldown(_) => Probe::Cooldown,
            Self::Frozen(_) => Probe::Frozen,
            Self::Evidence(_) => Probe::Evidence,
        }
    }
}
