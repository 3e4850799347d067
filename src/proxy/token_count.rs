//! Anthropic's `count_tokens` on a backend that has no such path: llama.cpp's `/apply-template` writes the prompt
//! as the model would read it, and `/tokenize` counts it. No token is generated.

use std::future::poll_fn;

use bytes::Bytes;
use pingora_proxy::Session;
use serde_json::{Value, json};

use super::Proxy;
use super::attempt::{Attempt, AttemptEnd, Elsewhere, own_json};
use super::broadcast::one_backend::{Refused, post};
use super::context::{RequestContext, ScannedRequest};
use super::conversion::NotConverted;
use super::response::record_backend;
use crate::api::Operation;
use crate::dialect::{RequestTerms, convert_request};
use crate::upstream::failure::Failure;

/// Whether the attempt's backend counts in two steps.
pub(super) fn is_in_steps(request: &ScannedRequest, attempt: &Attempt<'_>) -> bool {
    request.profile.operation == Operation::CountTokens
        && attempt.serving.conversion(Operation::CountTokens).is_some()
}

/// Counts, and responds with the count.
pub(super) async fn respond(
    proxy: &Proxy,
    session: &Session,
    ctx: &mut RequestContext,
    request: &ScannedRequest,
    attempt: &Attempt<'_>,
) -> AttemptEnd {
    let model = attempt.upstream_name(request).unwrap_or(&request.model);
    let terms = RequestTerms { model, engine: attempt.engine(), num_ctx: None };
    let steps = (Operation::CountTokens, Operation::ApplyTemplate);
    let chat = match convert_request(steps.0, steps.1, request.body(), &terms) {
        Ok(converted) => Bytes::from(converted.body),
        Err(error) => {
            return AttemptEnd::Elsewhere(Elsewhere::NotConverted(NotConverted::NoForm(error)));
        }
    };
    // Boxed: every request would carry room for it along.
    let mut counting = Box::pin(count(proxy, session, ctx, attempt, (model, chat)));
    let counted = tokio::select! {
        counted = &mut counting => counted,
        () = poll_fn(|cx| attempt.client.poll_gone(cx)) => {
            return AttemptEnd::Failed(Failure::ClientGone);
        }
    };
    drop(counting);
    record_backend(ctx, attempt.serving, attempt.backend);
    match counted {
        Ok(tokens) => own_json(&json!({ "input_tokens": tokens })),
        Err(refused) => {
            let message =
                format!("Backend '{}' cannot count: {}", attempt.serving.state.name, refused.text);
            refused.to_end(message)
        }
    }
}

/// The tokens of a chat's prompt.
async fn count(
    proxy: &Proxy,
    session: &Session,
    ctx: &RequestContext,
    attempt: &Attempt<'_>,
    (model, chat): (&str, Bytes),
) -> Result<usize, Refused> {
    let headers = &session.req_header().headers;
    let page = post(proxy, ctx, headers, attempt, ("/apply-template", chat)).await?;
    let prompt = read(&page)?.get("prompt").and_then(Value::as_str).map(str::to_owned);
    let prompt = prompt.ok_or_else(unreadable)?;
    // The template has the marks that a tokenizer would add.
    let text =
        json!({"model": model, "content": prompt, "add_special": false, "parse_special": true});
    let body = Bytes::from(text.to_string());
    let page = post(proxy, ctx, headers, attempt, ("/tokenize", body)).await?;
    let page = read(&page)?;
    page.get("tokens").and_then(Value::as_array).map(Vec::len).ok_or_else(unreadable)
}

fn read(page: &[u8]) -> Result<Value, Refused> {
    serde_json::from_slice(page).map_err(|_not_json| unreadable())
}

fn unreadable() -> Refused {
    Refused { status: None, text: "its response is not the documented one".to_owned() }
}
