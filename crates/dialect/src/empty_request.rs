//! Requests of Ollama's API with nothing to generate: they load or unload a model, or embed
//! nothing, and are never converted.

use std::time::{Duration, UNIX_EPOCH};

use penstock_api::Operation;

use super::conversation::KeepAlive;
use super::json::{Fields, Object};
use super::reply::ReplyContext;
use super::request_readers::read_keep_alive;

/// The response to a request with nothing to generate.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct EmptyReply {
    /// The body: one JSON object, even if the client wants a stream.
    pub body: Vec<u8>,
    /// True if the client wants the model unloaded (`keep_alive: 0`).
    pub unloads: bool,
}

/// Responds as Ollama does to a request that [`ConvertError::Empty`](super::ConvertError::Empty)
/// refuses: `done_reason` is `load` or `unload`, and no texts have no embeddings. Returns `None`
/// for clients of other APIs, where an empty request is an error.
pub fn empty_reply(
    client: Operation,
    body: &[u8],
    context: &ReplyContext,
    elapsed: Duration,
) -> Option<EmptyReply> {
    let mut fields = Fields::of_body(body).ok()?;
    let keep_alive = fields.take("keep_alive").and_then(|raw| read_keep_alive(raw).ok());
    let unloads = keep_alive == Some(KeepAlive::Seconds(0));
    let mut out = Vec::with_capacity(192);
    let mut object = Object::new(&mut out);
    let now = UNIX_EPOCH.checked_add(context.arrived_at + elapsed).unwrap_or(UNIX_EPOCH);
    match client {
        Operation::OllamaEmbeddings => drop(object.list("embedding")),
        Operation::OllamaEmbed => {
            object.text("model", &context.model);
            drop(object.list("embeddings"));
        }
        Operation::OllamaChat | Operation::OllamaGenerate => {
            object.text("model", &context.model);
            object.display("created_at", &humantime::format_rfc3339_nanos(now));
            if client == Operation::OllamaChat {
                let mut message = object.object("message");
                message.text("role", "assistant");
                message.text("content", "");
            } else {
                object.text("response", "");
            }
            object.flag("done", true);
            object.text("done_reason", if unloads { "unload" } else { "load" });
        }
        _ => return None,
    }
    drop(object);
    Some(EmptyReply { body: out, unloads })
}
