//! A captured decision: all it read, as JSON that stands for itself. No prompt and no key is in it,
//! only hashes of prompts. `replay` decides anew by it.

mod exact;
mod strategy;

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use serde::{Deserialize, Serialize};

use super::card::Told;
use super::notes::{LeftOut, Noted, Notes};
use super::{RouteInput, Router, RoutingDecision};
use crate::fleet::{Standing, Topology};
use crate::scoring::{Adapter, Ask, Candidate, PrefixParams};
use crate::units::{Micros, Timestamp, to_micros};
pub(super) use exact::{Exact, Hex};
use strategy::StrategyRecord;

/// The form of [`Capture`]; files of another one are refused.
pub(super) const VERSION: u32 = 1;

/// Until when decisions are captured. While they are not, each pays for one load.
#[derive(Debug, Default)]
pub struct Lease(AtomicU64);

impl Lease {
    /// Lets them be captured until then.
    pub fn extend(&self, until: Timestamp) {
        self.0.store(until.0, Ordering::Relaxed);
    }

    /// Ends it.
    pub fn end(&self) {
        self.0.store(0, Ordering::Relaxed);
    }

    /// Whether it lasts; the time is asked for only when there is one.
    #[inline(always)]
    pub fn lasts(&self, now: impl FnOnce() -> Timestamp) -> bool {
        let until = self.0.load(Ordering::Relaxed);
        until != 0 && now().0 < until
    }
}

/// A decision with everything it read.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Capture {
    version: u32,
    /// Counts all decisions since the start.
    pub number: u64,
    /// The request's id.
    pub request_id: String,
    /// 1 for the first attempt of a request.
    pub attempt: u32,
    /// When, in microseconds since the process started.
    at_us: u64,
    request: RequestRecord,
    pub(super) strategy: StrategyRecord,
    /// What the generator was seeded with that random picks draw from.
    pub(super) seed: Hex,
    /// Whose turn it was; absent where the strategy did not ask.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) turn: Option<u64>,
    /// The model it was decided for.
    pub model: String,
    pub(super) candidates: Vec<CandidateRecord>,
    pub(super) left_out: Vec<LeftOutRecord>,
    /// What was decided.
    pub decision: DecisionRecord,
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct RequestRecord {
    operation: String,
    /// As the client named it.
    model: String,
    estimated_tokens: u32,
    /// Those that must fit a context.
    tokens_to_fit: u32,
    needs: Vec<String>,
    streaming: bool,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    session: Option<Hex>,
    prompt: PromptRecord,
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct PromptRecord {
    blocks: u32,
    block_tokens: u32,
    first_block: Hex,
    last_block: Hex,
}

/// What was read of a candidate. What is absent was not known.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct CandidateRecord {
    pub(super) backend: String,
    row: u32,
    priority: u32,
    in_flight: u64,
    tokens_in_flight: u64,
    prefill_tokens: u64,
    /// What `smart` goes by.
    pub(super) latency_ms: Exact,
    /// What the scorer `latency` goes by.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    first_token_ms: Option<Exact>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    waiting: Option<Exact>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    running: Option<Exact>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    load: Option<Exact>,
    /// Of stale telemetry the median of the others.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    kv_utilization: Option<Exact>,
    telemetry: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    telemetry_age_ms: Option<Exact>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    adapter: Option<String>,
    matched_blocks: u32,
}

/// A backend that was no candidate, and why not.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct LeftOutRecord {
    pub(super) backend: String,
    pub(super) model: String,
    pub(super) row: u32,
    pub(super) excluded: String,
    pub(super) reason: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) cooldown_remaining_ms: Option<Exact>,
}

/// What was decided.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct DecisionRecord {
    /// Where the request went.
    pub backend: String,
    pub(super) row: u32,
    /// Whether all rested and the one that was due first was asked, whatever the strategy.
    #[serde(default, skip_serializing_if = "is_false")]
    pub(super) first_due: bool,
    #[serde(default, skip_serializing_if = "is_false")]
    fallback: bool,
    #[serde(default, skip_serializing_if = "is_false")]
    assumed: bool,
    #[serde(default, skip_serializing_if = "is_false")]
    in_panic: bool,
    /// The sum of its scores by weight, where scorers decided.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) total: Option<Exact>,
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde asks so")]
fn is_false(value: &bool) -> bool {
    !value
}

const ADAPTERS: [(Adapter, &str); 4] = [
    (Adapter::Active, "active"),
    (Adapter::FreeSlot, "free_slot"),
    (Adapter::Waiting, "waiting"),
    (Adapter::Absent, "absent"),
];

impl Router {
    /// What a decision read, as it was noted.
    pub fn capture(
        &self,
        (request_id, attempt): (&str, u32),
        (input, decision): (&RouteInput<'_>, &RoutingDecision),
        notes: Notes,
    ) -> Capture {
        let topology = input.fleet;
        let name = |id| topology.model(id).map_or("", |model| &*model.name).to_owned();
        let serving = decision.serving(topology);
        let strategy = StrategyRecord::of(self);
        let left_out = notes.left_out.iter();
        Capture {
            version: VERSION,
            number: 0,
            request_id: request_id.to_owned(),
            attempt,
            at_us: input.now.0,
            request: RequestRecord::of(input, &notes),
            strategy,
            seed: Hex(notes.seed),
            turn: notes.turn,
            model: name(decision.model),
            candidates: notes.candidates.iter().map(CandidateRecord::of).collect(),
            left_out: left_out.map(|one| LeftOutRecord::of(one, topology, input.now)).collect(),
            decision: DecisionRecord {
                backend: serving.map_or("", |serving| &*serving.state.name).to_owned(),
                row: decision.row,
                first_due: notes.is_first_due,
                fallback: decision.is_fallback,
                assumed: decision.is_assumed,
                in_panic: decision.in_panic,
                total: notes.total.map(Exact),
            },
        }
    }
}

impl Capture {
    /// How many backends are in it.
    pub fn rows(&self) -> usize {
        self.candidates.len() + self.left_out.len()
    }

    /// What was known of the request.
    pub(super) fn ask(&self) -> Ask {
        let PromptRecord { block_tokens, first_block, last_block, .. } = self.request.prompt;
        Ask {
            first_block: first_block.0,
            last_block: last_block.0,
            in_turn: self.turn.is_some(),
            turn: self.turn.unwrap_or_default(),
            block_tokens,
            prompt_tokens: self.request.estimated_tokens,
            session: self.request.session.map(|session| session.0),
        }
    }

    pub(super) fn is_streaming(&self) -> bool {
        self.request.streaming
    }

    /// The operation, and the model as the client named it.
    pub fn asked(&self) -> (&str, &str) {
        (&self.request.operation, &self.request.model)
    }

    pub(super) fn noted(&self) -> Vec<Noted> {
        self.candidates.iter().map(|one| one.to_noted(self.request.prompt.blocks)).collect()
    }
}

impl RequestRecord {
    fn of(input: &RouteInput<'_>, notes: &Notes) -> Self {
        let request = input.request;
        let ask = notes.ask.unwrap_or_else(|| Ask {
            block_tokens: PrefixParams::default().block_tokens,
            session: input.session,
            ..Ask::default()
        });
        let blocks = notes.candidates.first().map_or(0, |one| one.candidate.prompt_blocks);
        Self {
            operation: request.operation.name().to_owned(),
            model: input.model.to_owned(),
            estimated_tokens: request.estimated_tokens.0,
            tokens_to_fit: input.tokens.0,
            needs: request.needs.names().map(str::to_owned).collect(),
            streaming: request.streaming,
            session: ask.session.map(Hex),
            prompt: PromptRecord {
                blocks,
                block_tokens: ask.block_tokens,
                first_block: Hex(ask.first_block),
                last_block: Hex(ask.last_block),
            },
        }
    }
}

impl CandidateRecord {
    fn of(noted: &Noted) -> Self {
        let Noted { backend, latency_micros, told, candidate: one } = noted;
        let adapter = ADAPTERS.iter().find(|(adapter, _)| *adapter == one.adapter);
        Self {
            backend: backend.to_string(),
            row: one.place,
            priority: one.priority,
            in_flight: to_count(one.in_flight),
            tokens_in_flight: to_count(one.tokens_in_flight),
            prefill_tokens: to_count(one.prefill_tokens),
            latency_ms: Exact(f64::from(*latency_micros) / 1000.0),
            first_token_ms: one.latency_ms.map(Exact),
            waiting: one.waiting.map(Exact),
            running: one.running.map(Exact),
            load: one.load.map(Exact),
            kv_utilization: one.kv_utilization.map(Exact),
            telemetry: told.standing.name().to_owned(),
            telemetry_age_ms: told.age_ms().map(Exact),
            adapter: adapter.map(|(_, name)| (*name).to_owned()),
            matched_blocks: one.matched_blocks,
        }
    }

    fn to_noted(&self, prompt_blocks: u32) -> Noted {
        let number = |given: Option<Exact>| given.map(|Exact(number)| number);
        let adapter = ADAPTERS.iter().find(|(_, name)| Some(*name) == self.adapter.as_deref());
        let standing = Standing::ALL.into_iter().find(|one| one.name() == self.telemetry);
        let age = self.telemetry_age_ms.map(|age| Duration::try_from_secs_f64(age.0 / 1000.0));
        Noted {
            backend: self.backend.as_str().into(),
            latency_micros: u32::try_from(to_count((self.latency_ms.0 * 1000.0).round()))
                .unwrap_or(u32::MAX),
            told: Told {
                age: age.and_then(Result::ok).map(Micros::from),
                standing: standing.unwrap_or_default(),
            },
            candidate: Candidate {
                place: self.row,
                waiting: number(self.waiting),
                running: number(self.running),
                load: number(self.load),
                kv_utilization: number(self.kv_utilization),
                in_flight: self.in_flight as f64,
                tokens_in_flight: self.tokens_in_flight as f64,
                prefill_tokens: self.prefill_tokens as f64,
                matched_blocks: self.matched_blocks,
                prompt_blocks,
                priority: self.priority,
                latency_ms: number(self.first_token_ms),
                adapter: adapter.map_or(Adapter::Unknown, |(adapter, _)| *adapter),
                ..Candidate::new(&self.backend)
            },
        }
    }
}

/// A count that was turned into a number for the scorers.
#[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "it was a count")]
fn to_count(number: f64) -> u64 {
    number as u64
}

impl LeftOutRecord {
    fn of(one: &LeftOut, topology: &Topology, now: Timestamp) -> Self {
        let rest = one.due.map(|due| to_micros(due.since(now)) as f64 / 1000.0);
        Self {
            backend: one.backend.to_string(),
            model: topology.model(one.model).map_or("", |model| &*model.name).to_owned(),
            row: one.row,
            excluded: one.excluded.to_owned(),
            reason: one.reason.clone(),
            cooldown_remaining_ms: rest.map(Exact),
        }
    }
}
