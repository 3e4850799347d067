//! The head of a request: it is identified, checked, and served where no backend is needed, before
//! its body is read.

mod key_error;
mod query_check;

use std::sync::Arc;

use http::header::{self, HeaderName, HeaderValue};
use http::{HeaderMap, Method};
use penstock_api::{
    Dialect, ErrorCode, FAIRNESS_ID, ModelCommand, OllamaRoute, Operation, TRACEPARENT,
    TraceContext, UsageCall,
};
use penstock_config::{Compat, Config, Cors, FairnessId, TracingConfig};
use penstock_core::fleet::Owner;
use penstock_core::routing::Way;

use crate::auth::{KeyFailure, identify_client, without_query_key};
use crate::data_port::local_response::{send_local, send_preflight};
use crate::data_port::request_head::key_error::key_error;
use crate::data_port::request_head::query_check::check_query;
use crate::data_port::target::PathTarget;
use crate::data_port::unknown_path;
use crate::direct::passthrough::deletes_model;
use crate::direct::tunnel::requests_websocket;
use crate::downstream::body::BodyLength;
use crate::downstream::client::Client;
use crate::downstream::head_check::MAX_TARGET;
use crate::ollama::broadcast::check_right;
use crate::proxy::failure::OwnError;
use crate::proxy::flow::{Flow, Served};
use crate::proxy::own_response::{error_response, send, send_error};
use crate::seeds::Seeds;
use crate::tokens::TokenRefusal;
use crate::upstream::headers::{REQUEST_ID, is_key};

const MAX_REQUEST_ID: usize = 128;

/// A request that needs a backend.
pub(crate) enum Forwarded {
    Operation(Operation),
    Usage(UsageCall),
    StoredResponse {
        id: Box<str>,
    },
    /// Ollama's `/api/show`.
    Show,
    Command(ModelCommand),
    /// `/api/blobs/{digest}`, whose body is not held.
    Blob,
    Passthrough(Way),
}

impl Forwarded {
    /// The request to a target that needs a backend; `None` for any other.
    fn to(target: PathTarget<'_>) -> Option<Self> {
        Some(match target {
            PathTarget::Operation(operation) => Self::Operation(operation),
            PathTarget::Usage(call) => Self::Usage(call),
            PathTarget::StoredResponse { id, .. } => Self::StoredResponse { id: id.into() },
            PathTarget::Passthrough(way) => Self::Passthrough(way.clone()),
            PathTarget::Ollama(OllamaRoute::Show) => Self::Show,
            PathTarget::Ollama(OllamaRoute::Command(command)) => Self::Command(command),
            PathTarget::Ollama(OllamaRoute::Blob(_)) => Self::Blob,
            PathTarget::Models
            | PathTarget::Model(_)
            | PathTarget::Health
            | PathTarget::Root
            | PathTarget::Ollama(
                OllamaRoute::Version
                | OllamaRoute::Status
                | OllamaRoute::Tags
                | OllamaRoute::Loaded
                | OllamaRoute::LoadedDetails,
            )
            | PathTarget::Unknown => return None,
        })
    }

    /// Returns whether penstock looks into the body, so that it has to be decoded. Other bodies are
    /// passed on as they came.
    pub(crate) fn is_looked_into(&self) -> bool {
        !matches!(self, Self::Blob | Self::Passthrough(Way::Backend(_)))
    }
}

/// Responds to a request that needs no backend. Returns one that does, with nothing but its head
/// read so far.
pub(crate) async fn read_head(flow: &mut Flow<'_>) -> pingora::Result<Option<Forwarded>> {
    identify(flow);
    let path = flow.client.head().uri.path().to_owned();
    let generation = Arc::clone(&flow.ctx.generation);
    let compat = generation.config.server.compat;
    let method = flow.client.head().method.clone();
    let target = PathTarget::of(&method, &path, &generation.router.passthrough, compat);
    classify(flow, target, &path);
    let mut checked = check_head(flow, target);
    if awaits_keys(flow).await {
        checked = check_head(flow, target);
    }
    if let Some(failure) = flow.ctx.key_failure {
        flow.proxy.keys.count(failure);
    }
    if flow.ctx.key_failure.is_some_and(KeyFailure::is_a_guess) {
        flow.proxy.keys.slow_down(&generation.config, flow.ctx.client_address).await;
    }
    // After the check, which reads the key, and before anything forwards or logs the query.
    if compat == Compat::Nomyo
        && let Some(head) = flow.client.head_mut()
        && let Some(uri) = without_query_key(&head.uri)
    {
        head.set_uri(uri);
    }
    match checked {
        Err(error) if error.code == ErrorCode::MethodNotAllowed => {
            send_wrong_method(flow, target, error).await?;
        }
        Err(error) => send_error(flow, error).await?,
        Ok(()) if flow.client.head().method == Method::OPTIONS => {
            send_preflight(flow, target).await?;
        }
        Ok(()) => match Forwarded::to(target) {
            Some(forwarded) => return Ok(Some(forwarded)),
            None => send_local(flow, target).await?,
        },
    }
    Ok(None)
}

/// Waits for the keys of the token's issuer if they are being fetched. Returns whether they have
/// come: a token that was signed with a new key is checked again.
async fn awaits_keys(flow: &mut Flow<'_>) -> bool {
    let Some(KeyFailure::Token(
        TokenRefusal::UnknownKey { issuer } | TokenRefusal::NoKeys { issuer },
    )) = flow.ctx.key_failure
    else {
        return false;
    };
    let have_come = flow.proxy.keys.tokens().wait_for_keys(issuer).await;
    if have_come {
        flow.ctx.key_failure = None;
    }
    have_come
}

/// Records the operation and the dialect of a request.
fn classify(flow: &mut Flow<'_>, target: PathTarget<'_>, path: &str) {
    let is_forwarded = matches!(
        target,
        PathTarget::Ollama(OllamaRoute::Show | OllamaRoute::Command(_) | OllamaRoute::Blob(_))
            | PathTarget::StoredResponse { .. }
            | PathTarget::Passthrough(_)
    );
    if is_forwarded {
        flow.ctx.operation = Some(Operation::Passthrough);
    }
    if let PathTarget::Operation(operation) = target {
        flow.ctx.operation = Some(operation);
        flow.ctx.dialect = operation.row().dialect;
    } else {
        flow.ctx.dialect = match target {
            // Both APIs have this path; Anthropic's clients always send their version.
            PathTarget::Models | PathTarget::Model(_) => {
                Dialect::of_headers(&flow.client.head().headers)
                    .unwrap_or_else(|| Dialect::of_path(path.as_bytes()))
            }
            _ => Dialect::of_path(path.as_bytes()),
        };
    }
}

fn identify(flow: &mut Flow<'_>) {
    let headers = &flow.client.head().headers;
    let config = &flow.ctx.generation.config;
    flow.ctx.trace = trace_of(headers, &config.tracing, &flow.proxy.seeds);
    flow.ctx.request_id =
        given_request_id(headers).unwrap_or_else(|| flow.proxy.seeds.next_request_id());
    if let Cors::Origins(allowed) = &config.server.cors {
        let origin = headers.get(header::ORIGIN).filter(|origin| {
            allowed.iter().any(|name| name == "*" || name.as_bytes() == origin.as_bytes())
        });
        flow.ctx.cors_origin = origin.cloned();
    }
}

/// Checks whether the request may go on, by its head alone.
fn check_head(flow: &mut Flow<'_>, target: PathTarget<'_>) -> Result<(), OwnError> {
    let head = flow.client.head();
    let config = &flow.ctx.generation.config;
    let has_body = flow.ctx.body_length != BodyLength::None;
    if head.raw_path().len() > MAX_TARGET {
        let message = "The request target is longer than 16 KiB";
        return Err(OwnError::new(ErrorCode::UriTooLong, message).closing());
    }
    let limit = config.limits.max_headers;
    if head.headers.len() > limit {
        let message = format!("More than {limit} header fields (limits.max_headers)");
        return Err(OwnError::new(ErrorCode::HeadTooLarge, message).closing());
    }
    // A body that is not going to be read ends the connection with the response.
    if target == PathTarget::Unknown {
        let path = head.uri.path();
        let passthrough = &flow.ctx.generation.router.passthrough;
        let mistake = unknown_path::hint(path, passthrough, config.server.compat);
        let hint = flow.ctx.dialect.row().unknown_path_hint;
        let message = format!("Unknown path: {}{mistake}{hint}", shown(path));
        return Err(OwnError::new(ErrorCode::UnknownPath, message).closing_if(has_body));
    }
    let has_cors = !matches!(config.server.cors, Cors::Off);
    let is_preflight = head.method == Method::OPTIONS && has_cors;
    if matches!(target, PathTarget::Operation(_)) && requests_websocket(head) {
        let message = "This path is served over HTTP, without a WebSocket: send a POST";
        return Err(OwnError::new(ErrorCode::UpgradeRequired, message).closing_if(has_body));
    }
    if !is_preflight && !target.takes(&head.method) {
        let message = format!("{} takes {}", shown(head.uri.path()), target.allowed(has_cors));
        return Err(OwnError::new(ErrorCode::MethodNotAllowed, message).closing_if(has_body));
    }
    // Two parsers may pick different fields: penstock must not check one key and an engine another.
    if let Some(name) = repeated_key(&head.headers) {
        let message = format!("There must be at most one {name} field");
        return Err(OwnError::new(ErrorCode::InvalidRequest, message).closing());
    }
    let certificate = flow.ctx.client.as_ref().and_then(Client::certificate);
    if !is_preflight && !target.is_public() {
        match identify_client(&flow.proxy.keys, &flow.ctx.generation, head, certificate) {
            Ok(client) => flow.ctx.identity = client,
            Err(failure) => {
                flow.ctx.key_failure = Some(failure);
                let error = key_error(failure, config.server.compat);
                return Err(OwnError { closes: has_body, ..error });
            }
        }
    } else if config.server.compat == Compat::Nomyo {
        // A public page may say more to those who send a key.
        let client = identify_client(&flow.proxy.keys, &flow.ctx.generation, head, certificate);
        flow.ctx.identity = client.ok().flatten();
    }
    if let Some(query) = head.uri.query() {
        check_query(query, target).map_err(|error| error.closing_if(has_body))?;
    }
    if matches!(target, PathTarget::Passthrough(_)) && deletes_model(head) {
        check_right(flow.ctx).map_err(|error| error.closing_if(has_body))?;
    }
    flow.ctx.requester.client =
        flow.proxy.seeds.hash_client(flow.ctx.client_id(), flow.ctx.client_address);
    flow.ctx.requester.credential = flow.proxy.seeds.hash_credential(&head.headers);
    flow.ctx.requester.owner = owner_of(flow, config, &head.headers);
    Ok(())
}

/// Responds to a method that the path does not take.
async fn send_wrong_method(flow: &mut Flow<'_>, target: PathTarget<'_>, error: OwnError) -> Served {
    let mut response = error_response(flow.ctx, &error)?;
    let has_cors = !matches!(flow.ctx.generation.config.server.cors, Cors::Off);
    response.head.insert_header(header::ALLOW, target.allowed(has_cors))?;
    send(flow, response).await
}

/// The owner of the request's turn: its client, or the tenant that a trusted client names. The
/// weight is that of the key.
fn owner_of(flow: &Flow<'_>, config: &Config, headers: &HeaderMap) -> Owner {
    let named = match config.queue.fairness_id {
        FairnessId::Off => None,
        FairnessId::Header => headers.get(FAIRNESS_ID),
    };
    let id =
        named.map_or(flow.ctx.requester.client, |id| flow.proxy.seeds.hash_tenant(id.as_bytes()));
    let client = flow.ctx.identity.as_ref();
    Owner { id, weight: client.map_or(1, |client| client.weight) }
}

/// Finds a repeated field that carries a key. The map has the values of one name in a row.
fn repeated_key(headers: &HeaderMap) -> Option<&HeaderName> {
    let mut last = None;
    // Comparing the few names costs less than a look-up of each that may carry a key.
    let mut names = headers.iter().map(|(name, _)| name).filter(|name| is_key(name));
    names.find(|name| last.replace(*name) == Some(*name))
}

fn given_request_id(headers: &HeaderMap) -> Option<HeaderValue> {
    let value = headers.get(REQUEST_ID)?;
    let is_fit = !value.is_empty()
        && value.len() <= MAX_REQUEST_ID
        && value.as_bytes().iter().all(u8::is_ascii_graphic);
    is_fit.then(|| value.clone())
}

/// A path as a message may quote it: short, and on one line.
fn shown(path: &str) -> String {
    let short: String = path.chars().take(200).flat_map(char::escape_default).collect();
    if path.chars().count() > 200 { format!("{short}…") } else { short }
}

/// The distributed trace of a request: continued from the client's `traceparent`, else started
/// here; `None` when traces are not propagated.
fn trace_of(headers: &HeaderMap, config: &TracingConfig, seeds: &Seeds) -> Option<TraceContext> {
    if !config.propagate {
        return None;
    }
    let span = seeds.next();
    let mut given = headers.get_all(TRACEPARENT).iter();
    let continued = match (given.next(), given.next()) {
        (Some(only), None) => TraceContext::follow(only.as_bytes(), span),
        (Some(_), Some(_)) | (None, _) => None,
    };
    continued.or_else(|| {
        let trace_id = u128::from(seeds.next()) << 64 | u128::from(seeds.next());
        let is_sampled = seeds.next_share() < config.sample;
        Some(TraceContext::begin(trace_id, span, is_sampled))
    })
}
