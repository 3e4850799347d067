//! What a request carries through its life.

use std::net::IpAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use bytes::{Bytes, BytesMut};
use http::header::HeaderValue;

use crate::api::{Dialect, ErrorCode, Operation, TraceContext};
use crate::downstream::body::BodyLength;
use crate::downstream::client::Client;
use crate::downstream::head_check::Asked;
use crate::fleet::{BackendId, BackendSet, Outcome, Topology};
use crate::routing::Generation;
use crate::routing::RoutingDecision;
use crate::scan::RequestProfile;
use crate::units::{Timestamp, TokenCount};

/// The state of one request.
pub struct RequestContext {
    pub(crate) generation: Arc<Generation>,
    pub(crate) arrived_at: Timestamp,
    pub(crate) request_id: HeaderValue,
    pub(crate) trace: Option<TraceContext>,
    pub(crate) dialect: Dialect,
    pub(crate) operation: Option<Operation>,
    /// Position of the client's key in the configuration.
    pub(crate) key: Option<usize>,
    pub(crate) client: Option<Client>,
    /// Who asks, as far as proxies that are trusted say so; `None` over a Unix socket.
    pub(crate) client_address: Option<IpAddr>,
    /// How the body is framed; Pingora's own view of it is taken away.
    pub(crate) body_length: BodyLength,
    pub(crate) body_is_read: bool,
    /// Hash of the key, else of the address: who saw a fault.
    pub(crate) client_hash: u64,
    /// The client's Origin, when it is one that may read the answer.
    pub(crate) cors_origin: Option<HeaderValue>,
    pub(crate) ending: Ending,
    pub(crate) _counted: Counted,
}

/// What `finish` tells the observers, gathered on the way.
#[derive(Default)]
pub(crate) struct Ending {
    pub(crate) is_streaming: bool,
    /// The model asked for, as the client wrote it.
    pub(crate) asked: Option<Arc<str>>,
    pub(crate) model: Option<Box<str>>,
    pub(crate) backend: Option<(BackendId, Box<str>)>,
    pub(crate) provider: Option<&'static str>,
    pub(crate) status: u16,
    pub(crate) code: Option<ErrorCode>,
    pub(crate) outcome: Option<Outcome>,
    pub(crate) is_fallback: bool,
    pub(crate) attempts: u32,
    pub(crate) first_token: Option<Timestamp>,
    pub(crate) usage: Option<crate::scan::Usage>,
    pub(crate) token_events: u32,
    /// The tokens of the prompt that the engine was believed to have cached, where it says how many
    /// it had.
    pub(crate) expected_cached: Option<u32>,
    pub(crate) estimated_tokens: Option<TokenCount>,
    /// Bytes of the request's body.
    pub(crate) bytes_in: usize,
    /// What a head asked for that nobody else has seen.
    pub(crate) refused: Option<Box<Asked>>,
}

/// A request that has been read, scanned, and is on its way to a backend.
pub(crate) struct Call {
    pub(crate) profile: RequestProfile,
    /// The model asked for, decoded.
    pub(crate) model: Arc<str>,
    /// The body; gone once an answer has begun.
    pub(crate) body: Option<HeldBody>,
    pub(crate) fleet: Arc<Topology>,
    pub(crate) tried: BackendSet,
    /// A hash of what names the session it belongs to, where that counts.
    pub(crate) session: Option<u64>,
    pub(crate) decision: Option<RoutingDecision>,
}

/// A request or connection under way, counted for as long as it lives.
pub(crate) struct Counted(Arc<AtomicUsize>);

impl Counted {
    pub(crate) fn new(counter: &Arc<AtomicUsize>) -> Self {
        counter.fetch_add(1, Ordering::AcqRel);
        Self(Arc::clone(counter))
    }

    /// How many there are, this one included.
    pub(crate) fn count(&self) -> usize {
        self.0.load(Ordering::Acquire)
    }
}

impl Drop for Counted {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::AcqRel);
    }
}

/// Bounds the bodies held by all requests together.
#[derive(Debug, Default)]
pub(crate) struct BodyBudget {
    held: AtomicUsize,
}

impl BodyBudget {
    /// Bytes held now.
    pub(crate) fn held(&self) -> usize {
        self.held.load(Ordering::Relaxed)
    }

    fn try_take(&self, bytes: usize, limit: usize) -> bool {
        let added = self.held.fetch_update(Ordering::AcqRel, Ordering::Relaxed, |held| {
            held.checked_add(bytes).filter(|sum| *sum <= limit)
        });
        added.is_ok()
    }
}

/// A claim on the budget of bodies, given back when dropped.
pub(crate) struct BodyClaim {
    budget: Arc<BodyBudget>,
    bytes: usize,
    limit: usize,
}

impl BodyClaim {
    /// Claims room for a body of `bytes`, or `None` when `limit` is reached.
    pub(crate) fn take(budget: &Arc<BodyBudget>, bytes: usize, limit: usize) -> Option<Self> {
        budget.try_take(bytes, limit).then(|| Self { budget: Arc::clone(budget), bytes, limit })
    }

    /// Claims more room as a body of unknown length grows; returns whether there is any.
    pub(crate) fn grow_to(&mut self, bytes: usize) -> bool {
        let more = bytes.saturating_sub(self.bytes);
        let granted = more == 0 || self.budget.try_take(more, self.limit);
        if granted {
            self.bytes += more;
        }
        granted
    }
}

impl Drop for BodyClaim {
    fn drop(&mut self) {
        self.budget.held.fetch_sub(self.bytes, Ordering::AcqRel);
    }
}

/// A body read whole, with its claim on the budget.
pub(crate) struct HeldBody {
    pub(crate) bytes: Bytes,
    pub(crate) _claim: BodyClaim,
}

impl HeldBody {
    pub(crate) fn new(bytes: BytesMut, claim: BodyClaim) -> Self {
        Self { bytes: bytes.freeze(), _claim: claim }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn claims_never_exceed_the_budget_and_are_given_back() {
        let budget = Arc::new(BodyBudget::default());
        let mut first = BodyClaim::take(&budget, 60, 100).unwrap();
        assert!(BodyClaim::take(&budget, 50, 100).is_none());
        assert!(first.grow_to(100));
        assert!(!first.grow_to(101));
        assert_eq!(budget.held(), 100);
        drop(first);
        assert_eq!(budget.held(), 0);
    }
}
