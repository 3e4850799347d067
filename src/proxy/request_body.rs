//! The body of a request: read whole, under one timeout and a bound for all bodies together, then
//! scanned once for what routing needs.

use std::sync::Arc;

use http::HeaderMap;
use http::header::{self, HeaderName, HeaderValue};
use penstock_api::content_coding::ContentCoding;
use penstock_api::{Capabilities, ErrorCode, Operation, is_control_field};
use penstock_config::RequestUsage;
use penstock_core::fleet::BackendSet;
use penstock_core::routing::{ModelAsked, SessionIds, SessionNames, SplitPoint, read_objectives};
use penstock_dialect::has_svg;
use penstock_scan::{RequestProfile, ResidencyChange, ScanError, ScanOptions, scan};

use crate::downstream::body::{BodyError, BodyLength, HeldBody};
use crate::downstream::body_reader::BodyReader;
use crate::downstream::client::Client;
use crate::downstream::encoded_body::{DecodeBounds, decode};
use crate::proxy::allowed_models;
use crate::proxy::context::{RequestContext, RewriteKinds, ScannedRequest};
use crate::proxy::failure::OwnError;
use crate::proxy::flow::Flow;
use crate::proxy::long_work::beside_the_loop;
use crate::proxy::policies;
use crate::proxy::rewrite::context_shift::shift_of;
use crate::proxy::rewrite::kinds_of;

/// Fields about the bytes of an encoded body, which are wrong once it is decoded (RFC 9530).
const OF_ENCODED: [HeaderName; 4] = [
    header::CONTENT_ENCODING,
    HeaderName::from_static("content-digest"),
    HeaderName::from_static("repr-digest"),
    HeaderName::from_static("content-md5"),
];

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

fn fields_of<'a>(
    headers: &'a HeaderMap,
    name: &HeaderName,
) -> impl Iterator<Item = &'a [u8]> + use<'a> {
    headers.get_all(name).iter().map(HeaderValue::as_bytes)
}

/// A body that has been scanned.
pub(crate) struct Scanned {
    pub(crate) named: Named,
    /// True if the model's name is inserted into a body without one.
    inserts_model: bool,
}

impl Scanned {
    /// A request whose body names its model.
    pub(crate) fn named(named: Named) -> Self {
        Self { named, inserts_model: false }
    }
}

/// Scans the body; a large one beside the event loop.
///
/// # Errors
/// When the body is malformed.
pub(crate) fn scan_body(
    flow: &Flow<'_>,
    operation: Operation,
    body: &HeldBody,
) -> Result<Scanned, OwnError> {
    beside_the_loop(body.bytes.len(), || scan_here(flow, operation, body))
}

fn scan_here(flow: &Flow<'_>, operation: Operation, body: &HeldBody) -> Result<Scanned, OwnError> {
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
    Ok(Scanned { named: Named { profile, model }, inserts_model: requested.must_be_inserted })
}

/// Records the model and the parameters of a scanned request.
///
/// # Errors
/// When the client's key may not use the model.
pub(crate) fn admit_scanned(
    flow: &mut Flow<'_>,
    scanned: Scanned,
    body: HeldBody,
) -> Result<Box<ScannedRequest>, OwnError> {
    let Scanned { named, inserts_model } = scanned;
    let profile = named.profile;
    let request = admit(flow, named, body)?;
    let adds_usage = adds_usage(flow.ctx, &profile);
    let shift = shift_of(flow.ctx, &flow.client.head().headers, &profile);
    let request = ScannedRequest { inserts_model, adds_usage, shift, ..request };
    Ok(Box::new(ScannedRequest { kinds: kinds_of(&request), ..request }))
}

/// Returns whether the request's stream is to end with usage, although its client did not request
/// that.
fn adds_usage(ctx: &RequestContext, profile: &RequestProfile) -> bool {
    let ledger = &ctx.generation.config.ledger;
    // A limit of tokens should count those that the engine counts.
    let may_add = ledger.request_usage != RequestUsage::Never;
    profile.streaming
        && profile.usage_edit.is_some()
        && matches!(profile.operation, Operation::Chat | Operation::Completions)
        && (ledger.requests_usage() || (may_add && ctx.rate.counts_tokens()))
}

/// A request, and the model it is for.
pub(crate) struct Named {
    pub(crate) profile: RequestProfile,
    pub(crate) model: Arc<str>,
}

/// Records a request and its model.
///
/// # Errors
/// When the client's key may not use the model.
pub(crate) fn admit(
    flow: &mut Flow<'_>,
    Named { profile, model }: Named,
    body: HeldBody,
) -> Result<ScannedRequest, OwnError> {
    let config = &flow.ctx.generation.config;
    let headers = &flow.client.head().headers;
    let fleet = flow.ctx.generation.fleet.topology();
    let router = &flow.ctx.generation.router;
    flow.ctx.record.request.requested_model = Some(Arc::clone(&model));
    flow.ctx.record.request.prompt_tokens = Some(profile.prompt_tokens);
    let session = session_of(flow.ctx, headers, profile.session.of(&body.bytes));
    let split = split_of(flow.ctx, session);
    let target = router.names.resolve(&model, &fleet, split);
    let known = fleet.model_id(target).and_then(|id| fleet.model(id));
    flow.ctx.record.routing.model = known.map(|model| model.name.clone());
    flow.ctx.record.request.is_streaming = profile.streaming;
    flow.ctx.record.request.unloads_model =
        profile.residency_change == Some(ResidencyChange::Unload);
    if !allowed_models::may_request(flow.ctx, &fleet, &model) {
        let message = format!("This key may not use model '{model}'");
        return Err(OwnError::new(ErrorCode::ModelNotAllowed, message).about(Some("model")));
    }
    // Most requests have none of these fields, and one look at the names is cheaper than a look-up
    // of each.
    let has_objectives = headers.keys().any(is_control_field);
    let field =
        |name: &HeaderName| has_objectives.then(|| fields_of(headers, name)).into_iter().flatten();
    let named = known.map_or(target, |model| &*model.name);
    let objectives = read_objectives(config, field, flow.ctx.identity.as_deref(), named)
        .map_err(|error| OwnError::new(ErrorCode::InvalidRequest, error.to_string()))?;
    let asked = ModelAsked { name: &model, fleet: &fleet, split };
    let policy = policies::admit(flow.ctx, headers, &asked)?;
    let previous = profile.previous_response.of(&body.bytes);
    let preferred = flow.proxy.response_ids.backend_of(previous, flow.ctx.key_owner());
    let preferred = preferred.map_err(|error| error.about(Some("previous_response_id")))?;
    let conversation = profile.conversation.of(&body.bytes);
    let keeper =
        flow.proxy.response_ids.backend_of_conversation(conversation, flow.ctx.key_owner());
    let keeper = keeper.map_err(|error| error.about(Some("conversation")))?;
    let conversation = (!conversation.is_empty()).then(|| Box::from(conversation));
    Ok(ScannedRequest {
        profile,
        model,
        inserts_model: false,
        is_model_in_query: false,
        body: Some(body),
        fleet,
        session,
        split,
        tried: BackendSet::default(),
        may_probe: true,
        decision: None,
        moved: None,
        preferred: preferred.or(keeper),
        conversation,
        makes_stored: false,
        conversion: None,
        adds_usage: false,
        upgrade: None,
        shift: None,
        kinds: RewriteKinds::default(),
        deadline: None,
        objectives,
        policy,
    })
}

pub(crate) fn scan_error(error: &ScanError) -> OwnError {
    OwnError::new(error.code(), error.to_string()).about(error.param())
}

/// The value that selects the model of an alias that leads to several.
fn split_of(ctx: &RequestContext, session: Option<SessionIds>) -> SplitPoint {
    ctx.generation.router.split_point(session, ctx.client_id(), ctx.request_id().as_bytes())
}

/// The session of the request, if decisions read it. `body`: the session named in its body.
fn session_of(ctx: &RequestContext, headers: &HeaderMap, body: &[u8]) -> Option<SessionIds> {
    let headers = |name: &str| headers.get_all(name).iter().map(HeaderValue::as_bytes);
    ctx.generation.router.session(&SessionNames { headers, body, key: ctx.client_id() })
}
