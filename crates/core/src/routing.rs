//! The routing decision: the backend that takes a request. Pure and synchronous: time, fleet, tried
//! backends, rotation and randomness are arguments, and a recorder observes. The proxy, `explain`,
//! captures and the tests call the same [`Router::route`]; replay and the shadow feed recorded
//! readings to the same strategies. Reading order: `router`, `filters`, `readings`, `strategies`,
//! `recorder`, `audit`.

pub mod audit;
mod auto;
mod context_shift;
mod ensemble;
mod error;
mod filters;
mod generation;
mod homes;
mod moves;
mod objectives;
mod observer;
mod passthrough;
mod policies;
mod prediction;
mod prefix_observer;
mod quote;
mod random;
mod readings;
mod record;
mod recorder;
mod rejections;
mod request_record;
mod requested_model;
mod resolve;
mod retry;
mod router;
mod scratch;
mod session;
mod shadow_observer;
mod split;
mod strategies;
mod weighted;

pub use audit::{
    CandidateReport, Capture, CaptureError, CapturedAttempt, DecisionRecord, Explanation, Lease,
    Replayed, Trace,
};
pub use auto::ChosenStrategy;
pub use context_shift::{CONTEXT_SHIFT, ContextShift, ShiftTerms, forbids_shift, scale_of};
pub use ensemble::{DRAFTS, EnsembleCall, EnsemblePlan, EnsembleStage};
pub use error::RouteError;
pub use filters::{RejectReason, Verdict};
pub use generation::Generation;
pub use homes::{KeptHome, SessionHomes};
pub use moves::rest_of_wait;
pub use objectives::{ObjectivesError, read_objectives};
pub use observer::{AttemptEnded, RequestDetails, RequestObserver, RequestOutcome, Routed};
pub use passthrough::{Passthrough, Way};
pub use policies::{
    ModelAsked, Policies, PolicyClient, PolicyError, PolicyScope, PolicyWishes, Restriction,
};
pub use prefix_observer::PrefixObserver;
pub use quote::{QuotedBackend, quote};
pub use random::{Live, Peek, RandomSource, ReplaySource};
pub use record::{ScoreRecord, ScorerNames};
pub use recorder::{NoRecord, Recorder};
pub use rejections::Rejections;
pub use request_record::{
    EditFacts, EnsembleParts, QueueFacts, ReplayFields, RequestFacts, RequestRecord, ResponseFacts,
    RoutingFacts,
};
pub use requested_model::RequestedModel;
pub use resolve::{Names, Split};
pub use retry::{RetryCredit, RetrySafety};
pub use router::{AwaitedRoom, Cooling, RequestSize, ReturnLine, Router, ServiceTime};
pub use scratch::Scratch;
pub use session::{RoutedSession, SessionField, SessionIds, SessionNames};
pub use shadow_observer::ShadowObserver;
pub use split::SplitPoint;
pub use weighted::Weighted;

use penstock_api::units::{Timestamp, TokenCount};
use penstock_config::Strategy;
use penstock_scan::RequestProfile;
use penstock_scoring::Objectives;

use crate::fleet::{
    BackendId, BackendSet, ModelId, PermitLimits, Probe, Requester, Serving, Topology,
};
use crate::prefix::Chain;

/// Everything a decision reads.
#[derive(Debug, Clone, Copy)]
pub struct RouteInput<'a> {
    pub request: &'a RequestProfile,
    /// The requested model, decoded.
    pub model: &'a str,
    /// The point that selects the model if an alias splits its requests among several.
    pub split: SplitPoint,
    /// The tokens that must fit a context: the estimate, plus the reserved output if configured.
    pub tokens: TokenCount,
    /// The backends and their models.
    pub fleet: &'a Topology,
    /// The backends on which earlier attempts of this request failed.
    pub tried: &'a BackendSet,
    /// True if it may probe a backend in cooldown while all are in cooldown.
    pub may_probe: bool,
    /// Set if it has waited in the queue.
    pub waited: Option<Waited>,
    /// The time of the decision.
    pub now: Timestamp,
    /// The prompt in blocks, if the strategy reads it.
    pub prompt: Option<&'a Chain>,
    /// The session the request names.
    pub session: Option<RoutedSession>,
    /// The client that sent it.
    pub requester: Requester,
    /// The objectives of its client.
    pub objectives: Objectives,
    /// The policies that it is under.
    pub policy: PolicyScope,
}

/// A request's wait in the queue.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Waited {
    /// The objective for the time to the first token before the wait, in milliseconds.
    pub ttft_ms: Option<f64>,
}

/// The backend for a request, and how it was chosen.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct RoutingDecision {
    pub backend: BackendId,
    /// The model that the request names when it reaches the backend.
    pub model: ModelId,
    /// The backend's row of that model.
    pub row: u32,
    /// The strategy that picked it.
    pub strategy: Strategy,
    /// True if the model is a fallback for the requested one.
    pub is_fallback: bool,
    /// True if a capability was assumed because no candidate is known to have it.
    pub is_assumed: bool,
    /// True if unhealthy backends were candidates because too few are healthy.
    pub in_panic: bool,
    /// True if every limit of the model was reached, so that the request exceeds one.
    pub spills: bool,
    /// True if its backend is below the tier that the request's policy prefers.
    pub is_below_tier: bool,
    /// True if the request tries whether its backend is still beyond the bounds of quality: no
    /// other request for the model may be in flight there.
    pub is_quality_probe: bool,
    pub candidates: u32,
    /// The probe slot that the attempt must hold.
    pub probe: Probe,
    /// Its scores, if scorers decided.
    pub scores: Option<ScoreRecord>,
}

impl RoutingDecision {
    /// Creates a decision without a strategy: for one backend, by its row of a model.
    pub const fn direct(backend: BackendId, model: ModelId, row: u32) -> Self {
        Self {
            backend,
            model,
            row,
            strategy: Strategy::PriorityOnly,
            is_fallback: false,
            is_assumed: false,
            in_panic: false,
            spills: false,
            is_below_tier: false,
            is_quality_probe: false,
            candidates: 1,
            probe: Probe::None,
            scores: None,
        }
    }

    /// Returns the limits that the permit of its attempt must stay within.
    fn permit_limits(&self) -> PermitLimits {
        match (self.is_quality_probe, self.spills) {
            (true, _) => PermitLimits::Alone,
            (false, true) => PermitLimits::Backend,
            (false, false) => PermitLimits::All,
        }
    }

    /// Returns the picked candidate, in the topology of the decision.
    pub fn serving<'a>(&self, topology: &'a Topology) -> Option<&'a Serving> {
        topology.serving(self.model, self.row)
    }
}

#[cfg(test)]
mod tests;
