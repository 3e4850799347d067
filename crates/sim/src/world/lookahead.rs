//! The future of the requests at an engine if no other request arrives: a clone of the engine, with
//! the true output lengths, computes until they end. From it come the verdicts on refusals: what
//! the engines could have done for a request if no other one had arrived. Only the simulator can do
//! this; no decision of `penstock serve` reads it.

use ahash::HashMap;
use penstock_core::fleet::BackendSet;

use super::World;
use super::engines::PICOS;
use super::events::Sent;
use super::result::{RefusalVerdict, ShedReason, Status};
use crate::engine::{EngineEvent, EngineServer, EventKind};

/// The maximum number of steps of an engine's clone; a series of unchanged steps counts as one.
/// Requests that have not ended by then count as late.
const MAX_STEPS: usize = 20_000;

/// The future of the requests at an engine.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(super) struct Foreseen {
    /// The number of requests that reach their objectives.
    pub(super) good: usize,
    /// The future of the examined request.
    pub(super) own: Future,
}

/// The future of a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Future {
    /// The time of its first token, in microseconds; `u64::MAX` if beyond the computed steps.
    pub(super) first_token: u64,
    /// The time of its end; `u64::MAX` if beyond the computed steps.
    pub(super) ended: u64,
    /// True if it reaches its objectives.
    pub(super) is_good: bool,
}

impl Default for Future {
    fn default() -> Self {
        Self { first_token: u64::MAX, ended: u64::MAX, is_good: false }
    }
}

/// A clone of an engine that computes ahead.
struct LookAhead<'a> {
    world: &'a World<'a>,
    engine: EngineServer,
    own: Option<u32>,
    /// The times of first tokens within the computed steps.
    first_tokens: HashMap<u32, u64>,
    events: Vec<EngineEvent>,
    /// The number of streams whose first token was in time.
    hopeful: usize,
    /// The time at which the last request without a first token becomes late.
    last_chance: u64,
    foreseen: Foreseen,
}

impl World<'_> {
    /// Computes the future of the requests at an engine, and of request `own` if it is sent there
    /// at `at`.
    pub(super) fn look_ahead(&self, index: usize, own: Option<u32>, at: u64) -> Option<Foreseen> {
        let engine = self.engines.all.get(index)?.engine.clone();
        let mut ahead = LookAhead {
            world: self,
            engine,
            own,
            first_tokens: HashMap::default(),
            events: Vec::new(),
            hopeful: 0,
            last_chance: 0,
            foreseen: Foreseen::default(),
        };
        ahead.count_those_there(index);
        let mut sent = self.sent.get(index)?.clone();
        let request = own.and_then(|id| self.workload.requests.get(id as usize));
        if let Some((id, request)) = own.zip(request) {
            let due = at + self.delay_of(request, index);
            // The last number: among requests that arrive at the same time, those already sent come
            // first.
            sent.insert(Sent { due, number: u64::MAX, id, attempt: 0, backend: index });
        }
        for one in sent {
            ahead.submit(&one, index);
        }
        Some(ahead.compute())
    }

    /// Returns whether a request with these times and tokens reaches its objectives.
    fn is_good(&self, id: u32, first_token: u64, end: Option<(u64, u32)>) -> bool {
        let arrived = self.results.get(id as usize).map_or(0, |one| one.arrived);
        let is_within = |time: u64, ms: Option<f64>| ms.is_none_or(|ms| time as f64 <= ms * 1000.0);
        let objectives = &self.spec.objectives;
        let is_first = is_within(first_token.saturating_sub(arrived), objectives.ttft_ms);
        is_first
            && end.is_none_or(|(ended, tokens)| {
                let gaps = u64::from(tokens.saturating_sub(1));
                let most = objectives.tpot_ms.map(|ms| ms * gaps as f64);
                // A response of one token has no time per token to miss.
                gaps == 0 || is_within(ended.saturating_sub(first_token), most)
            })
    }

    /// Returns the time at which a request without a first token is late.
    fn late_at(&self, id: u32) -> u64 {
        let arrived = self.results.get(id as usize).map_or(0, |one| one.arrived);
        let most = self.spec.objectives.ttft_ms.unwrap_or(f64::INFINITY);
        arrived.saturating_add(crate::workload::rounded(most * 1000.0))
    }
}

impl LookAhead<'_> {
    fn count_those_there(&mut self, index: usize) {
        let all: Vec<u32> = self.engine.ids().collect();
        for id in all {
            // The engine may still hold a request whose client has left or tries elsewhere.
            if self.world.backend_of(id, None) != Some(index) {
                continue;
            }
            match self.world.results.get(id as usize).map_or(0, |one| one.first_token) {
                0 => self.last_chance = self.last_chance.max(self.world.late_at(id)),
                first => self.hopeful += usize::from(self.world.is_good(id, first, None)),
            }
        }
    }

    fn submit(&mut self, sent: &Sent, index: usize) {
        let is_own = self.own == Some(sent.id);
        if !is_own && self.world.backend_of(sent.id, Some(sent.attempt)) != Some(index) {
            return;
        }
        // Up to its arrival first: a step that has started does not take it in.
        self.run(sent.due);
        let Some(request) = self.world.request_of(sent.id) else { return };
        let model = self.world.model_at(sent.id, index);
        self.engine.submit(sent.due.saturating_mul(PICOS), &model, &request);
        self.last_chance = self.last_chance.max(self.world.late_at(sent.id));
    }

    fn run(&mut self, until: u64) {
        let mut events = std::mem::take(&mut self.events);
        self.engine.advance(until.saturating_mul(PICOS), &mut events);
        for event in events.drain(..) {
            self.note(&event);
        }
        self.events = events;
    }

    /// Computes until the outcome of every request is known, and the end of the examined one.
    fn compute(mut self) -> Foreseen {
        for _ in 0..MAX_STEPS {
            let Some(next) = self.engine.next_event().map(|at| at.div_ceil(PICOS)) else { break };
            let has_own = self.own.is_none() || self.foreseen.own.ended < u64::MAX;
            // No request can become good any more, however long the clone computes.
            if has_own && self.hopeful == 0 && next > self.last_chance {
                break;
            }
            self.run(next);
        }
        self.foreseen
    }

    fn note(&mut self, event: &EngineEvent) {
        let (id, at) = (event.id, event.at.div_ceil(PICOS));
        let is_own = self.own == Some(id);
        let is_there = || self.world.live.get(id as usize).is_some_and(Option::is_some);
        if !is_own && !is_there() {
            return;
        }
        match event.kind {
            EventKind::FirstToken { .. } => {
                self.first_tokens.insert(id, at);
                self.hopeful += usize::from(self.world.is_good(id, at, None));
                if is_own {
                    self.foreseen.own.first_token = at;
                }
            }
            EventKind::Finished { output_tokens } => {
                let before = self.world.results.get(id as usize).map_or(0, |one| one.first_token);
                let first = self.first_tokens.get(&id).copied().unwrap_or(before);
                // Only one whose first token was in time was counted.
                self.hopeful -= usize::from(self.world.is_good(id, first, None)).min(self.hopeful);
                let is_good = self.world.is_good(id, first, Some((at, output_tokens)));
                self.foreseen.good += usize::from(is_good);
                if is_own {
                    self.foreseen.own = Future { first_token: first, ended: at, is_good };
                }
            }
            EventKind::Refused(_) => {}
        }
    }
}

impl World<'_> {
    pub(super) fn shed(&mut self, id: u32, reason: ShedReason, at: u64) {
        // The engines have no part in these.
        if !matches!(reason, ShedReason::Unserved | ShedReason::BudgetExceeded) {
            self.judge(id, at);
        }
        self.end(id, Status::Shed(reason), at);
    }

    /// Judges what could be done for a request now. Once it could have been served well, a later
    /// refusal is wrong.
    pub(super) fn judge(&mut self, id: u32, at: u64) {
        let known = self.results.get(id as usize).map_or(RefusalVerdict::None, |one| one.verdict);
        if !self.spec.judges_sheds || known == RefusalVerdict::Wrong {
            return;
        }
        let outlooks =
            self.outlooks(id, self.balancer_of(id), &BackendSet::default(), at).unwrap_or_default();
        let verdict = match () {
            () if outlooks.iter().any(|one| one.gain > 0) => RefusalVerdict::Wrong,
            () if outlooks.iter().any(|one| one.own.is_good) => RefusalVerdict::Harmful,
            () => known.max(RefusalVerdict::Late),
        };
        if let Some(result) = self.results.get_mut(id as usize) {
            result.verdict = known.max(verdict);
        }
    }
}
