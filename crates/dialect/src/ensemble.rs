//! The bodies of an ensemble's calls, derived from the client's request. A draft is that request
//! without its stream, a critique is one message, and the final call has a longer query. All other
//! members keep their bytes. `query` finds and replaces the query; `text` reads drafts.

mod query;
mod text;

pub use text::response_text;

use penstock_api::Operation;

use super::json::{Fields, ObjectWriter};
use query::{Query, find_query};

/// The members that drafts do not take from the client. A draft is held, not streamed; there is one
/// of each, none is stored, and drafts with the same seed would be equal.
const NOT_IN_DRAFTS: &[&str] = &[
    "model",
    "stream",
    "stream_options",
    "n",
    "best_of",
    "seed",
    "temperature",
    "store",
    "background",
];

/// The reason why a request cannot be an ensemble.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum EnsembleError {
    /// The operation cannot be an ensemble.
    #[error(
        "an ensemble takes /v1/chat/completions, /v1/messages, /v1/responses, /api/chat and /api/generate"
    )]
    Operation,
    /// The body is not a JSON object.
    #[error("the body is not a JSON object")]
    NotJson,
    /// There is nothing to criticize.
    #[error("an ensemble needs a message of the user with text")]
    NoQuery,
    /// An ensemble would change the meaning of a field.
    #[error("an ensemble takes no '{field}'")]
    Field {
        /// The name of the field.
        field: &'static str,
    },
}

impl EnsembleError {
    /// Returns the field at fault.
    pub fn field(self) -> Option<&'static str> {
        match self {
            Self::Field { field } => Some(field),
            Self::Operation => Some("model"),
            Self::NotJson | Self::NoQuery => None,
        }
    }
}

/// The request of an ensemble, as its client sent it.
#[derive(Debug)]
pub struct EnsembleRequest<'a> {
    operation: Operation,
    fields: Fields<'a>,
    query: Query<'a>,
}

impl<'a> EnsembleRequest<'a> {
    /// Reads a body.
    ///
    /// # Errors
    /// [`EnsembleError`] if the request cannot be an ensemble.
    pub fn read(operation: Operation, body: &'a [u8]) -> Result<Self, EnsembleError> {
        let place = query_place(operation).ok_or(EnsembleError::Operation)?;
        let fields = Fields::of_body(body).map_err(|_error| EnsembleError::NotJson)?;
        for field in continuations(operation) {
            // Some clients send every member, with nothing in those that they do not use.
            let is_set = |value: &str| !matches!(value, "null" | "false" | "\"\"");
            if fields.iter().any(|(name, value)| name == *field && is_set(value.get())) {
                return Err(EnsembleError::Field { field });
            }
        }
        let mut others = fields.clone();
        let query = others.take(place).and_then(find_query).ok_or(EnsembleError::NoQuery)?;
        Ok(Self { operation, fields, query })
    }

    /// Returns the text of the user's last message.
    pub fn query(&self) -> &str {
        &self.query.text
    }

    /// Returns the body of a draft by `model`: a complete response at temperature 1, so that drafts
    /// differ.
    pub fn draft(&self, model: &str) -> Vec<u8> {
        let mut out = Vec::new();
        let mut object = ObjectWriter::new(&mut out);
        object.text("model", model);
        object.flag("stream", false);
        let options_member = self.operation.row().dialect.row().options_member;
        let members = || self.fields.iter().filter(|(name, _)| !NOT_IN_DRAFTS.contains(name));
        for (name, value) in members().filter(|(name, _)| Some(&**name) != options_member) {
            object.raw(name, value.get());
        }
        // This API stores responses unless a request forbids it.
        if self.operation == Operation::Responses {
            object.flag("store", false);
        }
        let Some(options_member) = options_member else {
            object.number("temperature", 1);
            drop(object);
            return out;
        };
        let mut options = object.object(options_member);
        let given = members().find(|(name, _)| *name == options_member).map(|(_, value)| value);
        let given: Fields<'_> =
            given.and_then(|value| serde_json::from_str(value.get()).ok()).unwrap_or_default();
        for (name, value) in given.iter().filter(|(name, _)| !NOT_IN_DRAFTS.contains(name)) {
            options.raw(name, value.get());
        }
        options.number("temperature", 1);
        drop(options);
        drop(object);
        out
    }

    /// Returns the body of the final call: the client's, with `prompt` in place of the query.
    pub fn with_prompt(&self, model: &str, prompt: &str) -> Vec<u8> {
        let place = query_place(self.operation).unwrap_or_default();
        let mut out = Vec::new();
        let mut object = ObjectWriter::new(&mut out);
        object.text("model", model);
        for (name, value) in self.fields.iter().filter(|(name, _)| !["model", place].contains(name))
        {
            object.raw(name, value.get());
        }
        object.raw(place, &self.query.replaced(prompt));
        drop(object);
        out
    }
}

/// Returns the body of a critique of at most `max_tokens`, a chat request with one message of the
/// user.
pub fn critique_body(model: &str, prompt: &str, max_tokens: u32) -> Vec<u8> {
    let mut out = Vec::new();
    let mut object = ObjectWriter::new(&mut out);
    object.text("model", model);
    object.flag("stream", false);
    object.number("max_tokens", max_tokens.into());
    let mut messages = object.list("messages");
    let mut message = messages.object();
    message.text("role", "user");
    message.text("content", prompt);
    drop(message);
    drop(messages);
    drop(object);
    out
}

/// Returns the name of the member that contains the query.
fn query_place(operation: Operation) -> Option<&'static str> {
    match operation {
        Operation::Chat | Operation::Messages | Operation::OllamaChat => Some("messages"),
        Operation::Responses => Some("input"),
        Operation::OllamaGenerate => Some("prompt"),
        _ => None,
    }
}

/// Returns the fields that continue something. Seven calls cannot all continue it, and a prompt
/// without a template has no query.
fn continuations(operation: Operation) -> &'static [&'static str] {
    match operation {
        Operation::Responses => &["previous_response_id", "conversation", "background"],
        Operation::OllamaGenerate => &["raw", "suffix", "context"],
        _ => &[],
    }
}

#[cfg(test)]
mod tests;
