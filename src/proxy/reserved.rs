//! Decisions with the permits that go with them.

use penstock_core::fleet::InflightGuard;
use penstock_core::routing::{Capture, RoutingDecision, Trace};

/// The decision about a request, with its permit.
pub(crate) struct Decided {
    pub(crate) decision: RoutingDecision,
    pub(crate) permit: InflightGuard,
}

/// A decision whose permit has been taken, and that has not been reported.
pub(crate) struct Reserved {
    pub(super) decided: Decided,
    /// The inputs of the decision, if a capture or the shadow needs them.
    pub(super) trace: Option<Trace>,
    /// The same for a file, if decisions are captured.
    pub(super) captured: Option<Box<Capture>>,
}
