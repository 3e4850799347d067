//! The policies that a request is under, and their errors.

use http::HeaderMap;
use http::header::HeaderValue;
use penstock_api::{ErrorCode, POLICY, STRICT};
use penstock_core::fleet::{Backend, Topology};
use penstock_core::routing::{
    ModelAsked, PolicyClient, PolicyError, PolicyScope, PolicyWishes, SplitPoint,
};

use crate::proxy::failure::OwnError;
use crate::proxy::flow::RequestContext;

/// Returns the policies that a request for a model is under, and keeps them for everything that is
/// done for it. A call of an ensemble is under those of its client's request and those of its
/// model.
///
/// # Errors
/// When the request wishes what its key may not have.
pub(crate) fn admit(
    ctx: &mut RequestContext,
    headers: &HeaderMap,
    asked: &ModelAsked<'_>,
) -> Result<PolicyScope, OwnError> {
    let router = &ctx.generation.router;
    if !ctx.has_policies() && !headers.contains_key(POLICY) && !headers.contains_key(STRICT) {
        return Ok(PolicyScope::default());
    }
    let scope = match ctx.policy {
        Some(of_client) => router.also_under(&of_client, asked),
        None => wishes_of(headers)
            .and_then(|wishes| router.policy_of(asked, &client_of(ctx), &wishes))
            .map_err(refused)?,
    };
    record(ctx, &scope);
    ctx.policy = Some(scope);
    Ok(scope)
}

/// Puts a request for an ensemble under the policies of the name that it asks for and of the model
/// behind it: the drafts of other models have the client's prompt, too.
///
/// # Errors
/// When the request wishes what its key may not have.
pub(crate) fn admit_ensemble(
    ctx: &mut RequestContext,
    headers: &HeaderMap,
    names: [&str; 2],
) -> Result<(), OwnError> {
    let fleet = ctx.generation.fleet.topology();
    for name in names {
        let asked = ModelAsked { name, fleet: &fleet, split: SplitPoint::default() };
        admit(ctx, headers, &asked)?;
    }
    Ok(())
}

/// Returns the policies of a request whose model is not read: all of its key, and the one that it
/// names.
///
/// # Errors
/// When the request wishes what its key may not have.
pub(crate) fn of_unread(
    ctx: &mut RequestContext,
    headers: &HeaderMap,
) -> Result<PolicyScope, OwnError> {
    let policies = &ctx.generation.router.policies;
    let wishes = wishes_of(headers).map_err(refused)?;
    let scope = policies.of_unread(&client_of(ctx), &wishes).map_err(refused)?;
    record(ctx, &scope);
    Ok(scope)
}

fn wishes_of(headers: &HeaderMap) -> Result<PolicyWishes<'_>, PolicyError> {
    PolicyWishes::read(|name| headers.get_all(name).iter().map(HeaderValue::as_bytes))
}

fn refused(error: PolicyError) -> OwnError {
    OwnError::new(ErrorCode::InvalidRequest, error.to_string())
}

fn record(ctx: &mut RequestContext, scope: &PolicyScope) {
    let name = scope.policy.and_then(|position| ctx.generation.router.policies.name(position));
    ctx.record.routing.policy = name.map(Box::from);
}

fn client_of(ctx: &RequestContext) -> PolicyClient<'_> {
    PolicyClient::of(ctx.identity.as_deref())
}

/// Returns whether a backend is in a zone that a request may reach.
pub(crate) fn admits(scope: &PolicyScope, fleet: &Topology, backend: &Backend) -> bool {
    let zone = backend.config.zone_name().map(|name| fleet.zones.id(name)).unwrap_or_default();
    scope.restriction.admits_zone(zone)
}

/// The error of a request for one backend that its policies do not admit.
pub(crate) fn not_admitted(scope: &PolicyScope, fleet: &Topology, backend: &str) -> OwnError {
    let what = format!("The model is not read, so every policy holds: backend '{backend}' is not");
    outside(scope, fleet, &what)
}

/// The error of a request that only backends outside its zones could take. `what` is the start of a
/// sentence about them.
pub(crate) fn outside(scope: &PolicyScope, fleet: &Topology, what: &str) -> OwnError {
    let zones: Vec<&str> = fleet.zones.names_in(scope.restriction.zones).collect();
    let zones = if zones.is_empty() { "none".to_owned() } else { zones.join(", ") };
    let message = format!("{what} in a zone that the request may reach ({zones})");
    OwnError::new(ErrorCode::NoBackendInZone, message).without_retry()
}
