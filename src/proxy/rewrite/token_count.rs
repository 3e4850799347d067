//! Anthropic's `count_tokens` on a backend that has no such path. vLLM's `/tokenize` counts the
//! messages of a chat; that of llama.cpp counts text, which `/apply-template` writes as the model
//! would read it. No token is generated.

use std::future::poll_fn;

use bytes::Bytes;
use penstock_api::{ErrorCode, Operation};
use penstock_dialect::{RequestTerms, convert_request};
use serde_json::{Value, json};

use crate::proxy::attempt::{Attempt, AttemptEnd, Elsewhere};
use crate::proxy::backend_call::{CallFailure, EngineResponse, call, own_json};
use crate::proxy::conversion::{ConversionFailure, convert_held};
use crate::proxy::failure::OwnError;
use crate::proxy::flow::Flow;
use crate::proxy::own_response::send_held;
use crate::proxy::request::ScannedRequest;
use crate::upstream::disposition::{Disposition, ResponseTerms, SeenResponse};
use crate::upstream::failure::{AttemptFailure, HeldResponse};
use crate::upstream::response_head::BodyEnd;

/// Responds with the number of tokens. `counter` is the operation of the engine that counts.
pub(super) async fn respond(
    flow: &mut Flow<'_>,
    request: &ScannedRequest,
    attempt: &mut Attempt<'_>,
    counter: Operation,
) -> AttemptEnd {
    let model = attempt.sent_model(request);
    let terms = RequestTerms { model, engine: attempt.engine(), num_ctx: None };
    let chat = match convert_request(Operation::CountTokens, counter, request.body(), &terms) {
        Ok(converted) => Bytes::from(converted.body),
        Err(error) => {
            return AttemptEnd::Elsewhere(Elsewhere::Conversion(ConversionFailure::NoForm(error)));
        }
    };
    attempt.conversion = Some((Operation::CountTokens, counter));
    let attempt = &*attempt;
    let model = attempt.sent_model(request);
    let engine = Counting { flow, attempt, model };
    let counting = async {
        match counter {
            Operation::Tokenize => engine.count_messages(chat).await,
            _ => engine.count_template(chat).await,
        }
    };
    let counted = tokio::select! {
        counted = counting => counted,
        () = poll_fn(|cx| attempt.client.poll_gone(cx)) => {
            return AttemptEnd::Failed(AttemptFailure::ClientGone);
        }
    };
    match counted {
        Ok(tokens) => {
            flow.ctx.record_backend(attempt.serving, attempt.backend);
            own_json(&json!({ "input_tokens": tokens }))
        }
        Err(CountFailure::Failed(failed)) => match failed.into_failure() {
            Ok(failure) => AttemptEnd::Failed(failure),
            Err(failed) => cannot_count(flow, attempt, &failed.error.to_string()),
        },
        Err(CountFailure::Response(response)) => {
            end_without_count(flow, request, attempt, response).await
        }
    }
}

/// The end of an attempt whose engine refused to count, or sent no count. A chat with that response
/// would end in the same way.
async fn end_without_count(
    flow: &mut Flow<'_>,
    request: &ScannedRequest,
    attempt: &Attempt<'_>,
    response: EngineResponse,
) -> AttemptEnd {
    let terms = attempt.response_terms(request, flow.ctx, response.status, false);
    let seen = SeenResponse {
        status: response.status,
        framing: BodyEnd::Length(response.body.len() as u64),
        stream: None,
        is_json: true,
        is_text: false,
        is_encoded: false,
        body: Some(&response.body),
        is_whole: true,
        result: None,
    }
    .read_result(terms.sent);
    match Disposition::of(&terms, &seen) {
        Some(Disposition::Hold(refusal)) => {
            AttemptEnd::Failed(AttemptFailure::Held(refusal, held_refusal(&terms, response)))
        }
        // The engine's 4xx is about the request.
        Some(Disposition::ConvertError) if response.status < 500 => {
            flow.ctx.record_backend(attempt.serving, attempt.backend);
            let held = held_refusal(&terms, response);
            AttemptEnd::Relayed(send_held(flow, held).await)
        }
        _ if response.is_success() => cannot_count(flow, attempt, "its response has no count"),
        _ => cannot_count(flow, attempt, &response.error_text()),
    }
}

/// Holds a refusal, in the client's dialect.
fn held_refusal(terms: &ResponseTerms<'_>, response: EngineResponse) -> HeldResponse {
    let mut held = HeldResponse::new(response.header, response.body, response.claim);
    held.set_status_of_error(terms.model, terms.body);
    // A refusal without a body has nothing to convert.
    if held.body.is_empty() { held } else { convert_held(held, terms.operation) }
}

/// The end of an attempt whose engine is at fault.
fn cannot_count(flow: &mut Flow<'_>, attempt: &Attempt<'_>, reason: &str) -> AttemptEnd {
    flow.ctx.record_backend(attempt.serving, attempt.backend);
    let message = format!("Backend '{}' cannot count: {reason}", attempt.serving.state.name);
    let error = OwnError::new(ErrorCode::BadUpstreamResponse, message);
    AttemptEnd::Own { status: error.code.row().status, response: Err(error) }
}

/// The reason why there is no count.
enum CountFailure {
    Failed(CallFailure),
    /// A refusal, or a response without a count.
    Response(EngineResponse),
}

/// The engine that counts.
struct Counting<'a> {
    flow: &'a Flow<'a>,
    attempt: &'a Attempt<'a>,
    /// The engine's name for the model.
    model: &'a str,
}

impl Counting<'_> {
    /// The tokens of a chat's prompt, for an engine whose `/tokenize` takes messages.
    async fn count_messages(&self, chat: Bytes) -> Result<u64, CountFailure> {
        self.post("/tokenize", chat, |page| {
            let count = page.get("count").and_then(Value::as_u64);
            // An engine that takes text alone finds none in the messages.
            count.or_else(|| length_of(page)).filter(|count| *count > 0)
        })
        .await
    }

    /// The tokens of a chat's prompt, for an engine whose `/tokenize` takes text.
    async fn count_template(&self, chat: Bytes) -> Result<u64, CountFailure> {
        let prompt = self
            .post("/apply-template", chat, |page| page.get("prompt")?.as_str().map(str::to_owned));
        let prompt = prompt.await?;
        // The template has the marks that a tokenizer would add.
        let text = json!({
            "model": self.model, "content": prompt, "add_special": false, "parse_special": true,
        });
        self.post("/tokenize", Bytes::from(text.to_string()), length_of).await
    }

    /// Posts `body`, and reads the page that comes back.
    async fn post<T>(
        &self,
        path: &'static str,
        body: Bytes,
        read: impl FnOnce(&Value) -> Option<T>,
    ) -> Result<T, CountFailure> {
        let timeout = self.attempt.serving.timeouts.response;
        let response = call(self.flow, self.attempt, path, body, timeout).await;
        let response = response.map_err(CountFailure::Failed)?;
        let page = serde_json::from_slice(&response.body).ok().filter(|_| response.is_success());
        page.as_ref().and_then(read).ok_or(CountFailure::Response(response))
    }
}

/// The number of tokens in a list of them.
fn length_of(page: &Value) -> Option<u64> {
    let tokens = page.get("tokens")?.as_array()?;
    u64::try_from(tokens.len()).ok()
}
