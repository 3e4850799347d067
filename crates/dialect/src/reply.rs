//! The terms for converting a response: facts about the request and about the client that waits
//! for it, and the limits on the parts of a response that a conversion holds.

use std::collections::HashMap;
use std::time::Duration;

use penstock_api::{Operation, ReasoningField};

/// The maximum number of tool calls in a response.
pub(super) const MAX_CALLS: usize = 1024;
/// The maximum bytes of a tool's name that arrives in pieces.
pub(super) const MAX_NAME: usize = 4096;

/// The facts about the request that the conversion of its response needs.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ReplyTerms {
    /// True if the response is a stream.
    pub(super) stream: bool,
    /// True if the backend sends a complete response, although the client may receive a stream.
    pub(super) is_complete: bool,
    /// True if the client wants the usage event of OpenAI's streams.
    pub(super) include_usage: bool,
    /// The texts with which the client ends the generation.
    pub(super) stop: Vec<String>,
    /// The parts of the request that the response echoes: members of a JSON object, with a trailing
    /// comma.
    pub(super) echo: String,
    /// The tools whose calls have another form for the client, by their names at the backend.
    pub(super) tools: HashMap<String, ToolForm>,
    /// The form of the embeddings that the client wants.
    pub(super) embedding: EmbeddingTerms,
}

/// The client's form of a tool.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct ToolForm {
    /// True if it takes any text.
    pub(super) is_free_form: bool,
    /// The namespace of the tool, and its name there.
    pub(super) namespace: Option<(String, String)>,
}

impl ReplyTerms {
    /// Returns the same terms for a complete response of the backend. A client that requested a
    /// stream gets one with all of it.
    #[must_use]
    pub fn of_complete(self) -> Self {
        Self { is_complete: true, ..self }
    }

    /// Returns whether the client receives a stream.
    pub fn is_stream(&self) -> bool {
        self.stream
    }
}

/// The facts about a request for embeddings that the conversion of its response needs.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct EmbeddingTerms {
    /// True if the client wants the vectors in base64.
    pub(super) base64: bool,
    /// The number of texts in the request.
    pub(super) inputs: usize,
}

/// The client that waits for a response.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ReplyContext {
    /// The model's name as the client sent it.
    pub model: String,
    /// The id of the request, from which ids in the response are derived.
    pub request_id: String,
    /// The arrival of the request, since the Unix epoch.
    pub arrived_at: Duration,
    /// The field of OpenAI's chat that contains the model's thinking.
    pub reasoning: ReasoningField,
    /// The limits on the held parts of the response.
    pub limits: ResponseLimits,
}

/// The facts that a writer of responses needs.
#[derive(Debug)]
pub(super) struct ReplyFacts {
    /// The facts about the request.
    pub(super) terms: ReplyTerms,
    /// The facts about the client.
    pub(super) context: ReplyContext,
    /// The operation that the backend serves.
    pub(super) backend: Operation,
}

/// The limits on the parts of a response that a conversion holds, in bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ResponseLimits {
    /// The limit of one event of a stream.
    pub event: usize,
    /// The limit of the arguments of all tool calls of a response.
    pub arguments: usize,
    /// The limit of a response that is not a stream.
    pub whole: usize,
}

impl Default for ResponseLimits {
    fn default() -> Self {
        Self { event: 4 << 20, arguments: 4 << 20, whole: 256 << 20 }
    }
}
