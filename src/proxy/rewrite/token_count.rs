//! Anthropic's `count_tokens` on a backend that has no such path. vLLM's `/tokenize` counts the
//! messages of a chat; that of llama.cpp counts text, which `/apply-template` writes as the model
//! would read it. No token is generated.

use std::future::poll_fn;

use bytes::Bytes;
use penstock_api::Operation;
use penstock_dialect::{RequestTerms, convert_request};
use serde_json::{Value, json};

use super::{Boxed, Rewrite};
use crate::proxy::attempt::{Attempt, AttemptEnd, Elsewhere};
use crate::proxy::backend_call::{Refused, own_json, post};
use crate::proxy::conversion::NotConverted;
use crate::proxy::flow::Flow;
use crate::proxy::request::ScannedRequest;
use crate::upstream::failure::Failure;

/// Requests for a count of tokens.
pub(crate) struct TokenCounts;

impl Rewrite for TokenCounts {
    fn prepare<'a>(
        &self,
        flow: &'a mut Flow<'_>,
        request: &'a mut ScannedRequest,
        attempt: &'a mut Attempt<'_>,
    ) -> Option<Boxed<'a, AttemptEnd>> {
        let counter = attempt.serving.conversion(request.profile.operation)?;
        Some(Box::pin(respond(flow, request, attempt, counter)))
    }
}

/// Counts by `counter`, and responds with the count.
async fn respond(
    flow: &mut Flow<'_>,
    request: &ScannedRequest,
    attempt: &Attempt<'_>,
    counter: Operation,
) -> AttemptEnd {
    let model = attempt.upstream_name(request).unwrap_or(&request.model);
    let terms = RequestTerms { model, engine: attempt.engine(), num_ctx: None };
    let chat = match convert_request(Operation::CountTokens, counter, request.body(), &terms) {
        Ok(converted) => Bytes::from(converted.body),
        Err(error) => {
            return AttemptEnd::Elsewhere(Elsewhere::NotConverted(NotConverted::NoForm(error)));
        }
    };
    let engine = Counting { flow, attempt, model };
    // Boxed: every request would carry room for it along.
    let mut counting = Box::pin(async {
        match counter {
            Operation::Tokenize => engine.count_messages(chat).await,
            _ => engine.count_template(chat).await,
        }
    });
    let counted = tokio::select! {
        counted = &mut counting => counted,
        () = poll_fn(|cx| attempt.client.poll_gone(cx)) => {
            return AttemptEnd::Failed(Failure::ClientGone);
        }
    };
    drop(counting);
    flow.ctx.record_backend(attempt.serving, attempt.backend);
    match counted {
        Ok(tokens) => own_json(&json!({ "input_tokens": tokens })),
        Err(refused) => {
            let message =
                format!("Backend '{}' cannot count: {}", attempt.serving.state.name, refused.text);
            refused.to_end(message)
        }
    }
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
    async fn count_messages(&self, chat: Bytes) -> Result<u64, Refused> {
        let page = self.post("/tokenize", chat).await?;
        let count = page.get("count").and_then(Value::as_u64);
        count.or_else(|| length_of(&page)).filter(|count| *count > 0).ok_or_else(|| {
            // An engine that takes text alone finds none in the messages.
            let text = "its `/tokenize` counts no messages".to_owned();
            Refused { status: None, text }
        })
    }

    /// The tokens of a chat's prompt, for an engine whose `/tokenize` takes text.
    async fn count_template(&self, chat: Bytes) -> Result<u64, Refused> {
        let page = self.post("/apply-template", chat).await?;
        let prompt = page.get("prompt").and_then(Value::as_str).ok_or_else(unreadable)?;
        // The template has the marks that a tokenizer would add.
        let text = json!({
            "model": self.model, "content": prompt, "add_special": false, "parse_special": true,
        });
        let page = self.post("/tokenize", Bytes::from(text.to_string())).await?;
        length_of(&page).ok_or_else(unreadable)
    }

    async fn post(&self, path: &'static str, body: Bytes) -> Result<Value, Refused> {
        let page = post(self.flow, self.attempt, path, body).await?;
        serde_json::from_slice(&page).map_err(|_not_json| unreadable())
    }
}

/// The number of tokens in a list of them.
fn length_of(page: &Value) -> Option<u64> {
    let tokens = page.get("tokens")?.as_array()?;
    u64::try_from(tokens.len()).ok()
}

fn unreadable() -> Refused {
    Refused { status: None, text: "its response is not the documented one".to_owned() }
}
