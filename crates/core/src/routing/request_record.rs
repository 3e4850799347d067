//! The facts known about a request when it ends: one record, filled on the way and read by metrics,
//! logs and traces. A new field of the access log is a field here, the place that sets it, and its
//! line in the log.

use std::sync::Arc;
use std::time::Duration;

use http::header::HeaderValue;
use penstock_api::units::{Timestamp, TokenCount};
use penstock_api::{Capabilities, ErrorCode};
use penstock_config::Price;
use penstock_predict::Prediction;
use penstock_scan::Usage;

use super::{EnsembleCall, Rejections};
use crate::fleet::{BackendId, Outcome};

/// The facts about a request, by the step that finds them.
#[derive(Debug, Default)]
pub struct RequestRecord {
    pub request: RequestFacts,
    /// Its waits for a backend with room.
    pub queue: QueueFacts,
    /// Its decisions and attempts.
    pub routing: RoutingFacts,
    /// The response that the client got.
    pub response: ResponseFacts,
    /// The changes that penstock made.
    pub edits: EditFacts,
}

#[derive(Debug, Default)]
pub struct RequestFacts {
    /// The requested model, as the client wrote it.
    pub requested_model: Option<Arc<str>>,
    /// True if the client requested a stream.
    pub is_streaming: bool,
    /// True if the request unloads its model.
    pub unloads_model: bool,
    /// The estimated number of tokens that the engine reads.
    pub prompt_tokens: Option<TokenCount>,
    /// The number of bytes in the body.
    pub bytes_in: usize,
    /// The call of an ensemble, if this request is one.
    pub ensemble: Option<EnsembleCall>,
    /// The fields for a replay, if the access log keeps them.
    pub replay: Option<Box<ReplayFields>>,
}

/// The waits of a request for a backend with room.
#[derive(Debug, Default)]
pub struct QueueFacts {
    /// The time that it waited in queues.
    pub wait: Option<Duration>,
    /// The end of the longest wait, set once the request has waited.
    pub until: Option<Timestamp>,
    /// The number of attempts that a backend refused as busy while the request could wait for
    /// another. They are no retries.
    pub refusals: u32,
    /// True if the client got the head of a stream while the request waited.
    pub is_kept_alive: bool,
}

/// The decisions and attempts of a request.
#[derive(Debug, Default)]
pub struct RoutingFacts {
    /// The model that it was served as; `None` if the fleet does not know it.
    pub model: Option<Box<str>>,
    /// The backend that responded.
    pub backend: Option<(BackendId, Box<str>)>,
    /// The name of the backend of the last attempt, if the client got no response of a backend.
    pub attempted: Option<Box<str>>,
    /// The name of the engine that responded, in metrics and traces.
    pub provider: Option<&'static str>,
    /// The name of the policy that applies.
    pub policy: Option<Box<str>>,
    /// True if the responding backend is below the tier that the policy prefers.
    pub is_below_tier: bool,
    /// The price of the model on the backend of the last attempt.
    pub price: Option<Arc<Price>>,
    /// The reasons against each backend, if none could take it.
    pub rejections: Option<Box<Rejections>>,
    /// True if a fallback responded.
    pub is_fallback: bool,
    pub attempts: u32,
    /// The number of connections lost although the backend may have read the request.
    pub lost_connections: u32,
    /// True if the request was moved to another backend before its first token.
    pub is_moved: bool,
    /// The prediction for the last attempt at its start.
    pub prediction: Option<Prediction>,
    /// The number of prompt tokens expected in the engine's prefix cache; set only if the engine
    /// reports its own count.
    pub expected_cached: Option<u32>,
}

/// The response that the client got.
#[derive(Debug, Default)]
pub struct ResponseFacts {
    /// The status; 499 if the client left before one.
    pub status: u16,
    /// The error code, if penstock made the response.
    pub code: Option<ErrorCode>,
    /// The class of the outcome, if it does not follow from status and code.
    pub outcome: Option<Outcome>,
    /// The time of the first token of a stream, or of the head of a whole response.
    pub first_token: Option<Timestamp>,
    /// The tokens that the engine counted.
    pub usage: Option<Usage>,
    /// The number of events with tokens in the stream.
    pub token_events: u32,
    /// The responding backend's id of the request.
    pub upstream_request_id: Option<HeaderValue>,
}

/// The changes that penstock made to a request.
#[derive(Debug, Default)]
pub struct EditFacts {
    /// The number of messages dropped to fit a context.
    pub dropped_messages: Option<u32>,
    /// The capabilities removed from the request because a model lacks them.
    pub retried_without: Capabilities,
    /// The counts behind the final call of an ensemble.
    pub ensemble_parts: Option<EnsembleParts>,
}

impl EditFacts {
    /// Returns whether no field of the response has to name a change.
    pub fn is_empty(&self) -> bool {
        let Self { dropped_messages, retried_without, ensemble_parts } = self;
        dropped_messages.is_none() && retried_without.is_empty() && ensemble_parts.is_none()
    }
}

/// The counts behind the final call of an ensemble.
#[derive(Debug, Clone, Copy, Default)]
pub struct EnsembleParts {
    pub drafts: usize,
    pub critiques: usize,
    /// The tokens that the calls before the final one read.
    pub input_tokens: u64,
    /// The tokens that the calls before the final one wrote.
    pub output_tokens: u64,
}

/// The fields that a replay of a request needs besides its times and tokens. Hashes are salted.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct ReplayFields {
    /// The client's limit on the tokens of the response.
    pub max_tokens: Option<TokenCount>,
    /// The session it names.
    pub session: Option<u64>,
    pub block_tokens: u32,
    /// The prompt's full blocks.
    pub blocks: Vec<u64>,
}
