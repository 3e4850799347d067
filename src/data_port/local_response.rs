//! Responses that need no backend: CORS preflights, the lists of models, the public health page,
//! and the description of penstock.

use bytes::Bytes;
use http::header;
use penstock_api::OllamaRoute;
use penstock_core::fleet::Health;
use pingora::http::ResponseHeader;
use serde_json::{Value, json};

use crate::data_port::model_list::{list_models, one_model};
use crate::data_port::target::PathTarget;
use crate::ollama::pages::{list_loaded, list_loaded_details, list_tags};
use crate::ollama::usage;
use crate::ollama::version::lowest_version;
use crate::proxy::flow::{Flow, RequestContext, Served};
use crate::proxy::own_response::{OwnResponse, send, send_error};

/// The text that Ollama's clients look for at `/`.
const ROOT_TEXT: &str = "Ollama is running";
/// The page that browsers show at `/`.
const ROOT_PAGE: &str = "<!doctype html><html lang=\"en\"><title>penstock</title><h1>penstock</h1>\
    <p>A load balancer for LLM servers. It speaks OpenAI's, Anthropic's and Ollama's APIs.</p>\
    <ul><li><a href=\"/v1/models\">/v1/models</a><li><a href=\"/api/tags\">/api/tags</a>\
    <li><a href=\"/health\">/health</a></ul></html>\n";

/// Responds to a GET on one of our own paths.
pub(crate) async fn send_local(flow: &mut Flow<'_>, target: PathTarget<'_>) -> Served {
    if let (PathTarget::Health, Some(page)) = (target, usage::health(flow)) {
        return usage::send_page(flow, page).await;
    }
    let created = flow.proxy.started_at;
    let body = match target {
        PathTarget::Models => list_models(flow.ctx, flow.client.head().uri.query(), created),
        PathTarget::Model(id) => one_model(flow.ctx, id, created),
        PathTarget::Root => return send_root(flow).await,
        PathTarget::Ollama(OllamaRoute::Version) => Ok(version(flow.ctx)),
        PathTarget::Ollama(OllamaRoute::Status) => Ok(cloud_status()),
        PathTarget::Ollama(OllamaRoute::Tags) => Ok(list_tags(flow.ctx, created)),
        PathTarget::Ollama(OllamaRoute::Loaded) => Ok(list_loaded(flow.ctx, created)),
        PathTarget::Ollama(OllamaRoute::LoadedDetails) => {
            Ok(list_loaded_details(flow.ctx, created))
        }
        PathTarget::Ollama(OllamaRoute::Show | OllamaRoute::Command(_) | OllamaRoute::Blob(_))
        | PathTarget::Health
        | PathTarget::Operation(_)
        | PathTarget::StoredResponse { .. }
        | PathTarget::Usage(_)
        | PathTarget::Passthrough(_)
        | PathTarget::Unknown => Ok(health(flow.ctx)),
    };
    let body = match body {
        Ok(body) => body,
        Err(error) => return send_error(flow, error).await,
    };
    flow.ctx.record.response.status = 200;
    let head = ResponseHeader::build(200, Some(8))?;
    let response = OwnResponse { head, body: Bytes::from(body.to_string()), closes: false };
    send(flow, response).await
}

/// Responds to a CORS preflight.
pub(crate) async fn send_preflight(flow: &mut Flow<'_>, target: PathTarget<'_>) -> Served {
    flow.ctx.record.response.status = 204;
    let mut head = ResponseHeader::build(204, Some(8))?;
    // Without these fields a browser sends no request from a page of another origin.
    if flow.ctx.cors_origin.is_some() {
        head.insert_header(header::ACCESS_CONTROL_ALLOW_METHODS, target.allowed(true))?;
        let requested = flow.client.head().headers.get(header::ACCESS_CONTROL_REQUEST_HEADERS);
        if let Some(requested) = requested {
            head.insert_header(header::ACCESS_CONTROL_ALLOW_HEADERS, requested.clone())?;
        }
        head.insert_header(header::ACCESS_CONTROL_MAX_AGE, "600")?;
    }
    let response = OwnResponse { head, body: Bytes::new(), closes: false };
    send(flow, response).await
}

/// Responds to a GET of `/`: with Ollama's text for its clients, which look for it; with a
/// description of penstock for others, by their `Accept`.
async fn send_root(flow: &mut Flow<'_>) -> Served {
    let accepted = flow.client.head().headers.get(header::ACCEPT);
    let accepted = accepted.and_then(|value| value.to_str().ok()).unwrap_or("");
    let wants = |kind: &str| accepted.to_ascii_lowercase().contains(kind);
    let (kind, body) = if wants("text/html") {
        ("text/html; charset=utf-8", ROOT_PAGE.to_owned())
    } else if wants("application/json") {
        ("application/json", describe_self().to_string())
    } else {
        ("text/plain; charset=utf-8", ROOT_TEXT.to_owned())
    };
    flow.ctx.record.response.status = 200;
    let mut head = ResponseHeader::build(200, Some(8))?;
    head.insert_header(header::CONTENT_TYPE, kind)?;
    // A cache must not give a client of Ollama the page of a browser.
    head.insert_header(header::VARY, "accept")?;
    let response = OwnResponse { head, body: Bytes::from(body), closes: false };
    send(flow, response).await
}

fn version(ctx: &RequestContext) -> Value {
    json!({"version": lowest_version(&ctx.generation.fleet.topology())})
}

/// The status that Ollama's apps look for before they offer models of its cloud: signing in is a
/// matter of each backend.
fn cloud_status() -> Value {
    json!({"cloud": {"disabled": true, "source": "config"}})
}

/// A description of penstock, for people who open its address and for clients that check for a
/// server. Nothing of the configuration or the fleet is in it.
fn describe_self() -> Value {
    json!({
        "name": "penstock",
        "description": "a load balancer for LLM servers",
        "models": "/v1/models",
        "health": "/health",
        "documentation": "docs/reference/http-api.md",
    })
}

fn health(ctx: &RequestContext) -> Value {
    let snapshot = ctx.generation.fleet.topology();
    let backends = &snapshot.backends;
    let healthy =
        backends.iter().filter(|backend| backend.state.status() == Health::Healthy).count();
    let status = match healthy {
        0 => "unhealthy",
        some if some < backends.len() => "degraded",
        _ => "healthy",
    };
    json!({"status": status, "backends": {"total": backends.len(), "healthy": healthy}})
}
