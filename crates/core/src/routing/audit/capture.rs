//! A captured decision: everything it read, as self-contained JSON. It holds no prompt and no key,
//! only hashes of prompts. `replay` decides again from it.

mod candidate;
mod file;
mod split;
mod strategy;

use std::sync::atomic::{AtomicU64, Ordering};

use serde::{Deserialize, Serialize};

use super::trace::Trace;
use crate::fleet::{ModelId, Probe, Topology};
use crate::routing::filters::RejectReason;
use crate::routing::{Names, RouteInput, Router, RoutingDecision, readings};
use candidate::CandidateRecord;
pub use file::CaptureError;
use penstock_api::hex::Hex;
use penstock_api::units::{Timestamp, to_micros};
use penstock_scoring::{Candidate, Objectives, PrefixParams, RequestFeatures};
use split::SplitRecord;
use strategy::StrategyRecord;

/// The version of [`Capture`]; files of other versions are refused.
pub(super) const VERSION: u32 = 2;

/// The time until which decisions are captured. Outside of it, a decision pays one atomic load.
#[derive(Debug, Default)]
pub struct Lease(AtomicU64);

impl Lease {
    pub fn extend(&self, until: Timestamp) {
        // Relaxed: it does not matter whether a decision at this very instant is captured.
        self.0.store(until.0, Ordering::Relaxed);
    }

    pub fn end(&self) {
        self.0.store(0, Ordering::Relaxed);
    }

    /// Returns whether decisions are captured now. Reads the clock only if the lease was extended.
    #[inline(always)]
    pub fn lasts(&self, now: impl FnOnce() -> Timestamp) -> bool {
        let until = self.0.load(Ordering::Relaxed);
        until != 0 && now().0 < until
    }
}

/// A decision with everything it read.
// Fields that are not understood are refused: a replay without one of them could decide otherwise
// and call that a difference of the code.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Capture {
    version: u32,
    /// The number of the decision, counted since the start.
    pub number: u64,
    pub request_id: String,
    /// 1 for the first attempt of a request.
    pub attempt: u32,
    /// The time of the decision, in microseconds since the process started.
    at_us: u64,
    request: CapturedRequest,
    pub(super) strategy: StrategyRecord,
    /// The seed of the generator that random picks drew from.
    pub(super) seed: Hex,
    /// The turn that the strategy took; absent if it took none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) turn: Option<u64>,
    /// The model that the decision is about.
    pub model: String,
    pub(super) candidates: Vec<CandidateRecord>,
    pub(super) rejected: Vec<RejectedRecord>,
    pub decision: DecisionRecord,
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(expecting = "an object with the facts of a request", deny_unknown_fields)]
struct CapturedRequest {
    operation: String,
    /// The model as the client named it.
    model: String,
    estimated_tokens: u32,
    /// The tokens that an engine reads; absent in captures of earlier versions.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    prompt_tokens: Option<u32>,
    tokens_to_fit: u32,
    needs: Vec<String>,
    streaming: bool,
    /// The split of the alias that the request names.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    split: Option<SplitRecord>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    session: Option<Hex>,
    /// The row of the home of the session.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    home: Option<u32>,
    #[serde(default, skip_serializing_if = "ObjectivesRecord::is_none")]
    objectives: ObjectivesRecord,
    prompt: PromptRecord,
}

#[derive(Debug, Clone, Copy, PartialEq, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
struct ObjectivesRecord {
    ttft_ms: Option<f64>,
    tpot_ms: Option<f64>,
    priority: i32,
}

impl ObjectivesRecord {
    fn is_none(&self) -> bool {
        *self == Self::default()
    }
}

impl From<Objectives> for ObjectivesRecord {
    fn from(Objectives { ttft_ms, tpot_ms, priority }: Objectives) -> Self {
        Self { ttft_ms, tpot_ms, priority }
    }
}

impl From<ObjectivesRecord> for Objectives {
    fn from(ObjectivesRecord { ttft_ms, tpot_ms, priority }: ObjectivesRecord) -> Self {
        Self { ttft_ms, tpot_ms, priority }
    }
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct PromptRecord {
    blocks: u32,
    /// True if the prompt has more blocks.
    #[serde(default, skip_serializing_if = "is_false")]
    cut: bool,
    block_tokens: u32,
    first_block: Hex,
    last_block: Hex,
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct RejectedRecord {
    pub(super) backend: String,
    pub(super) model: String,
    pub(super) row: u32,
    pub(super) excluded: String,
    pub(super) reason: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) cooldown_remaining_ms: Option<f64>,
    /// True if a backend in cooldown is only assumed to have what the request needs.
    #[serde(default, skip_serializing_if = "is_false")]
    pub(super) assumed: bool,
}

/// The decision in a capture.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct DecisionRecord {
    /// The backend that got the request.
    pub backend: String,
    pub(super) row: u32,
    /// True if no strategy decided: all were in cooldown, and the first to end was probed.
    #[serde(default, skip_serializing_if = "is_false")]
    pub(super) next_probe: bool,
    #[serde(default, skip_serializing_if = "is_false")]
    fallback: bool,
    #[serde(default, skip_serializing_if = "is_false")]
    assumed: bool,
    #[serde(default, skip_serializing_if = "is_false")]
    in_panic: bool,
    /// True if the request exceeded the limit of the model because all limits were reached.
    #[serde(default, skip_serializing_if = "is_false")]
    spill: bool,
    /// The weighted sum of its scores, if scorers decided.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) total: Option<f64>,
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde asks so")]
fn is_false(value: &bool) -> bool {
    !value
}

/// The identity of a captured attempt, and the seed of its random picks.
#[derive(Debug, Clone, Copy)]
pub struct CapturedAttempt<'a> {
    pub request_id: &'a str,
    /// 1 for the first attempt.
    pub attempt: u32,
    /// The seed of the generator.
    pub seed: u64,
}

impl Router {
    /// Captures a decision with everything it read.
    pub fn capture(
        &self,
        of: CapturedAttempt<'_>,
        input: &RouteInput<'_>,
        decision: &RoutingDecision,
        trace: &Trace,
    ) -> Capture {
        let topology = input.fleet;
        let pass = trace.pass(decision.model);
        // A pass that admitted no backend has read no features, and a capture has them in any case.
        let unread = || {
            let block_tokens = PrefixParams::default().block_tokens;
            readings::features(input, topology.model(decision.model), block_tokens)
        };
        let features = pass.and_then(|pass| pass.features).unwrap_or_else(unread);
        let candidates = pass.map_or(&[][..], |pass| &pass.candidates);
        let rejected = trace.passes().iter().flat_map(|pass| {
            let rejected = pass.rejected.iter();
            rejected.map(|(row, reason)| RejectedRecord::of(pass.model, *row, *reason, input))
        });
        Capture {
            version: VERSION,
            // Set by the log of decisions, which alone counts them.
            number: 0,
            request_id: of.request_id.to_owned(),
            attempt: of.attempt,
            at_us: input.now.0,
            request: CapturedRequest::of(&self.names, input, &features),
            strategy: StrategyRecord::of(self, decision.strategy),
            seed: Hex(of.seed),
            turn: trace.turn(),
            model: model_name(topology, decision.model),
            candidates: candidates
                .iter()
                .map(|one| CandidateRecord {
                    backend: backend_name(topology, decision.model, one.row),
                    // The request stores it once for all candidates.
                    readings: Candidate { prompt_blocks: 0, ..*one },
                })
                .collect(),
            rejected: rejected.collect(),
            decision: DecisionRecord {
                backend: backend_name(topology, decision.model, decision.row),
                row: decision.row,
                next_probe: decision.probe == Probe::Cooldown,
                fallback: decision.is_fallback,
                assumed: decision.is_assumed,
                in_panic: decision.in_panic,
                spill: decision.spills,
                total: pass.and_then(|pass| pass.total(decision.row)),
            },
        }
    }
}

fn model_name(topology: &Topology, id: ModelId) -> String {
    topology.model(id).map_or("", |model| &*model.name).to_owned()
}

fn backend_name(topology: &Topology, model: ModelId, row: u32) -> String {
    topology.serving(model, row).map_or("", |serving| &*serving.state.name).to_owned()
}

impl Capture {
    /// Returns the number of backends in the capture.
    pub fn rows(&self) -> usize {
        self.candidates.len() + self.rejected.len()
    }

    /// Returns the request as the scorers read it.
    pub(super) fn features(&self) -> RequestFeatures {
        let PromptRecord { blocks, cut, block_tokens, first_block, last_block } =
            self.request.prompt;
        RequestFeatures {
            first_block: first_block.0,
            last_block: last_block.0,
            prompt_blocks: blocks,
            is_cut: cut,
            // Only a prompt without text has no hash.
            in_turn: blocks == 0 && first_block.0 == 0,
            turn: 0,
            block_tokens,
            prompt_tokens: self.request.prompt_tokens.unwrap_or(self.request.estimated_tokens),
            session: self.request.session.map(|session| session.0),
            home: self.request.home,
            objectives: self.request.objectives.into(),
        }
    }

    /// Returns the model that the split of the alias selects; without a split, the recorded model.
    pub(super) fn split_model(&self) -> &str {
        self.request.split.as_ref().map_or(&*self.model, |split| split.model(&self.model))
    }

    /// Returns the operation, and the model as the client named it.
    pub fn asked(&self) -> (&str, &str) {
        (&self.request.operation, &self.request.model)
    }

    pub(super) fn readings(&self) -> Vec<Candidate> {
        let prompt_blocks = self.request.prompt.blocks;
        self.candidates.iter().map(|one| Candidate { prompt_blocks, ..one.readings }).collect()
    }
}

impl CapturedRequest {
    fn of(names: &Names, input: &RouteInput<'_>, features: &RequestFeatures) -> Self {
        let request = input.request;
        Self {
            operation: request.operation.name().to_owned(),
            model: input.model.to_owned(),
            estimated_tokens: request.estimated_tokens.0,
            prompt_tokens: Some(request.prompt_tokens.0),
            tokens_to_fit: input.tokens.0,
            needs: request.needs.names().map(str::to_owned).collect(),
            streaming: request.streaming,
            split: names.split(input.model, input.fleet).map(|split| SplitRecord::of(split, input)),
            session: features.session.map(Hex),
            home: features.home,
            objectives: features.objectives.into(),
            prompt: PromptRecord {
                blocks: features.prompt_blocks,
                cut: features.is_cut,
                block_tokens: features.block_tokens,
                first_block: Hex(features.first_block),
                last_block: Hex(features.last_block),
            },
        }
    }
}

impl RejectedRecord {
    fn of(model: ModelId, row: u32, reason: RejectReason, input: &RouteInput<'_>) -> Self {
        // The only reason that a replay compares: it probes the backend whose cooldown ends first.
        let remaining = match reason {
            RejectReason::Cooldown { until, .. } => Some(until.since(input.now)),
            _ => None,
        };
        Self {
            backend: backend_name(input.fleet, model, row),
            model: model_name(input.fleet, model),
            row,
            excluded: reason.name().to_owned(),
            reason: reason.to_text(input),
            cooldown_remaining_ms: remaining.map(|left| to_micros(left) as f64 / 1000.0),
            assumed: matches!(reason, RejectReason::Cooldown { is_known: false, .. }),
        }
    }
}
