//! What a request carries through its life.

use std::net::IpAddr;
use std::sync::Arc;

use http::header::HeaderValue;

use crate::api::{Dialect, ErrorCode, Operation, TraceContext};
use crate::downstream::body::{BodyLength, HeldBody};
use crate::downstream::client::Client;
use crate::downstream::counted::Counted;
use crate::downstream::head_check::LoggedRequest;
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
    pub(crate) refused: Option<Box<LoggedRequest>>,
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
