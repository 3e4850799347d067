//! The latest routing decisions, for `/decisions`: an observer that writes into a ring buffer. A
//! write never waits and never allocates.

mod captures;

pub use captures::MAX_CAPTURES;

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use parking_lot::Mutex;
use penstock_api::units::{Timestamp, TokenCount, widen};
use penstock_api::{Capabilities, Operation};
use penstock_config::Strategy;
use penstock_core::routing::{
    Capture, EnsembleCall, RequestObserver, Routed, ScoreRecord, ScorerNames,
};
use penstock_scan::RequestRequirements;
use serde::Serialize;

use captures::Captures;

pub const DECISIONS_KEPT: usize = 256;

/// A text of bounded length, stored inline; longer texts are truncated.
#[derive(Debug, Clone, Copy)]
struct Short<const N: usize> {
    bytes: [u8; N],
    length: usize,
}

impl<const N: usize> Short<N> {
    fn new(text: &str) -> Self {
        let mut length = text.len().min(N);
        // Cut within a character, the text would end in a replacement mark.
        while !text.is_char_boundary(length) {
            length -= 1;
        }
        let mut bytes = [0; N];
        if let (Some(to), Some(from)) = (bytes.get_mut(..length), text.as_bytes().get(..length)) {
            to.copy_from_slice(from);
        }
        Self { bytes, length }
    }

    fn to_text(self) -> String {
        let (text, _) = self.bytes.split_at(self.length.min(N));
        String::from_utf8_lossy(text).into_owned()
    }
}

#[derive(Debug, Clone, Copy)]
struct LoggedDecision {
    number: u64,
    at: Timestamp,
    request_id: Short<64>,
    operation: Operation,
    requested_model: Short<128>,
    model: Short<128>,
    backend: Short<64>,
    strategy: Strategy,
    is_fallback: bool,
    is_assumed: bool,
    converted_to: Option<Operation>,
    candidates: u32,
    attempt: u32,
    dropped_messages: Option<u32>,
    ensemble: Option<EnsembleCall>,
    estimated_tokens: TokenCount,
    prompt_tokens: TokenCount,
    needs: Capabilities,
    streaming: bool,
    scores: Option<ScoreRecord>,
    scorer_names: ScorerNames,
}

/// An executed decision, as in `/decisions`. Long names are truncated.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct ExecutedDecision {
    /// Sequence number since the start.
    pub number: u64,
    /// The age of the decision.
    pub seconds_ago: f64,
    pub request_id: String,
    /// The operation of the request.
    pub operation: &'static str,
    pub requirements: RequestRequirements,
    /// The model for which the request was sent.
    pub model: String,
    /// The backend to which it was sent.
    pub backend: String,
    /// The strategy that picked it.
    pub strategy: &'static str,
    /// True if a fallback replaced the requested model.
    pub fallback: bool,
    /// True if a capability was assumed.
    pub assumed: bool,
    /// The operation to which it was converted, if the backend does not serve the requested one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub converted_to: Option<&'static str>,
    pub candidates: u32,
    /// The number of the attempt, from 1.
    pub attempt: u32,
    /// The number of messages dropped to fit a context, if the request was shortened.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub dropped_messages: Option<u32>,
    /// The call of an ensemble that it is: `draft 1`, `critique 2`, `final`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub ensemble: Option<String>,
    /// The scores that the weighted strategy gave the backend.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub scoring: Option<ScoringReport>,
}

/// The scores of a backend that was picked.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct ScoringReport {
    /// The sum of its scores by weight, 0..=1.
    pub total: f64,
    /// The unweighted score of each scorer, 0..=1.
    pub scores: BTreeMap<&'static str, f64>,
    /// The share of each scorer in the sum of all weights.
    pub weights: BTreeMap<&'static str, f64>,
    /// The leading blocks of the prompt that it was believed to have cached.
    pub matched_blocks: u32,
    /// The full blocks of the prompt.
    pub prompt_blocks: u32,
    /// The age of its engine's telemetry; absent when the engine never reported any.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub telemetry_age_ms: Option<f64>,
    /// The reliability of the telemetry: unknown, fresh, stale or failing.
    pub telemetry: &'static str,
}

/// The last [`DECISIONS_KEPT`] decisions.
#[derive(Debug)]
pub struct DecisionLog {
    slots: Box<[Mutex<Option<LoggedDecision>>]>,
    next: AtomicU64,
    captures: Captures,
}

impl Default for DecisionLog {
    fn default() -> Self {
        let slots = std::iter::repeat_with(Mutex::default).take(DECISIONS_KEPT).collect();
        Self { slots, next: AtomicU64::new(0), captures: Captures::default() }
    }
}

impl DecisionLog {
    /// Returns the number of decisions since the start.
    pub fn total(&self) -> u64 {
        self.next.load(Ordering::Relaxed)
    }

    /// Returns the number of decisions captured since [`DecisionLog::forget_captures`], and the
    /// last `count` of them, newest first.
    pub fn captured(&self, count: usize) -> (u64, Vec<Arc<Capture>>) {
        self.captures.latest(count)
    }

    pub fn forget_captures(&self) {
        self.captures.clear();
    }

    /// Returns the last `count` decisions, newest first.
    pub fn latest(&self, count: usize, now: Timestamp) -> Vec<ExecutedDecision> {
        // Slot by slot: a decision is delayed by none of them, and only skips the one in use.
        let mut entries: Vec<LoggedDecision> =
            self.slots.iter().filter_map(|slot| *slot.lock()).collect();
        entries.sort_unstable_by_key(|entry| std::cmp::Reverse(entry.number));
        entries.truncate(count);
        entries.into_iter().map(|entry| entry.to_report(now)).collect()
    }
}

impl RequestObserver for DecisionLog {
    fn routed(&self, event: &Routed<'_>) {
        let number = self.next.fetch_add(1, Ordering::Relaxed);
        let index = number % DECISIONS_KEPT as u64;
        let slot = usize::try_from(index).ok().and_then(|index| self.slots.get(index));
        // If a reader holds this slot, the entry is dropped: better to lose it than to delay a
        // request.
        if let Some(mut slot) = slot.and_then(|slot| slot.try_lock()) {
            *slot = Some(LoggedDecision::new(number, event));
        }
        if let Some(captured) = event.captured {
            let mut captured: Capture = captured.clone();
            captured.number = number;
            self.captures.push(captured);
        }
    }
}

impl LoggedDecision {
    fn new(number: u64, event: &Routed<'_>) -> Self {
        let Routed { request, decision, .. } = event;
        let topology = event.fleet;
        let serving = decision.serving(topology);
        Self {
            number,
            at: event.at,
            request_id: Short::new(event.request_id),
            operation: request.operation,
            requested_model: Short::new(event.requested_model),
            model: Short::new(topology.model(decision.model).map_or("", |model| &*model.name)),
            backend: Short::new(serving.map_or("", |serving| &*serving.state.name)),
            strategy: decision.strategy,
            is_fallback: decision.is_fallback,
            is_assumed: decision.is_assumed,
            converted_to: serving.and_then(|serving| serving.conversion(request.operation)),
            candidates: decision.candidates,
            attempt: event.attempt,
            dropped_messages: event.dropped_messages,
            ensemble: event.ensemble,
            estimated_tokens: request.estimated_tokens,
            prompt_tokens: request.prompt_tokens,
            needs: request.needs,
            streaming: request.streaming,
            scores: decision.scores,
            scorer_names: event.scorer_names,
        }
    }

    fn to_report(self, now: Timestamp) -> ExecutedDecision {
        let names = self.scorer_names.iter().map(|(name, _)| name);
        ExecutedDecision {
            number: self.number,
            seconds_ago: now.since(self.at).as_secs_f64(),
            request_id: self.request_id.to_text(),
            operation: self.operation.name(),
            requirements: RequestRequirements {
                model: self.requested_model.to_text(),
                estimated_tokens: self.estimated_tokens.0,
                prompt_tokens: self.prompt_tokens.0,
                needs_vision: self.needs.contains(Capabilities::VISION),
                needs_tools: self.needs.contains(Capabilities::TOOLS),
                needs_json_mode: self.needs.contains(Capabilities::JSON_MODE),
                prefers_streaming: self.streaming,
            },
            model: self.model.to_text(),
            backend: self.backend.to_text(),
            strategy: self.strategy.name(),
            fallback: self.is_fallback,
            assumed: self.is_assumed,
            converted_to: self.converted_to.map(Operation::name),
            candidates: self.candidates,
            attempt: self.attempt,
            dropped_messages: self.dropped_messages,
            ensemble: self.ensemble.map(|call| call.to_string()),
            scoring: self.scores.map(|scores| ScoringReport {
                total: widen(scores.total),
                scores: names.zip(scores.scores().iter().copied().map(widen)).collect(),
                weights: self
                    .scorer_names
                    .iter()
                    .map(|(name, weight)| (name, widen(weight)))
                    .collect(),
                matched_blocks: scores.matched_blocks,
                prompt_blocks: scores.prompt_blocks,
                telemetry_age_ms: scores.telemetry_age_ms(),
                telemetry: scores.telemetry.name(),
            }),
        }
    }
}

#[cfg(test)]
mod tests;
