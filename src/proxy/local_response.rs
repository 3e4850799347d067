//! Responses that need no backend: CORS preflights, the lists of models, the public health page, and what
//! penstock is.

use bytes::Bytes;
use http::header;
use pingora::http::ResponseHeader;
use pingora_proxy::Session;
use serde_json::{Value, json};

use super::Proxy;
use super::context::{RequestContext, Served};
use super::model_list::{list_models, one_model};
use super::own_response::{OwnResponse, send, send_error};
use super::target::Target;
use crate::fleet::Health;

/// Responds to a GET on one of our own paths.
pub(crate) async fn send_local(
    proxy: &Proxy,
    session: &mut Session,
    ctx: &mut RequestContext,
    target: Target<'_>,
) -> Served {
    let body = match target {
        Target::Models => list_models(ctx, session.req_header().uri.query(), proxy.started_at),
        Target::Model(id) => one_model(ctx, id, proxy.started_at),
        Target::Root => Ok(describe_self()),
        Target::Health
        | Target::Operation(_)
        | Target::StoredResponse { .. }
        | Target::Passthrough(_)
        | Target::Unknown => Ok(health(ctx)),
    };
    let body = match body {
        Ok(body) => body,
        Err(error) => return send_error(proxy, session, ctx, error).await,
    };
    ctx.record.status = 200;
    let head = ResponseHeader::build(200, Some(8))?;
    let response = OwnResponse { head, body: Bytes::from(body.to_string()), closes: false };
    send(proxy, session, ctx, response).await
}

/// Responds to a CORS preflight.
pub(crate) async fn send_preflight(
    proxy: &Proxy,
    session: &mut Session,
    ctx: &mut RequestContext,
    target: Target<'_>,
) -> Served {
    ctx.record.status = 204;
    let mut head = ResponseHeader::build(204, Some(8))?;
    if ctx.cors_origin.is_some() {
        head.insert_header(header::ACCESS_CONTROL_ALLOW_METHODS, target.methods(true))?;
        let requested = session.req_header().headers.get(header::ACCESS_CONTROL_REQUEST_HEADERS);
        if let Some(requested) = requested {
            head.insert_header(header::ACCESS_CONTROL_ALLOW_HEADERS, requested.clone())?;
        }
        head.insert_header(header::ACCESS_CONTROL_MAX_AGE, "600")?;
    }
    let response = OwnResponse { head, body: Bytes::new(), closes: false };
    send(proxy, session, ctx, response).await
}

/// What penstock is, for people who open its address and clients that look whether somebody is there.
/// Nothing of the configuration or the fleet is in it.
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
