//! The backends that a command of an Ollama client goes to, and the client's right to give it.

use std::borrow::Cow;

use http::Uri;
use penstock_api::{ErrorCode, query_value};
use penstock_core::fleet::{Backend, Health, Topology};
use pingora::http::RequestHeader;

use crate::proxy::failure::OwnError;
use crate::proxy::flow::RequestContext;
use crate::proxy::policies;

/// The field that names one backend; so does `backend` in the query.
const BACKEND_FIELD: &str = "x-penstock-backend";

/// Returns whether the client may manage models.
pub(crate) fn may_manage(ctx: &RequestContext) -> bool {
    let client = ctx.identity.as_ref();
    ctx.generation.config.ollama.manage_models || client.is_some_and(|client| client.manage_models)
}

/// Checks that the client may manage models.
///
/// # Errors
/// When neither the configuration nor its key allows it.
pub(crate) fn check_right(ctx: &RequestContext) -> Result<(), OwnError> {
    if may_manage(ctx) {
        return Ok(());
    }
    let message = "Managing models is off: set ollama.manage_models, or manage_models of a key";
    Err(OwnError::new(ErrorCode::ManagementNotAllowed, message))
}

/// The Ollama backends in the order of the configuration, or the one that the request names.
///
/// # Errors
/// When there is none.
pub(crate) fn choose<'a>(
    ctx: &mut RequestContext,
    fleet: &'a Topology,
    head: &RequestHeader,
) -> Result<Vec<&'a Backend>, OwnError> {
    // A new model may hold a prompt and messages.
    let scope = policies::of_unread(ctx, &head.headers)?;
    if let Some(name) = named_backend(head) {
        let refused = |why: &str| {
            let message = format!("Backend '{name}' {why}");
            OwnError::new(ErrorCode::InvalidRequest, message).about(Some("backend"))
        };
        let backend = fleet.backend(&name).ok_or_else(|| refused("is not configured"))?;
        return match backend.is_ollama() {
            true if !policies::admits(&scope, fleet, backend) => {
                Err(policies::not_admitted(&scope, fleet, &name))
            }
            true => Ok(vec![backend]),
            false => Err(refused("is no Ollama")),
        };
    }
    let mut all: Vec<&Backend> = fleet.backends.iter().filter(|one| one.is_ollama()).collect();
    let outside = all.iter().copied().find(|one| !policies::admits(&scope, fleet, one));
    all.retain(|one| policies::admits(&scope, fleet, one));
    if let Some(backend) = outside.filter(|_| all.is_empty()) {
        return Err(policies::not_admitted(&scope, fleet, &backend.config.name));
    }
    if all.is_empty() {
        let message = "No backend is an Ollama, and other engines do not manage models";
        return Err(OwnError::new(ErrorCode::NoOllamaBackend, message));
    }
    Ok(all)
}

/// Returns whether a backend can be sent a command. One that is down fails the command without
/// being tried.
pub(crate) fn is_up(backend: &Backend) -> bool {
    backend.state.status() != Health::Unhealthy
}

fn named_backend(head: &RequestHeader) -> Option<Cow<'_, str>> {
    let field = head.headers.get(BACKEND_FIELD).and_then(|value| value.to_str().ok());
    field.map(Cow::Borrowed).or_else(|| query_backend(&head.uri).map(Cow::Owned))
}

fn query_backend(uri: &Uri) -> Option<String> {
    query_value(uri.query()?, "backend")
}
