//! Decisions with the permits that go with them.

use crate::fleet::InflightGuard;
use crate::routing::{Capture, RoutingDecision, Trace};

/// Where a request goes, with its permit there.
pub(crate) struct Decided {
    pub(crate) decision: RoutingDecision,
    pub(crate) permit: InflightGuard,
}

/// A decision whose permit has been taken, and that has not been reported.
pub(crate) struct Reserved {
    pub(super) decided: Decided,
    /// What the decision read, where a capture or the shadow needs it.
    pub(super) trace: Option<Trace>,
    /// The same for a file, where decisions are captured.
    pub(super) captured: Option<Box<Capture>>,
}
