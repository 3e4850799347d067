//! A request for a backend: its body is read whole, under one timeout and a bound for all bodies
//! together, then scanned once for what routing needs.

use std::sync::Arc;

use bytes::Bytes;
use http::HeaderMap;
use http::header::{self, HeaderName, HeaderValue};
use penstock_api::content_coding::ContentCoding;
use penstock_api::units::Timestamp;
use penstock_api::{Capabilities, ErrorCode, Operation, StreamFraming};
use penstock_core::fleet::{BackendId, BackendSet, InflightGuard, Topology};
use penstock_core::routing::{
    Capture, PolicyScope, RouteError, RoutingDecision, SessionIds, SplitPoint, Trace,
};
use penstock_dialect::has_svg;
use penstock_scan::{RequestProfile, ScanError, ScanOptions, UsageBounds, scan};
use penstock_scoring::Objectives;

use crate::downstream::body::{BodyError, BodyLength, HeldBody};
use crate::downstream::body_reader::BodyReader;
use crate::downstream::client::Client;
use crate::downstream::encoded_body::{DecodeBounds, decode};
use crate::proxy::conversion::Conversion;
use crate::proxy::failure::OwnError;
use crate::proxy::flow::{Flow, RequestContext};
use crate::proxy::shift_state::ShiftState;
use crate::upstream::response_monitor::ResponseMonitor;
use crate::wire::beside_the_loop;

/// Fields about the bytes of an encoded body, which are wrong once it is decoded (RFC 9530).
const OF_ENCODED: [HeaderName; 4] = [
    header::CONTENT_ENCODING,
    HeaderName::from_static("content-digest"),
    HeaderName::from_static("repr-digest"),
    HeaderName::from_static("content-md5"),
];

/// A request that has been read and scanned.
pub(crate) struct ScannedRequest {
    pub(crate) profile: RequestProfile,
    /// The requested model, decoded.
    pub(crate) model: Arc<str>,
    /// The model that the request gets in place of the requested one.
    pub(crate) instead: Option<Arc<str>>,
    /// True if the model's name is inserted into a body without one.
    pub(crate) inserts_model: bool,
    /// True if the query names the model, and the body does not.
    pub(crate) is_model_in_query: bool,
    /// The body; released once a response has started.
    pub(crate) body: Option<HeldBody>,
    pub(crate) fleet: Arc<Topology>,
    /// The backends that the next decision leaves out: each has been tried, or cannot take the
    /// request.
    pub(crate) tried: BackendSet,
    /// True if the request may go to a backend in cooldown to probe it.
    pub(crate) may_probe: bool,
    /// The session that the request names, if decisions read it.
    pub(crate) session: Option<SessionIds>,
    /// The value that selects the model of an alias that leads to several.
    pub(crate) split: SplitPoint,
    pub(crate) decision: Option<RoutingDecision>,
    /// The permit on the backend that the request is moved to.
    pub(crate) moved: Option<Box<Reserved>>,
    /// The backend that holds what the request continues; the first attempt goes there if it can.
    pub(crate) preferred: Option<BackendId>,
    /// The id of the request's conversation.
    pub(crate) conversation: Option<Box<[u8]>>,
    /// True if the engine keeps what the request makes, under an id in its response.
    pub(crate) makes_stored: bool,
    /// The request as converted for backends that do not serve its operation.
    pub(crate) conversion: Option<Box<Conversion>>,
    /// True if the client requests to switch to WebSocket (`Upgrade`).
    pub(crate) is_websocket: bool,
    /// The context shift, if the request may be shortened.
    pub(crate) shift: Option<Box<ShiftState>>,
    /// True if its stream is to end with usage, although its client did not request that.
    pub(crate) adds_usage: bool,
    /// The time by which the request must end, whatever the timeouts allow.
    pub(crate) must_end_by: Option<Timestamp>,
    pub(crate) objectives: Objectives,
    pub(crate) policy: PolicyScope,
}

impl ScannedRequest {
    /// Returns the model that decisions are about: the requested one, or the one in place of it.
    pub(crate) fn wanted_model(&self) -> &str {
        self.instead.as_deref().unwrap_or(&self.model)
    }

    /// The error if every backend of the model is full.
    pub(crate) fn saturated(&self) -> RouteError {
        RouteError::Saturated { model: self.wanted_model().to_owned() }
    }

    /// A request for a model, with nothing else known of it.
    pub(crate) fn new(
        profile: RequestProfile,
        model: Arc<str>,
        fleet: Arc<Topology>,
        body: HeldBody,
    ) -> Box<Self> {
        Box::new(Self {
            profile,
            model,
            instead: None,
            inserts_model: false,
            is_model_in_query: false,
            body: Some(body),
            fleet,
            tried: BackendSet::default(),
            may_probe: true,
            session: None,
            split: SplitPoint::default(),
            decision: None,
            moved: None,
            preferred: None,
            conversation: None,
            makes_stored: false,
            conversion: None,
            is_websocket: false,
            shift: None,
            adds_usage: false,
            must_end_by: None,
            objectives: Objectives::default(),
            policy: PolicyScope::default(),
        })
    }

    /// A request that is forwarded unread, for a backend rather than a model, under `policy`.
    pub(crate) fn direct(
        arrived_at: Timestamp,
        fleet: Arc<Topology>,
        body: HeldBody,
        policy: PolicyScope,
    ) -> Box<Self> {
        let profile = RequestProfile::opaque(Operation::Passthrough, arrived_at);
        let mut request = Self::new(profile, Arc::from(""), fleet, body);
        request.policy = policy;
        request
    }

    /// The request with its state.
    pub(crate) fn view<'a>(&'a self, ctx: &'a RequestContext) -> RequestView<'a> {
        RequestView { ctx, request: self }
    }

    /// Replaces the body, with its spans and estimates, and drops the conversion of the old one.
    /// Returns `None` if the new body cannot be read.
    pub(crate) fn replace_body(&mut self, ctx: &RequestContext, bytes: Vec<u8>) -> Option<()> {
        let body = self.body.as_mut()?;
        let estimate = ctx.generation.config.routing.token_estimate;
        let options = ScanOptions { estimate, arrived_at: ctx.arrived_at };
        let scanned = scan(self.profile.operation, None, &bytes, options);
        debug_assert!(scanned.is_ok(), "a body without some of its parts is still one");
        self.profile = scanned.ok()?;
        body.bytes = Bytes::from(bytes);
        self.conversion = None;
        Some(())
    }

    /// The monitor of the response, which is one of `operation`.
    pub(crate) fn monitor(
        &self,
        operation: Operation,
        stream: Option<StreamFraming>,
    ) -> ResponseMonitor {
        let serving = self.decision.as_ref().and_then(|decision| decision.serving(&self.fleet));
        let requested = self.profile.context_length;
        let context = serving.and_then(|serving| serving.context_for(requested));
        let has_own_prompts = serving.is_some_and(|serving| serving.engine().row().has_own_prompts);
        let bounds = UsageBounds::of(&self.profile, context);
        let bounds = if has_own_prompts { bounds.with_own_prompt() } else { bounds };
        let mut monitor = ResponseMonitor::new(operation, stream, bounds);
        monitor.expect_output(&self.profile);
        if self.makes_stored {
            monitor.watch_id();
        }
        if self.shift.is_some() {
            monitor.watch_length();
        }
        monitor
    }

    /// The body's bytes; empty once it has been released.
    pub(crate) fn body(&self) -> &[u8] {
        self.body.as_ref().map_or(&[], |held| &held.bytes)
    }
}

/// A request with its state, to read.
#[derive(Clone, Copy)]
pub(crate) struct RequestView<'a> {
    pub(crate) ctx: &'a RequestContext,
    pub(crate) request: &'a ScannedRequest,
}

/// The decision about a request, with its permit.
pub(crate) struct Decided {
    pub(crate) decision: RoutingDecision,
    pub(crate) permit: InflightGuard,
}

/// A decision whose permit has been taken, and that has not been reported.
pub(crate) struct Reserved {
    pub(crate) decided: Box<Decided>,
    /// The time of the decision.
    pub(crate) at: Timestamp,
    /// The inputs of the decision, if a capture or the shadow needs them.
    pub(crate) trace: Option<Trace>,
    /// The decision as a capture, if decisions are captured.
    pub(crate) captured: Option<Box<Capture>>,
}

/// Reads the body; a client that waits for `100 Continue` gets it first. A body that penstock looks
/// into is decoded, and its request loses the fields that say how it was encoded.
///
/// # Errors
/// When the body is too large, too slow, malformed, or does not fit beside the others.
pub(crate) async fn read_body(
    flow: &mut Flow<'_>,
    client: &Client,
    is_looked_into: bool,
) -> Result<HeldBody, BodyError> {
    let generation = Arc::clone(&flow.ctx.generation);
    let limits = &generation.config.limits;
    let headers = &flow.client.head().headers;
    let coding = match is_looked_into {
        true => ContentCoding::of(fields_of(headers, &header::CONTENT_ENCODING))?,
        false => None,
    };
    // Before `100 Continue`: a client does not send a body that is refused.
    flow.ctx.body_length.check(limits)?;
    if headers.contains_key(header::EXPECT) && flow.ctx.body_length != BodyLength::None {
        let written = flow.client.write_continue().await;
        written.map_err(|_gone| BodyError::ClientGone)?;
    }
    let body =
        BodyReader::new(client, limits, &flow.proxy.bodies).read(flow.ctx.body_length).await?;
    flow.ctx.body_is_read = true;
    if let Some(head) = flow.client.head_mut()
        && is_looked_into
    {
        // Also `identity`, and a field without a value.
        head.remove_header(&header::CONTENT_ENCODING);
        for name in OF_ENCODED.iter().filter(|_| coding.is_some()) {
            head.remove_header(name);
        }
    }
    let Some(coding) = coding else { return Ok(body) };
    let bounds = DecodeBounds { limits, budget: &flow.proxy.bodies };
    // Boxed: no other request should carry room for it.
    Box::pin(decode(body, coding, bounds, &flow.proxy.encoded)).await
}

pub(crate) fn fields_of<'a>(
    headers: &'a HeaderMap,
    name: &HeaderName,
) -> impl Iterator<Item = &'a [u8]> + use<'a> {
    headers.get_all(name).iter().map(HeaderValue::as_bytes)
}

/// Scans the body; a large one beside the event loop.
///
/// # Errors
/// When the body is malformed.
pub(crate) fn scan_body(
    flow: &Flow<'_>,
    operation: Operation,
    body: &HeldBody,
) -> Result<Named, OwnError> {
    beside_the_loop(body.bytes.len(), || scan_here(flow, operation, body))
}

fn scan_here(flow: &Flow<'_>, operation: Operation, body: &HeldBody) -> Result<Named, OwnError> {
    let config = &flow.ctx.generation.config;
    let headers = &flow.client.head().headers;
    let kind = headers.get(header::CONTENT_TYPE).and_then(|value| value.to_str().ok());
    let options =
        ScanOptions { estimate: config.routing.token_estimate, arrived_at: flow.ctx.arrived_at };
    let profile =
        scan(operation, kind, &body.bytes, options).map_err(|error| scan_error(&error))?;
    if profile.needs.contains(Capabilities::VISION) && has_svg(operation, &body.bytes) {
        let message = "SVG images are not supported: send PNG, JPEG or WebP";
        return Err(OwnError::new(ErrorCode::InvalidRequest, message));
    }
    let fleet = flow.ctx.generation.fleet.topology();
    let router = &flow.ctx.generation.router;
    let requested = router
        .requested_model(&profile, &body.bytes, &fleet)
        .map_err(|error| scan_error(&error))?;
    let model: Arc<str> = requested.name.as_ref().into();
    Ok(Named { profile, model, inserts_model: requested.must_be_inserted })
}

/// A request, and the model it is for.
pub(crate) struct Named {
    pub(crate) profile: RequestProfile,
    pub(crate) model: Arc<str>,
    /// True if the model's name is inserted into a body without one.
    pub(crate) inserts_model: bool,
}

pub(crate) fn scan_error(error: &ScanError) -> OwnError {
    OwnError::new(error.code(), error.to_string()).about(error.param())
}
