//! What the conversion of a response needs to know besides the response: of the request, and of the
//! client that waits for it.

use std::collections::HashMap;
use std::time::Duration;

use super::limits::ResponseLimits;
use crate::api::Operation;
use crate::config::ReasoningField;

/// What the response's conversion must know of the request.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ReplyTerms {
    /// Whether the response is a stream.
    pub(super) stream: bool,
    /// Whether the client wants the usage event of OpenAI's streams.
    pub(super) include_usage: bool,
    /// What the response echoes of the request: members of a JSON object, with a comma at their end.
    pub(super) echo: String,
    /// The tools whose calls have another form for the client, by the name that the backend knows.
    pub(super) tools: HashMap<String, ToolForm>,
    /// How it wants embeddings.
    pub(super) embedding: EmbeddingTerms,
}

/// How a client knows a tool.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct ToolForm {
    /// Whether it takes any text.
    pub(super) is_free_form: bool,
    /// The namespace that it is of, and its name there.
    pub(super) namespace: Option<(String, String)>,
}

impl ReplyTerms {
    /// The same terms for a whole response.
    #[must_use]
    pub fn without_stream(self) -> Self {
        Self { stream: false, ..self }
    }

    /// Whether the client receives a stream.
    pub fn is_stream(&self) -> bool {
        self.stream
    }
}

/// What the response's conversion must know of a request for embeddings.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct EmbeddingTerms {
    /// Whether the client wants the vectors in base64.
    pub(super) base64: bool,
    /// How many texts it sent.
    pub(super) inputs: usize,
}

/// The client that waits for a response.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ReplyContext {
    /// The model's name as the client sent it.
    pub model: String,
    /// The request's id: ids in the response are made of it.
    pub request_id: String,
    /// When the request arrived, since the Unix epoch.
    pub arrived_at: Duration,
    /// The field of OpenAI's chat that has what the model thinks.
    pub reasoning: ReasoningField,
    /// How much of the response may be held.
    pub limits: ResponseLimits,
}

/// What a writer of responses knows.
#[derive(Debug)]
pub(super) struct Reply {
    /// Of the request.
    pub(super) terms: ReplyTerms,
    /// Of the client.
    pub(super) context: ReplyContext,
    /// What the backend serves.
    pub(super) backend: Operation,
}
