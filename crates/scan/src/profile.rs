//! The result of a scan: [`RequestProfile`] holds the facts for a routing decision, and
//! [`RequestRequirements`] presents the same facts to people.

use std::borrow::Cow;

use serde::{Deserialize, Serialize};

use super::ids::StoredIds;
use super::prompt_limit::PromptLimit;
use super::unescape::Unescape;
pub use penstock_api::TokenEstimate;
use penstock_api::units::{ByteSpan, Timestamp, TokenCount};
use penstock_api::{Capabilities, Dialect, Operation, Work};

/// The facts about one request. Its spans refer to the body; nothing is copied.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RequestProfile {
    /// The time at which the request arrived.
    pub arrived_at: Timestamp,
    /// The requested operation.
    pub operation: Operation,
    /// The wire format of errors and streams.
    pub dialect: Dialect,
    /// The span of the model's name: between the quotes, or the value of a multipart field. If
    /// there is no name, an empty span at the offset where it can be inserted.
    pub model: ByteSpan,
    /// The form of the model's name.
    pub model_form: ModelForm,
    /// True if a member of the body names further models, which an aggregator may try.
    pub names_further_models: bool,
    /// True if the client requested a stream.
    pub streaming: bool,
    /// The estimated length of the conversation: a quarter of its text length, plus one for each
    /// token id.
    pub estimated_tokens: TokenCount,
    /// The estimated length of everything that an engine reads: the conversation, and definitions
    /// of tools, schemas, thinking and images. Equal to `estimated_tokens` for plain text.
    pub prompt_tokens: TokenCount,
    /// The part of `prompt_tokens` that shares no context with the rest: all prompts of a list but
    /// the longest, because an engine computes each of them alone.
    pub outside_context: TokenCount,
    /// The length to which an engine may cut each prompt instead of refusing it; 0 for the length
    /// of its context, `None` if it may not.
    pub cut_to: Option<TokenCount>,
    /// The client's limit on the tokens of the response.
    pub max_tokens: Option<TokenCount>,
    /// The upper bound of the response's tokens: the largest of the client's limits, for all
    /// choices.
    pub output_limit: Option<TokenCount>,
    /// The number of responses that the request asks for: its choices, for each of its prompts.
    pub choices: u32,
    /// The upper bound of the prompt's tokens.
    pub prompt_limit: PromptLimit,
    /// The context length that the client requests (`options.num_ctx`).
    pub context_length: Option<TokenCount>,
    /// The purpose of a request without a prompt in Ollama's own API.
    pub residency_change: Option<ResidencyChange>,
    /// The capabilities that the model must have.
    pub needs: Capabilities,
    /// The spans of the prompt in a JSON body.
    pub prompt: PromptPlaces,
    /// The edit after which a stream ends with its usage; `None` if the client requested that.
    pub usage_edit: Option<UsageEdit>,
    /// The ids of what an engine keeps.
    pub stored: StoredIds,
    /// The span of the session's name in the body, between its quotes: `prompt_cache_key`, else
    /// `conversation`; empty without both.
    pub session: ByteSpan,
}

/// The edit of a body that sets `stream_options.include_usage`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct UsageEdit {
    /// The bytes to replace.
    pub span: ByteSpan,
    /// The replacement.
    pub text: &'static str,
}

/// The purpose of an Ollama request without a prompt.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ResidencyChange {
    /// Load the model.
    Load,
    /// Unload the model (`keep_alive: 0`).
    Unload,
}

/// The form in which a body names its model.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ModelForm {
    /// The bytes of the name.
    Plain,
    /// A JSON string with escapes.
    Escaped,
    /// No name: `model` is null.
    Null,
    /// No name: `model` is missing.
    Missing,
}

/// The spans of the values that make up a prompt; the span of an absent value is empty.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct PromptPlaces {
    /// `tools`.
    pub tools: ByteSpan,
    /// `functions`, the deprecated form of `tools`.
    pub functions: ByteSpan,
    /// `system` or `instructions`, depending on the operation.
    pub system: ByteSpan,
    /// `messages`, `input` or `prompt`, depending on the operation.
    pub main: ByteSpan,
    /// `cache_salt`, with its quotes.
    pub salt: ByteSpan,
}

impl RequestProfile {
    /// The profile of a request whose body is forwarded unread.
    pub fn opaque(operation: Operation, arrived_at: Timestamp) -> Self {
        Self {
            arrived_at,
            operation,
            dialect: operation.row().dialect,
            model: ByteSpan::default(),
            model_form: ModelForm::Missing,
            names_further_models: false,
            streaming: false,
            estimated_tokens: TokenCount::default(),
            prompt_tokens: TokenCount::default(),
            outside_context: TokenCount::default(),
            cut_to: None,
            max_tokens: None,
            output_limit: None,
            choices: 1,
            prompt_limit: PromptLimit::unread(),
            context_length: None,
            residency_change: None,
            needs: Capabilities::NONE,
            prompt: PromptPlaces::default(),
            usage_edit: None,
            stored: StoredIds::default(),
            session: ByteSpan::default(),
        }
    }

    /// Returns the decoded name of the model; empty if there is none. Allocates only if the name
    /// contains escapes. `body` is the scanned body.
    pub fn model_name<'a>(&self, body: &'a [u8]) -> Cow<'a, str> {
        let raw = self.model.of(body);
        match self.model_form {
            ModelForm::Plain => String::from_utf8_lossy(raw),
            ModelForm::Escaped => Cow::Owned(Unescape::new(raw).collect()),
            ModelForm::Null | ModelForm::Missing => Cow::Borrowed(""),
        }
    }

    /// Returns the number of prompt tokens that an engine computes: none if the model does not run.
    pub fn prefill_tokens(&self) -> TokenCount {
        match self.operation.row().work {
            Work::Generation | Work::Inference => self.prompt_tokens,
            Work::Text => TokenCount::default(),
        }
    }

    /// Returns the number of tokens that one context must hold: the prompt, or the longest prompt
    /// of a list. None if the model does not run.
    pub fn context_tokens(&self) -> TokenCount {
        TokenCount(self.prefill_tokens().0.saturating_sub(self.outside_context.0))
    }

    /// Returns whether the body names its model.
    pub fn names_model(&self) -> bool {
        matches!(self.model_form, ModelForm::Plain | ModelForm::Escaped)
    }

    /// The facts in a readable form. `model` is the requested model.
    pub fn to_requirements(&self, model: &str) -> RequestRequirements {
        RequestRequirements {
            model: model.to_owned(),
            estimated_tokens: self.estimated_tokens.0,
            prompt_tokens: self.prompt_tokens.0,
            needs_vision: self.needs.contains(Capabilities::VISION),
            needs_tools: self.needs.contains(Capabilities::TOOLS),
            needs_json_mode: self.needs.contains(Capabilities::JSON_MODE),
            prefers_streaming: self.streaming,
        }
    }
}

/// The needs of a request in a readable form, shown by `explain` and by the list of decisions.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct RequestRequirements {
    /// The model in the request, before aliases are resolved.
    pub model: String,
    /// The estimated length of the conversation, in tokens.
    pub estimated_tokens: u32,
    /// The estimated length of everything that an engine reads, in tokens.
    pub prompt_tokens: u32,
    /// True if the prompt contains an image.
    pub needs_vision: bool,
    /// True if the request offers tools.
    pub needs_tools: bool,
    /// True if the response must be JSON.
    pub needs_json_mode: bool,
    /// True if the client requested a stream. It is a hint and never a filter.
    pub prefers_streaming: bool,
}
