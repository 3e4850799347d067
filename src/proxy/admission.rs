//! The admission of a request whose model is known: the rights of its key, its objectives, its
//! policies, the holder of what it continues, and the money that it may cost.

use std::sync::Arc;

use http::HeaderMap;
use http::header::{HeaderName, HeaderValue};
use penstock_api::{ErrorCode, is_control_field};
use penstock_core::routing::{
    ModelAsked, PolicyScope, SessionIds, SessionNames, SplitPoint, read_objectives,
};
use penstock_scan::ResidencyChange;

use crate::auth::KeyOwner;
use crate::downstream::body::HeldBody;
use crate::proxy::allowed_models;
use crate::proxy::budgets;
use crate::proxy::failure::OwnError;
use crate::proxy::flow::{Flow, RequestContext};
use crate::proxy::policies;
use crate::proxy::request::{Named, ScannedRequest, fields_of, scan_error};

/// Records a request and its model, and reserves what it may cost.
///
/// # Errors
/// When the client's key may not use the model, or a budget has no room.
pub(crate) async fn admit(
    flow: &mut Flow<'_>,
    named: Named,
    body: HeldBody,
) -> Result<ScannedRequest, OwnError> {
    let mut request = examine(flow, named, body)?;
    if !flow.proxy.budgets.is_empty() {
        // Boxed: without budgets no request should carry room for it.
        Box::pin(budgets::reserve(flow, &mut request)).await?;
    }
    Ok(request)
}

fn examine(
    flow: &mut Flow<'_>,
    Named { profile, model, inserts_model }: Named,
    body: HeldBody,
) -> Result<ScannedRequest, OwnError> {
    let config = &flow.ctx.generation.config;
    let headers = &flow.client.head().headers;
    let fleet = flow.ctx.generation.fleet.topology();
    let router = &flow.ctx.generation.router;
    // Recorded before anything is refused, so that the log of a refusal names the model.
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
    if flow.ctx.is_limited_to_models() && !allowed_models::may_request(flow.ctx, &fleet, &model) {
        let message = format!("This key may not use model '{model}'");
        return Err(OwnError::new(ErrorCode::ModelNotAllowed, message).about(Some("model")));
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
    Ok(ScannedRequest {
        inserts_model,
        session,
        split,
        preferred,
        conversation,
        objectives,
        policy,
        ..ScannedRequest::new(profile, model, fleet, body)
    })
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
