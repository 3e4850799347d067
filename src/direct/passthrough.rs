//! Requests for paths that `routing.passthrough` forwards: to one backend, or to a backend of the
//! model that the body or the query names. The body is forwarded as it came.

use std::time::Duration;

use http::Method;
use penstock_api::{ErrorCode, percent_decode};
use penstock_core::fleet::{Health, Topology};
use penstock_core::routing::{PolicyScope, RoutingDecision, Way};
use penstock_scan::ModelForm;
use pingora::http::RequestHeader;

use crate::direct::ambiguous_fields::{ambiguous, read_unknown};
use crate::direct::kept::Kept;
use crate::direct::path_model::PathModel;
use crate::direct::{DirectTerms, attempt_directly, decide_for, end_directly};
use crate::downstream::body::HeldBody;
use crate::proxy::admission::admit;
use crate::proxy::failure::OwnError;
use crate::proxy::flow::{Flow, Served};
use crate::proxy::own_response::send_error;
use crate::proxy::request::{Named, ScannedRequest, scan_error};
use crate::proxy::retry::serve;
use crate::proxy::return_time::{fingerprint, time_of_backend};
use crate::proxy::{budgets, policies};
use crate::upstream::query_model::query_model;

/// Forwards a request along `way`.
pub(crate) async fn serve_passthrough(flow: &mut Flow<'_>, way: &Way, body: HeldBody) -> Served {
    let name = match way {
        Way::ByModel => {
            return match by_model(flow, body).await {
                Ok(request) => serve(flow, request).await,
                Err(error) => send_error(flow, error).await,
            };
        }
        Way::Backend(name) => name,
    };
    let fleet = flow.ctx.generation.fleet.topology();
    let (decision, policy) = match decide_by_name(flow, &fleet, name) {
        Ok(decided) => decided,
        Err(error) => return send_error(flow, error).await,
    };
    let kept = match Kept::of(flow, &body.bytes) {
        Ok(kept) => kept,
        Err(error) => return send_error(flow, error).await,
    };
    // After the checks: a request that is refused anyway takes no place in a budget.
    if let Err(error) = budgets::reserve_unread(flow, &fleet, decision.backend).await {
        return send_error(flow, error).await;
    }
    let mut request = ScannedRequest::direct(flow.ctx.arrived_at, fleet, body, policy);
    (request.conversation, request.makes_stored) = (kept.conversation, kept.is_made);
    let terms = DirectTerms { may_miss: false, is_limited: true };
    match attempt_directly(flow, &mut request, &decision, terms).await {
        Some(end) => end_directly(flow, end).await,
        None => {
            let again = fingerprint(request.view(flow.ctx));
            let wait = time_of_backend(flow.proxy, &request.fleet, &decision, again);
            send_error(flow, is_busy(name, wait)).await
        }
    }
}

/// The error of a backend at its limit of requests in flight, which has room after `wait`.
pub(crate) fn is_busy(name: &str, wait: Option<Duration>) -> OwnError {
    let message = format!("Backend '{name}' is at its limit of requests in flight");
    OwnError::new(ErrorCode::AllBackendsBusy, message).after_known(wait)
}

/// A decision for the backend called `name`, and the policies of the request.
///
/// # Errors
/// When the client's key is limited to models, or the backend may not or cannot take the request.
pub(crate) fn decide_by_name(
    flow: &mut Flow<'_>,
    fleet: &Topology,
    name: &str,
) -> Result<(RoutingDecision, PolicyScope), OwnError> {
    let scope = policies::of_unread(flow.ctx, &flow.client.head().headers)?;
    if flow.ctx.is_limited_to_models() {
        let message = "This key is limited to models, and this path names none";
        return Err(OwnError::new(ErrorCode::ModelNotAllowed, message));
    }
    let backend = fleet.backend(name);
    if backend.is_some_and(|backend| !policies::admits(&scope, fleet, backend)) {
        return Err(policies::not_admitted(&scope, fleet, name));
    }
    let decision = backend.and_then(|backend| decide_for(fleet, backend.state.id));
    let takes = backend
        .is_some_and(|backend| matches!(backend.state.status(), Health::Healthy | Health::Unknown));
    decision.filter(|_| takes).map(|decision| (decision, scope)).ok_or_else(|| {
        let message = format!("Backend '{name}' cannot take requests now");
        let wait =
            decision.and_then(|decision| time_of_backend(flow.proxy, fleet, &decision, None));
        OwnError::new(ErrorCode::NoHealthyBackend, message).after_known(wait)
    })
}

/// The request with the model it is for: named in the body, the query or the path, else the
/// default.
///
/// # Errors
/// When there is none, or the client's key may not use it.
pub(crate) async fn by_model(
    flow: &mut Flow<'_>,
    body: HeldBody,
) -> Result<Box<ScannedRequest>, OwnError> {
    let profile = read_unknown(flow, &body.bytes)?;
    let fleet = flow.ctx.generation.fleet.topology();
    let generation = std::sync::Arc::clone(&flow.ctx.generation);
    let uri = &flow.client.head().uri;
    let in_query = query_model(uri);
    if in_query.is_some() && profile.model_form != ModelForm::Missing {
        return Err(ambiguous("model", "in the query and in the body"));
    }
    let is_model_in_query = in_query.is_some();
    let in_path = PathModel::of(uri.path());
    let model: std::sync::Arc<str> = match (in_query, &in_path) {
        (Some(model), _) => model.into(),
        (None, Some(named)) if !profile.names_model() => named.name(&fleet).into(),
        (None, _) => {
            let requested = generation.router.requested_model(&profile, &body.bytes, &fleet);
            requested.map_err(|error| scan_error(&error))?.name.as_ref().into()
        }
    };
    if in_path.is_some_and(|named| !named.is(&model, &fleet)) {
        return Err(ambiguous("model", "in the path, with another value"));
    }
    // Before the admission, which reserves money.
    let kept = Kept::of(flow, &body.bytes)?;
    let mut request = admit(flow, Named { profile, model, inserts_model: false }, body).await?;
    request.is_model_in_query = is_model_in_query;
    // The path may name a conversation that the body does not.
    request.conversation = kept.conversation.or(request.conversation);
    request.makes_stored = kept.is_made;
    Ok(request)
}

/// Returns whether a request deletes a model: fine-tuned ones are deleted at OpenAI's path.
pub(crate) fn deletes_model(head: &RequestHeader) -> bool {
    let mut parts = head
        .uri
        .path()
        .split('/')
        .skip_while(|part| !percent_decode(part).eq_ignore_ascii_case("models"));
    head.method == Method::DELETE && parts.nth(1).is_some_and(|model| !model.is_empty())
}
