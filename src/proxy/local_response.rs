//! Responses that need no backend: CORS preflights, the list of models, and the public health page.

use bytes::Bytes;
use http::header;
use pingora::http::ResponseHeader;
use pingora_proxy::Session;
use serde_json::{Value, json};

use super::Proxy;
use super::auth;
use super::context::{RequestContext, Served};
use super::failure::OwnError;
use super::own_response::{OwnResponse, send, send_error};
use super::target::Target;
use crate::api::{Capabilities, ErrorCode};
use crate::clock::unix_seconds;
use crate::fleet::{Health, Model, Topology};

/// Responds to a GET on one of our own paths.
pub(crate) async fn send_local(
    proxy: &Proxy,
    session: &mut Session,
    ctx: &mut RequestContext,
    target: Target<'_>,
) -> Served {
    let body = match target {
        Target::Models => list_models(ctx),
        Target::Model(id) => match one_model(ctx, id) {
            Ok(body) => body,
            Err(error) => return send_error(proxy, session, ctx, error).await,
        },
        Target::Health | Target::Operation(_) | Target::Unknown => health(ctx),
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
        head.insert_header(header::ACCESS_CONTROL_ALLOW_METHODS, target.methods())?;
        let requested = session.req_header().headers.get(header::ACCESS_CONTROL_REQUEST_HEADERS);
        if let Some(requested) = requested {
            head.insert_header(header::ACCESS_CONTROL_ALLOW_HEADERS, requested.clone())?;
        }
        head.insert_header(header::ACCESS_CONTROL_MAX_AGE, "600")?;
    }
    let response = OwnResponse { head, body: Bytes::new(), closes: false };
    send(proxy, session, ctx, response).await
}

fn list_models(ctx: &RequestContext) -> Value {
    let snapshot = ctx.generation.fleet.topology();
    let topology = &*snapshot;
    let auth = &ctx.generation.config.auth;
    let allowed = |name: &str| auth::may_use(auth, ctx.key, name);
    let mut data: Vec<Value> = topology
        .models()
        .iter()
        .filter(|model| allowed(&model.name))
        .map(|model| describe(&model.name, model))
        .collect();
    for (alias, target) in ctx.generation.router.names.aliases() {
        let model = topology.model_id(target).and_then(|id| topology.model(id));
        if let Some(model) = model
            && topology.model_id(alias).is_none()
            && allowed(alias)
        {
            data.push(describe(alias, model));
        }
    }
    let id = |model: &Value| model.get("id").and_then(Value::as_str).map(str::to_owned);
    data.sort_by_key(id);
    json!({"object": "list", "data": data})
}

fn one_model(ctx: &RequestContext, id: &str) -> Result<Value, OwnError> {
    let name = percent_decode(id);
    let snapshot = ctx.generation.fleet.topology();
    let topology: &Topology = &snapshot;
    let target = ctx.generation.router.names.resolve(&name);
    let known = topology.model_id(target).or_else(|| topology.model_id(&name));
    let allowed = auth::may_use(&ctx.generation.config.auth, ctx.key, &name);
    match known.and_then(|id| topology.model(id)).filter(|_| allowed) {
        Some(model) => Ok(describe(&name, model)),
        None if topology.is_complete() || !allowed => {
            let message = format!("Model '{name}' not found");
            Err(OwnError::new(ErrorCode::ModelNotFound, message).about(Some("model")))
        }
        None => {
            let message = format!("Model '{name}' is not known yet");
            Err(OwnError::new(ErrorCode::DiscoveryPending, message))
        }
    }
}

fn describe(id: &str, model: &Model) -> Value {
    let longest = model.serving.iter().filter_map(|row| row.context_length).max();
    let usable = model.serving.iter().fold(Capabilities::NONE, |all, row| all.union(row.known));
    json!({
        "id": id,
        "object": "model",
        "created": unix_seconds(),
        "owned_by": "penstock",
        "max_model_len": longest.map(|tokens| tokens.0),
        "capabilities": usable.names().collect::<Vec<_>>(),
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

/// Decodes `%XX`; what is not valid stays as it is written.
fn percent_decode(text: &str) -> String {
    let mut bytes = Vec::with_capacity(text.len());
    let mut rest = text.as_bytes();
    while let Some((&first, after)) = rest.split_first() {
        let code = after.first_chunk::<2>().and_then(|digits| std::str::from_utf8(digits).ok());
        let decoded = code.and_then(|digits| u8::from_str_radix(digits, 16).ok());
        match decoded {
            Some(byte) if first == b'%' => {
                bytes.push(byte);
                rest = after.get(2..).unwrap_or_default();
            }
            Some(_) | None => {
                bytes.push(first);
                rest = after;
            }
        }
    }
    String::from_utf8(bytes).unwrap_or_else(|_not_utf8| text.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn model_ids_are_percent_decoded() {
        assert_eq!(percent_decode("meta%2Fllama%3A8b"), "meta/llama:8b");
        assert_eq!(percent_decode("100%"), "100%");
        assert_eq!(percent_decode("%zz%4"), "%zz%4");
        assert_eq!(percent_decode("%ff"), "%ff", "not UTF-8: as written");
    }
}
