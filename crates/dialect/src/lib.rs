//! Conversion between the dialects: a request of one API becomes a request of another
//! ([`convert_request`]), and the response is converted back event by event
//! ([`ResponseConverter`]).
//!
#![doc = include_str!("../README.md")]
#![deny(missing_docs)]

mod codecs;
mod context_shift;
mod conversation;
mod converter;
mod embeddings;
mod engine_error;
mod ensemble;
mod error;
mod error_body;
mod error_meaning;
mod event;
mod framing;
mod gathered;
mod image;
mod json;
mod json_end;
mod link;
mod piece;
mod reply;
mod request_readers;
mod request_writers;
mod response_readers;
mod response_writers;
mod tool_results;
mod unsupported;
mod whole;

pub use context_shift::{ContextRefusal, Shift, ShiftConversation, read_refusal, room_in};
pub use converter::ResponseConverter;
pub use engine_error::{convert_error, convert_error_event};
pub use ensemble::{EnsembleError, EnsembleRequest, critique_body, response_text};
pub use error::{BadResponse, ConvertError};
pub use error_meaning::ErrorMeaning;
pub use json_end::JsonEnd;
pub use reply::ResponseLimits;
pub use reply::{ReplyContext, ReplyTerms};
pub use unsupported::{has_svg, read_unsupported, without};

use penstock_api::{Engine, Operation};

use conversation::Tool;
use reply::ToolForm;

/// The backend that a request is converted for.
#[derive(Debug, Clone, Copy)]
pub struct RequestTerms<'a> {
    /// The backend's name for the model.
    pub model: &'a str,
    /// The backend's engine, which determines the extension fields.
    pub engine: Engine,
    /// The context with which Ollama is to load the model, if the client sets none.
    pub num_ctx: Option<u32>,
}

/// A converted request.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Converted {
    /// The operation it became: Ollama's raw prompts become completions even if chat was wanted.
    pub operation: Operation,
    /// The body.
    pub body: Vec<u8>,
    /// The terms for converting the response.
    pub reply: ReplyTerms,
}

/// Converts a request of `from` to one of `to`.
///
/// # Errors
/// If the body is not what the API of `from` describes, or contains something that `to` has no form
/// for. The error names the field.
pub fn convert_request(
    from: Operation,
    to: Operation,
    body: &[u8],
    terms: &RequestTerms<'_>,
) -> Result<Converted, ConvertError> {
    let none = ConvertError::NoConversion { from: from.name(), to: to.name() };
    // The backend's dialect adds little more than names.
    let mut out = Vec::with_capacity(body.len() + body.len() / 8 + 256);
    if embeddings::is_embedding(from) {
        let converted = embeddings::convert_request(from, to, body, terms, &mut out);
        let reply = ReplyTerms { embedding: converted.ok_or(none)??, ..ReplyTerms::default() };
        return Ok(Converted { operation: to, body: out, reply });
    }
    let mut conversation = codecs::read_request(from, body).ok_or(none)??;
    link::link_calls(&mut conversation);
    tool_results::gather_results(&mut conversation);
    let operation = codecs::write_request(to, &conversation, terms, &mut out).ok_or(none)??;
    let reply = ReplyTerms {
        stream: conversation.stream,
        include_usage: conversation.include_usage,
        stop: conversation.stop.iter().map(|text| text.to_string()).collect(),
        tools: conversation.tools.list.iter().filter_map(tool_form).collect(),
        echo: conversation.echo,
        ..ReplyTerms::default()
    };
    Ok(Converted { operation, body: out, reply })
}

/// Returns the backend's name of a tool and its form for the client, if the two forms differ.
fn tool_form(tool: &Tool<'_>) -> Option<(String, ToolForm)> {
    let namespace = tool.namespace.as_ref();
    let namespace = namespace.map(|(space, name)| (space.to_string(), name.to_string()));
    let form = ToolForm { is_free_form: tool.is_free_form, namespace };
    (form != ToolForm::default()).then(|| (tool.name.to_string(), form))
}

#[cfg(test)]
mod tests;
