//! Anthropic's `count_tokens` on a backend that has no such path: llama.cpp's `/apply-template` writes the prompt
//! as the model would read it, and `/tokenize` counts it. No token is generated.

use std::future::poll_fn;

use bytes::Bytes;
use pingora::http::ResponseHeader;
use pingora_proxy::Session;
use serde_json::{Value, json};

use super::Proxy;
use super::attempt::{Attempt, AttemptEnd, Unsuited};
use super::broadcast::one_backend::{Refused, post};
use super::context::{RequestContext, ScannedRequest};
use super::conversion::NotConverted;
use super::failure::OwnError;
use super::outcome::{AttemptResult, record_outcome};
use super::own_response::{OwnResponse, send, send_error};
use super::response::record_backend;
use crate::api::{ErrorCode, Operation};
use crate::dialect::{RequestTerms, convert_request};

/// Whether the attempt's backend counts in two steps.
pub(super) fn is_in_steps(request: &ScannedRequest, attempt: &Attempt<'_>) -> bool {
    request.profile.operation == Operation::CountTokens
        && attempt.serving.conversion(Operation::CountTokens).is_some()
}

/// Why there is no count.
enum NotCounted {
    ClientGone,
    Refused(Refused),
}

/// Responds with the count.
///
/// # Errors
/// [`Unsuited`] when the request has no form in the backend's API.
pub(super) async fn respond(
    proxy: &Proxy,
    session: &mut Session,
    ctx: &mut RequestContext,
    request: &ScannedRequest,
    attempt: &Attempt<'_>,
) -> Result<AttemptEnd, Unsuited> {
    let model = attempt.upstream_name(request).unwrap_or(&request.model);
    let terms = RequestTerms { model, engine: attempt.engine(), num_ctx: None };
    let steps = (Operation::CountTokens, Operation::ApplyTemplate);
    let chat = match convert_request(steps.0, steps.1, request.body(), &terms) {
        Ok(converted) => Bytes::from(converted.body),
        Err(error) => {
            let reason = Unsuited::NotConverted(NotConverted::NoForm(error));
            let result = AttemptResult::unsuited(&reason, ctx);
            record_outcome(attempt, &result, &ctx.generation.router, &proxy.observers);
            return Err(reason);
        }
    };
    // Boxed: every request would carry room for it along.
    let mut counting = Box::pin(count(proxy, session, ctx, attempt, (model, chat)));
    let counted = tokio::select! {
        counted = &mut counting => counted.map_err(NotCounted::Refused),
        () = poll_fn(|cx| attempt.client.poll_gone(cx)) => Err(NotCounted::ClientGone),
    };
    drop(counting);
    let status = if counted.is_ok() { 200 } else { ErrorCode::BadUpstreamResponse.row().status };
    let result = AttemptResult { runs_model: false, ..AttemptResult::by_status(status, ctx) };
    record_outcome(attempt, &result, &ctx.generation.router, &proxy.observers);
    record_backend(ctx, attempt.serving, attempt.backend);
    Ok(AttemptEnd::Relayed(match counted {
        Ok(tokens) => {
            ctx.record.status = 200;
            let head = ResponseHeader::build(200, Some(4));
            let body = Bytes::from(json!({ "input_tokens": tokens }).to_string());
            match head {
                Ok(head) => {
                    send(proxy, session, ctx, OwnResponse { head, body, closes: false }).await
                }
                Err(error) => Err(error),
            }
        }
        Err(NotCounted::ClientGone) => ctx.client_gone(),
        Err(NotCounted::Refused(Refused { text, .. })) => {
            let message = format!("Backend '{}' cannot count: {text}", attempt.serving.state.name);
            let error = OwnError::new(ErrorCode::BadUpstreamResponse, message);
            send_error(proxy, session, ctx, error).await
        }
    }))
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
