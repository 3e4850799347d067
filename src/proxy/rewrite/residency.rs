//! Requests of Ollama's API that load or unload a model, for backends of another API. llama.cpp's
//! router has paths for that; other engines keep their models loaded by themselves, so the response
//! is made here and the backend gets nothing.

use std::future::poll_fn;
use std::time::{Duration, UNIX_EPOCH};

use bytes::Bytes;
use penstock_api::Operation;
use penstock_clock::unix_seconds;
use penstock_scan::ResidencyChange;
use serde_json::{Value, json};

use crate::proxy::attempt::{Attempt, AttemptEnd};
use crate::proxy::backend_call::{Refused, own_json, post};
use crate::proxy::flow::Flow;
use crate::proxy::request::ScannedRequest;
use crate::upstream::failure::AttemptFailure;

/// Responds as Ollama does when it has loaded or unloaded the model.
pub(super) async fn respond(
    flow: &mut Flow<'_>,
    request: &ScannedRequest,
    attempt: &Attempt<'_>,
    change: ResidencyChange,
) -> AttemptEnd {
    let done = match attempt.serving.state.is_router() {
        true => switch(flow, request, attempt, change).await,
        false => Ok(()),
    };
    flow.ctx.record_backend(attempt.serving, attempt.backend);
    flow.ctx.record.request.is_streaming = false;
    match done {
        Ok(()) => own_json(&body(request, change, Duration::from_secs(unix_seconds()))),
        Err(None) => AttemptEnd::Failed(AttemptFailure::ClientGone),
        Err(Some(refused)) => {
            let message = format!("Backend '{}': {}", attempt.serving.state.name, refused.text);
            refused.to_end(message)
        }
    }
}

/// Makes llama.cpp's router load or unload a model. One that is there already, or gone already, is
/// no error.
///
/// # Errors
/// The router's refusal; `None` when the client is gone.
async fn switch(
    flow: &Flow<'_>,
    request: &ScannedRequest,
    attempt: &Attempt<'_>,
    change: ResidencyChange,
) -> Result<(), Option<Refused>> {
    let (path, done_already) = match change {
        ResidencyChange::Load => ("/models/load", "already"),
        ResidencyChange::Unload => ("/models/unload", "not "),
    };
    let model = attempt.sent_model(request);
    let body = Bytes::from(json!({ "model": model }).to_string());
    let posted = tokio::select! {
        posted = post(flow, attempt, path, body) => posted,
        () = poll_fn(|cx| attempt.client.poll_gone(cx)) => return Err(None),
    };
    // Even after a refusal: the list that led here may be outdated.
    attempt.serving.state.invalidate_loaded();
    match posted {
        Ok(_page) => Ok(()),
        Err(Refused { status: Some(400), text }) if text.contains(done_already) => Ok(()),
        Err(refused) => Err(Some(refused)),
    }
}

fn body(request: &ScannedRequest, change: ResidencyChange, since_1970: Duration) -> Value {
    match request.profile.operation {
        Operation::OllamaEmbed => return json!({ "model": *request.model, "embeddings": [] }),
        Operation::OllamaEmbeddings => return json!({ "embedding": [] }),
        _ => {}
    }
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
