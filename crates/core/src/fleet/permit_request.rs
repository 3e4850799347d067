//! The conditions of a permit: what a request asks of a backend before it is sent there.

use penstock_api::units::Timestamp;

use super::cooldown::CooldownScope;
use super::load::Probe;
use super::owner_shares::Owner;

/// The conditions of a permit.
#[derive(Debug, Clone, Copy, Default)]
pub struct PermitRequest {
    /// The probe slot to take with it.
    pub probe: Probe,
    /// The request's cooldown scope on the backend.
    pub scope: CooldownScope,
    /// A hash of the client.
    pub client: u64,
    pub now: Timestamp,
    pub limits: PermitLimits,
    /// The owner that holds it; `None` if it counts for no owner.
    pub owner: Option<Owner>,
    /// If set, others keep no room for its owner because of this request.
    pub is_sheddable: bool,
}

/// The limits that a permit must stay within.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum PermitLimits {
    /// The limits of the backend and of the model on it.
    #[default]
    All,
    /// The limit of the backend alone: the request spills over the limit of the model.
    Backend,
    /// No other request for the model may be in flight on the backend.
    Alone,
}
