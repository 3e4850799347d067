//! The admission of a request whose model is known: the rights of its key, its objectives, its
//! policies, the holder of what it continues, the money that it may cost, and the changes that it
//! allows.

use std::sync::Arc;

use http::HeaderMap;
use http::header::{HeaderName, HeaderValue};
use penstock_api::{ErrorCode, Operation, is_control_field};
use penstock_config::RequestUsage;
use penstock_core::routing::{
    ModelAsked, PolicyScope, SessionIds, SessionNames, ShiftTerms, SplitPoint, forbids_shift,
    read_objectives,
};
use penstock_scan::{RequestProfile, ResidencyChange};

use crate::auth::KeyOwner;
use crate::downstream::body::HeldBody;
use crate::proxy::failure::OwnError;
use crate::proxy::flow::{Flow, RequestContext};
use crate::proxy::request::{Named, ScannedRequest, fields_of, scan_error};
use crate::proxy::shift_state::ShiftState;
use crate::proxy::{allowed_models, budgets, policies};

/// Records a request and its model, and reserves what it may cost.
///
/// # Errors
/// When the client's key may not use the model, a budget has no room, or an objective or a field of
/// the policy is invalid.
pub(crate) async fn admit(
    flow: &mut Flow<'_>,
    named: Named,
    body: HeldBody,
) -> Result<Box<ScannedRequest>, OwnError> {
    let mut request = examine(flow, named, body)?;
    if !flow.proxy.budgets.is_empty() {
        // Boxed: without budgets no request should carry room for it.
        Box::pin(budgets::reserve(flow, &mut request)).await?;
    }
    // A call of an ensemble is sent as it is, or fails.
    if flow.client.takes_response() {
        request.shift = shift_of(flow, &request.profile);
        request.adds_usage = adds_usage(flow.ctx, &request.profile);
    }
    Ok(request)
}

fn examine(
    flow: &mut Flow<'_>,
    Named { profile, model, inserts_model }: Named,
    body: HeldBody,
) -> Result<Box<ScannedRequest>, OwnError> {
    let config = &flow.ctx.generation.config;
    let headers = &flow.client.head().headers;
    let fleet = flow.ctx.generation.fleet.topology();
    let router = &flow.ctx.generation.router;
    flow.ctx.record.request.requested_model = Some(Arc::clone(&model));
    flow.ctx.record.request.prompt_tokens = Some(profile.prompt_tokens);
    let session = session_of(flow.ctx, headers, profile.session.of(&body.bytes));
    let split = split_of(flow.ctx, session);
    let target = router.names.resolve(&model, &fleet, split);
    let known = fleet.model_named(target);
    flow.ctx.record.routing.model = known.map(|model| model.name.clone());
    flow.ctx.record.request.is_streaming = profile.streaming;
    flow.ctx.record.request.unloads_model =
        profile.residency_change == Some(ResidencyChange::Unload);
    if flow.ctx.is_limited_to_models() {
        allowed_models::check(flow.ctx, &fleet, &profile, &model, &body.bytes)?;
    }
    // Most requests have none of these fields, and one look at the names is cheaper than a look-up
    // of each.
    let has_wishes = headers.keys().any(is_control_field);
    let objectives = read_objectives(
        config,
        |name: &HeaderName| has_wishes.then(|| fields_of(headers, name)).into_iter().flatten(),
        flow.ctx.identity.as_deref(),
        known.map_or(target, |model| &*model.name),
    )
    .map_err(|error| OwnError::new(ErrorCode::InvalidRequest, error.to_string()))?;
    let asked = ModelAsked { name: &model, fleet: &fleet, split };
    let policy = match has_wishes || flow.ctx.has_policies() {
        true => policies::admit(flow.ctx, headers, &asked)?,
        false => PolicyScope::default(),
    };
    let owner = flow.ctx.key_owner();
    if owner != KeyOwner::ANYONE {
        // Only a plain id can be looked up, and an engine may read another value as one.
        profile.stored.check().map_err(|error| scan_error(&error))?;
    }
    let previous = profile.stored.previous_response.of(&body.bytes);
    let conversation = profile.stored.conversation.of(&body.bytes);
    let preferred = match (previous, conversation) {
        // Most requests continue nothing, and take no lock.
        ([], []) => None,
        (previous, conversation) => {
            flow.proxy.response_ids.holder_of(previous, conversation, owner)?
        }
    };
    let conversation = (!conversation.is_empty()).then(|| Box::from(conversation));
    let mut request = ScannedRequest::new(profile, model, fleet, body);
    request.inserts_model = inserts_model;
    request.session = session;
    request.split = split;
    request.preferred = preferred;
    request.conversation = conversation;
    request.objectives = objectives;
    request.policy = policy;
    Ok(request)
}

/// The value that selects the model of an alias that leads to several.
fn split_of(ctx: &RequestContext, session: Option<SessionIds>) -> SplitPoint {
    ctx.generation.router.split_point(session, ctx.client_id(), ctx.request_id().as_bytes())
}

/// The session of the request, if decisions read it. `body`: the session named in its body.
fn session_of(ctx: &RequestContext, headers: &HeaderMap, body: &[u8]) -> Option<SessionIds> {
    ctx.generation.router.session(&SessionNames {
        headers: |name: &str| headers.get_all(name).iter().map(HeaderValue::as_bytes),
        body,
        key: ctx.client_id(),
    })
}

/// The rules for shortening a request, if it may be shortened.
fn shift_of(flow: &Flow<'_>, profile: &RequestProfile) -> Option<Box<ShiftState>> {
    let (ctx, headers) = (&*flow.ctx, &flow.client.head().headers);
    let config = &ctx.generation.config;
    let terms = ShiftTerms {
        operation: profile.operation,
        model: ctx.record.routing.model.as_deref().and_then(|name| config.models.get(name)),
        of_client: ctx.identity.as_ref().and_then(|client| client.context_shift),
        context: profile.context_length,
    };
    let known = terms.shift()?;
    let headers = headers.iter().map(|(name, value)| (name.as_str(), value.as_bytes()));
    let may_shift = !forbids_shift(headers);
    may_shift.then(|| Box::new(ShiftState { known, ..ShiftState::default() }))
}

/// Returns whether a stream is to end with usage, although its client did not request that.
fn adds_usage(ctx: &RequestContext, profile: &RequestProfile) -> bool {
    let ledger = &ctx.generation.config.ledger;
    // A limit of tokens should count those that the engine counts.
    let may_add = ledger.request_usage != RequestUsage::Never;
    profile.streaming
        && profile.usage_edit.is_some()
        && matches!(profile.operation, Operation::Chat | Operation::Completions)
        && (ledger.requests_usage()
            || (may_add && ctx.rate.as_ref().is_some_and(|rate| rate.counts_tokens())))
}
