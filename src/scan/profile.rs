//! What a scan finds out: [`RequestProfile`], the facts a decision is taken on, and
//! [`RequestRequirements`], the same facts for people to read.

use std::borrow::Cow;

use serde::Serialize;

use super::unescape::Unescape;
use crate::api::{Capabilities, Dialect, Operation};
pub use crate::config::TokenEstimate;
use crate::units::{ByteSpan, Timestamp, TokenCount};

/// The facts about one request. Spans point into its body; nothing is copied.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RequestProfile {
    /// When the request arrived.
    pub arrived_at: Timestamp,
    /// What the request asks for.
    pub operation: Operation,
    /// The wire format of its errors and streams.
    pub dialect: Dialect,
    /// The model's name: the bytes between the quotes, or a multipart field's value.
    pub model: ByteSpan,
    /// Whether the bytes of `model` hold JSON escapes.
    pub model_is_escaped: bool,
    /// Whether the client asked for a stream.
    pub streaming: bool,
    /// The prompt's length: a quarter of its text, and one for each token id.
    pub estimated_tokens: TokenCount,
    /// The longest answer the client wants.
    pub max_tokens: Option<TokenCount>,
    /// What the model must be able to do.
    pub needs: Capabilities,
    /// Where the prompt lies in a body of JSON.
    pub prompt: PromptPlaces,
}

/// Where the values lie that make up a prompt; empty where there is none.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct PromptPlaces {
    /// `tools`.
    pub tools: ByteSpan,
    /// `functions`, as tools were called before.
    pub functions: ByteSpan,
    /// `system` or `instructions`, where the operation has it.
    pub system: ByteSpan,
    /// `messages`, `input` or `prompt`.
    pub main: ByteSpan,
    /// `cache_salt`, quotes and all.
    pub salt: ByteSpan,
}

impl RequestProfile {
    /// The model's name as the client meant it; allocates only when it was written with escapes.
    /// `body` is the scanned body.
    pub fn model_name<'a>(&self, body: &'a [u8]) -> Cow<'a, str> {
        let raw = self.model.of(body);
        if self.model_is_escaped {
            Cow::Owned(Unescape::new(raw).collect())
        } else {
            String::from_utf8_lossy(raw)
        }
    }

    /// The facts in the form people read. `body` is the scanned body.
    pub fn to_requirements(&self, body: &[u8]) -> RequestRequirements {
        RequestRequirements {
            model: self.model_name(body).into_owned(),
            estimated_tokens: self.estimated_tokens.0,
            needs_vision: self.needs.contains(Capabilities::VISION),
            needs_tools: self.needs.contains(Capabilities::TOOLS),
            needs_json_mode: self.needs.contains(Capabilities::JSON_MODE),
            prefers_streaming: self.streaming,
        }
    }
}

/// What a request needs, for people: shown by `explain` and by the list of decisions.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct RequestRequirements {
    /// The model as the client named it, before aliases.
    pub model: String,
    /// The estimated length of the prompt, in tokens.
    pub estimated_tokens: u32,
    /// Whether the prompt holds an image.
    pub needs_vision: bool,
    /// Whether tools are offered.
    pub needs_tools: bool,
    /// Whether the answer must be JSON.
    pub needs_json_mode: bool,
    /// Whether the client asked for a stream; a hint, never a filter.
    pub prefers_streaming: bool,
}
