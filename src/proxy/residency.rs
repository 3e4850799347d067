//! Requests of Ollama's API that load or unload a model, for backends of another API: these keep their
//! models loaded by themselves, so the response is made here and the backend gets nothing.

use std::time::{Duration, UNIX_EPOCH};

use pingora::http::ResponseHeader;
use pingora_proxy::Session;
use serde_json::{Value, json};

use super::Proxy;
use super::attempt::{Attempt, AttemptEnd};
use super::context::{RequestContext, ScannedRequest, Served};
use super::outcome::{AttemptResult, record_outcome};
use super::own_response::{OwnResponse, send};
use super::response::record_backend;
use crate::api::Operation;
use crate::clock::unix_seconds;
use crate::scan::ResidencyChange;

/// What the request is to do to a model that the attempt's backend keeps loaded by itself.
pub(super) fn change_of(
    request: &ScannedRequest,
    attempt: &Attempt<'_>,
) -> Option<ResidencyChange> {
    let change = request.profile.residency_change?;
    attempt.serving.conversion(request.profile.operation)?;
    Some(change)
}

/// Responds as Ollama does when it has loaded or unloaded the model.
pub(super) async fn respond(
    proxy: &Proxy,
    session: &mut Session,
    ctx: &mut RequestContext,
    request: &ScannedRequest,
    attempt: &Attempt<'_>,
    change: ResidencyChange,
) -> AttemptEnd {
    let result = AttemptResult { runs_model: false, ..AttemptResult::by_status(200, ctx) };
    record_outcome(attempt, &result, &ctx.generation.router, &proxy.observers);
    record_backend(ctx, attempt.serving, attempt.backend);
    ctx.record.is_streaming = false;
    AttemptEnd::Relayed(send_change(proxy, session, ctx, request, change).await)
}

async fn send_change(
    proxy: &Proxy,
    session: &mut Session,
    ctx: &mut RequestContext,
    request: &ScannedRequest,
    change: ResidencyChange,
) -> Served {
    ctx.record.status = 200;
    let head = ResponseHeader::build(200, Some(4))?;
    let body = body(request, change, Duration::from_secs(unix_seconds())).to_string();
    send(proxy, session, ctx, OwnResponse { head, body: body.into(), closes: false }).await
}

fn body(request: &ScannedRequest, change: ResidencyChange, since_1970: Duration) -> Value {
    let created_at = humantime::format_rfc3339_nanos(UNIX_EPOCH + since_1970).to_string();
    let reason = match change {
        ResidencyChange::Load => "load",
        ResidencyChange::Unload => "unload",
    };
    let mut body = json!({
        "model": *request.model,
        "created_at": created_at,
        "done": true,
        "done_reason": reason,
    });
    if let Some(fields) = body.as_object_mut() {
        let (name, empty) = match request.profile.operation {
            Operation::OllamaChat => ("message", json!({"role": "assistant", "content": ""})),
            _ => ("response", json!("")),
        };
        fields.insert(name.to_owned(), empty);
    }
    body
}
