//! Answers that need no backend: the list of models, and whether penstock is there.

use bytes::Bytes;
use pingora::http::ResponseHeader;
use pingora_proxy::Session;
use serde_json::{Value, json};

use super::Proxy;
use super::auth;
use super::context::RequestContext;
use super::failure::OwnError;
use super::request::Target;
use crate::api::{Capabilities, ErrorCode};
use crate::clock::unix_seconds;
use crate::fleet::{Health, Model, Topology};

/// Answers a GET on one of our own paths.
pub(crate) async fn answer(
    proxy: &Proxy,
    session: &mut Session,
    ctx: &mut RequestContext,
    target: Target<'_>,
) -> pingora::Result<()> {
    let body = match target {
        Target::Models => list_models(ctx),
        Target::Model(id) => match one_model(ctx, id) {
            Ok(body) => body,
            Err(error) => return proxy.answer_error(session, ctx, error).await,
        },
        Target::Health | Target::Operation(_) | Target::Unknown => health(ctx),
    };
    ctx.ending.status = 200;
    let head = ResponseHeader::build(200, Some(8))?;
    proxy.answer(session, ctx, (head, Bytes::from(body.to_string()), false)).await
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

/// Undoes `%XX`; what is not valid stays as it is written.
fn percent_decode(text: &str) -> String {
    let mut bytes = Vec::with_capacity(text.len());
    let mut rest = text.as_bytes();
    while let Some((&first, behind)) = rest.split_first() {
        let code = behind.get(..2).and_then(|digits| std::str::from_utf8(digits).ok());
        let decoded = code.and_then(|digits| u8::from_str_radix(digits, 16).ok());
        match decoded {
            Some(byte) if first == b'%' => {
                bytes.push(byte);
                rest = behind.get(2..).unwrap_or_default();
            }
            Some(_) | None => {
                bytes.push(first);
                rest = behind;
            }
        }
    }
    String::from_utf8(bytes).unwrap_or_else(|_not_utf8| text.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ids_are_percent_decoded() {
        assert_eq!(percent_decode("meta%2Fllama%3A8b"), "meta/llama:8b");
        assert_eq!(percent_decode("100%"), "100%");
        assert_eq!(percent_decode("%zz%4"), "%zz%4");
        assert_eq!(percent_decode("%ff"), "%ff", "not UTF-8: as written");
    }
}
