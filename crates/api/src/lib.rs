//! The APIs that clients may call: the tables of operations, dialects and capabilities. A new
//! operation is a variant and a row in `operation`, and its response in the mock engines.

#![deny(missing_docs)]

mod capabilities;
pub mod choice;
pub mod content_coding;
mod dialect;
mod engine;
mod errors;
mod header_fields;
pub mod hex;
mod kind_counters;
pub mod mix;
mod model_name;
mod offer;
mod ollama_route;
mod operation;
mod operations;
mod overflow;
mod placement;
mod printable;
mod prompt;
mod query;
pub mod slices;
mod stream;
mod trace;
pub mod units;
mod usage_call;

pub use capabilities::Capabilities;
pub use dialect::{
    DIALECTS, Dialect, DialectRow, ErrorForm, ErrorReport, ReasoningField, error_body,
};
pub use engine::{
    ENGINES, Engine, EngineFields, EngineTraits, KeyHeaders, ModelLoading, Scheduler,
};
pub use errors::{ERROR_CODES, ErrorCode, ErrorRow};
pub use header_fields::{
    FAIRNESS_ID, OBJECTIVE, POLICY, PRIORITY, SLO_TPOT, SLO_TTFT, STRICT, TIMING, bearer_token,
    is_control_field, is_token_byte, token_of,
};
pub use kind_counters::KindCounters;
pub use model_name::{
    CanonicalName, DEFAULT_TAG, canonical_name, default_tag_forms, has_tag, is_same_model,
    without_default_tag,
};
pub use offer::Offer;
pub use ollama_route::{ModelCommand, OLLAMA_ROUTES, OllamaRoute, OllamaRow};
pub use operation::{
    BodyFormat, Effect, EventForm, OPERATIONS, Operation, OperationRow, ResultFormat, Work,
    error_event, unstarted_error_event,
};
pub use operations::Operations;
pub use overflow::ContextOverflow;
pub use placement::{Tier, ZoneId, ZoneSet};
pub use printable::{MAX_NAME, escape, is_unprintable, show_names};
pub use prompt::{
    BILLING_LINE, Layout, MAX_PROMPT_FIELDS, PromptField, PromptPlace, TokenEstimate,
    without_billing_line,
};
pub use query::{percent_decode, query_value, query_without};
pub use stream::StreamFraming;
pub use trace::{TRACEPARENT, TRACESTATE, TraceContext};
pub use usage_call::{UsageCall, UsageRequest};
