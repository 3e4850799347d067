//! Requests for paths that `routing.passthrough` forwards: to one backend, or to a backend of the model
//! that the body or the query names. The body is forwarded as it came.

use pingora_proxy::Session;

use crate::api::{ErrorCode, Operation};
use crate::config::AuthConfig;
use crate::downstream::body::HeldBody;
use crate::fleet::{Health, Topology};
use crate::proxy::Proxy;
use crate::proxy::context::{RequestContext, ScannedRequest, Served};
use crate::proxy::direct::{DirectTerms, attempt_directly, decide_for, end_directly};
use crate::proxy::failure::OwnError;
use crate::proxy::own_response::send_error;
use crate::proxy::request_body::{Named, admit, scan_error};
use crate::proxy::retry::serve;
use crate::proxy::target::query_model;
use crate::routing::{RoutingDecision, Way};
use crate::scan::{RequestProfile, ScanOptions, scan};

/// Forwards a request along `way`.
pub(crate) async fn serve_passthrough(
    proxy: &Proxy,
    session: &mut Session,
    ctx: &mut RequestContext,
    way: &Way,
    body: HeldBody,
) -> Served {
    let name = match way {
        Way::ByModel => {
            return match by_model(proxy, session, ctx, body) {
                Ok(request) => serve(proxy, session, ctx, Box::new(request)).await,
                Err(error) => send_error(proxy, session, ctx, error).await,
            };
        }
        Way::Backend(name) => name,
    };
    let fleet = ctx.generation.fleet.topology();
    let decision = match decide_by_name(ctx, &fleet, name) {
        Ok(decision) => decision,
        Err(error) => return send_error(proxy, session, ctx, error).await,
    };
    let mut request = ScannedRequest::direct(ctx, Operation::Passthrough, fleet, body);
    let terms = DirectTerms { may_miss: false, is_limited: true };
    match attempt_directly(proxy, session, ctx, &mut request, &decision, terms).await {
        Some(end) => end_directly(proxy, session, ctx, end).await,
        None => send_error(proxy, session, ctx, is_busy(name)).await,
    }
}

/// The error of a backend with as many requests in flight as it may have.
pub(crate) fn is_busy(name: &str) -> OwnError {
    let message = format!("Backend '{name}' is at its limit of requests in flight");
    OwnError::new(ErrorCode::AllBackendsBusy, message)
}

/// A decision for the backend called `name`.
///
/// # Errors
/// When the client's key is limited to models, or the backend cannot take requests.
pub(crate) fn decide_by_name(
    ctx: &RequestContext,
    fleet: &Topology,
    name: &str,
) -> Result<RoutingDecision, OwnError> {
    if has_limited_models(&ctx.generation.config.auth, ctx.key) {
        let message = "This key is limited to models, and this path names none";
        return Err(OwnError::new(ErrorCode::ModelNotAllowed, message));
    }
    let backend = fleet.backend(name);
    let takes = backend
        .filter(|backend| matches!(backend.state.status(), Health::Healthy | Health::Unknown));
    let decision = takes.and_then(|backend| decide_for(fleet, backend.state.id));
    decision.ok_or_else(|| {
        let message = format!("Backend '{name}' cannot take requests now");
        OwnError::new(ErrorCode::NoHealthyBackend, message)
    })
}

fn has_limited_models(auth: &AuthConfig, key: Option<usize>) -> bool {
    let client = key.and_then(|position| auth.keys.get(position));
    client.is_some_and(|client| !client.models.is_empty())
}

/// The request with the model it is for: named in a JSON body, else in the query, else the default.
///
/// # Errors
/// When there is none, or the client's key may not use it.
pub(crate) fn by_model(
    proxy: &Proxy,
    session: &Session,
    ctx: &mut RequestContext,
    body: HeldBody,
) -> Result<ScannedRequest, OwnError> {
    let options = ScanOptions {
        estimate: ctx.generation.config.routing.token_estimate,
        arrived_at: ctx.arrived_at,
    };
    let is_object = body.bytes.trim_ascii_start().starts_with(b"{");
    let scanned = is_object.then(|| scan(Operation::Passthrough, None, &body.bytes, options));
    let profile = match scanned {
        Some(Ok(profile)) => profile,
        Some(Err(_)) | None => RequestProfile::opaque(Operation::Passthrough, ctx.arrived_at),
    };
    let fleet = ctx.generation.fleet.topology();
    let generation = std::sync::Arc::clone(&ctx.generation);
    let uri = &session.req_header().uri;
    let in_query = query_model(uri).filter(|_| !profile.names_model());
    let is_model_in_query = in_query.is_some();
    let model = match in_query {
        Some(model) => model.into(),
        None => {
            let requested = generation.router.requested_model(&profile, &body.bytes, &fleet);
            requested.map_err(|error| scan_error(&error))?.name.as_ref().into()
        }
    };
    let request = admit(proxy, session, ctx, Named { profile, model }, body)?;
    Ok(ScannedRequest { is_model_in_query, ..request })
}
