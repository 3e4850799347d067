//! An LLM engine with continuous batching, modelled on vLLM's V1 scheduler. Each step computes one
//! token of every decoding request and, within the token budget, chunks of prompts. The KV cache is
//! divided into blocks of 16 tokens; a request that finds no free block preempts the request
//! admitted last.
//!
//! **Why it is fast.** While every running request decodes and none can be admitted, the time of
//! `n` steps has a closed form ([`StepTime::of_steps`], and the same for each segment of a
//! [`StepTable`]). So the engine advances from one event (a completion, an arrival that can be
//! admitted, a shortage of blocks) to the next, and touches a decoding request only at its start
//! and end. Tests compare it with a loop over single steps: same steps, times and preemptions.
//!
//! **What would break it.** [`Decoders`] relies on every decoding request computing one token in
//! every step. This holds for two reasons: the token budget is at least the number of requests
//! ([`EngineSpec::validate`]), and at most one prompt, the last admitted, is partly computed.

mod block_cache;
mod decoders;
mod plan;
mod request;
mod rows;
mod scheduler;
mod server;
mod slot_caches;
mod spec;
mod step_model;
mod step_table;
mod step_time;
mod streams;
#[cfg(test)]
mod tests;

use std::collections::VecDeque;

use ahash::HashMap;

use block_cache::BlockCache;
use decoders::Decoders;
use plan::StepPlan;
use request::{EnqueuedRequest, Phase, Requests};
pub use request::{RefuseReason, SubmittedRequest};
pub use rows::{EngineRow, RowError, engine_rows};

pub use server::EngineServer;
use slot_caches::SlotCaches;
pub use spec::{Admission, Caching, EngineSpec, OnDemand, Order, Slots, SpecError};
pub use step_model::StepModel;
pub use step_table::{GridError, StepGrid, StepTable};
pub use step_time::{StepTime, StepWork, picoseconds};

/// The number of tokens in one block of the KV cache.
pub const BLOCK_TOKENS: u32 = 16;

/// An event in the life of a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct EngineEvent {
    pub id: u32,
    /// The time of the event, in picoseconds.
    pub at: u64,
    pub kind: EventKind,
}

/// The kinds of [`EngineEvent`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum EventKind {
    /// Its first token was emitted.
    FirstToken {
        /// The tokens of its prompt that were in the prefix cache.
        cached_tokens: u32,
    },
    /// Its last token was emitted.
    Finished { output_tokens: u32 },
    /// The engine can never run the request.
    Refused(RefuseReason),
}

/// The telemetry that an engine reports at one moment.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct EngineTelemetry {
    /// The number of requests in the batch.
    pub running: usize,
    /// The number of requests in the queue.
    pub waiting: usize,
    /// The number of blocks that running requests hold.
    pub used_blocks: u32,
    /// The number of blocks in the KV cache.
    pub total_blocks: u32,
}

/// The counters of an engine since its start.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct EngineCounters {
    pub steps: u64,
    /// The number of requests that lost their blocks and started again.
    pub preemptions: u64,
    /// The time spent computing, in picoseconds.
    pub busy: u64,
    /// The prompt tokens of admitted requests.
    pub prompt_tokens: u64,
    /// The prompt tokens that were found in the prefix cache.
    pub cached_tokens: u64,
    /// The number of tokens emitted.
    pub output_tokens: u64,
    /// The number of models that were loaded.
    pub loads: u64,
    /// The integral of held KV-cache blocks over computing time, in block-microseconds.
    pub held_blocks: u64,
}

impl EngineCounters {
    fn add(&mut self, other: &Self) {
        self.steps += other.steps;
        self.preemptions += other.preemptions;
        self.busy += other.busy;
        self.prompt_tokens += other.prompt_tokens;
        self.cached_tokens += other.cached_tokens;
        self.output_tokens += other.output_tokens;
        self.loads += other.loads;
        self.held_blocks += other.held_blocks;
    }
}

/// An engine. A clone continues exactly as the original would.
#[derive(Debug, Clone)]
pub struct BatchingEngine {
    spec: EngineSpec,
    /// The end of the last step or of the last idle period.
    time: u64,
    requests: Requests,
    /// The slot of each request, by its id.
    slots: HashMap<u32, u32>,
    waiting: VecDeque<u32>,
    /// The running requests in the order of admission; a partly computed one can only be the last.
    running: Vec<u32>,
    decoders: Decoders,
    cache: BlockCache,
    /// The caches of the slots; empty if the slots share one cache.
    slot_caches: SlotCaches,
    plan: Option<StepPlan>,
    /// The requests that end with the current step because their clients left.
    cancelled: Vec<u32>,
    admitted: u64,
    submitted: u64,
    counters: EngineCounters,
    refused: Vec<EngineEvent>,
    /// The step time that applies after the current step.
    next_step_time: Option<StepModel>,
}

impl BatchingEngine {
    /// Creates an idle engine with an empty cache.
    ///
    /// # Errors
    /// When the engine could not run with this specification.
    pub fn new(spec: EngineSpec) -> Result<Self, SpecError> {
        spec.validate()?;
        Ok(Self {
            time: 0,
            requests: Requests::default(),
            slots: HashMap::default(),
            waiting: VecDeque::new(),
            running: Vec::new(),
            decoders: Decoders::default(),
            cache: BlockCache::new(spec.kv_blocks),
            slot_caches: SlotCaches::new(match spec.caching {
                Caching::Slots => spec.max_requests,
                Caching::Blocks | Caching::None => 0,
            }),
            plan: None,
            cancelled: Vec::new(),
            admitted: 0,
            submitted: 0,
            counters: EngineCounters::default(),
            refused: Vec::new(),
            next_step_time: None,
            spec,
        })
    }

    /// Creates an engine that starts its first step at `start` or later, because it is still being
    /// loaded.
    ///
    /// # Errors
    /// When the engine could not run with this specification.
    fn starting_at(spec: EngineSpec, start: u64) -> Result<Self, SpecError> {
        Ok(Self { time: start, ..Self::new(spec)? })
    }

    /// Takes a request that arrives at `now` (picoseconds), not earlier than the time the engine
    /// was advanced to. The request takes part in the first step that starts at `now` or later.
    pub fn submit(&mut self, now: u64, request: &SubmittedRequest<'_>) {
        let length = self.spec.longest();
        if request.input_tokens >= length {
            let kind = EventKind::Refused(RefuseReason::TooLong);
            self.refused.push(EngineEvent { id: request.id, at: now, kind });
            return;
        }
        // An idle engine starts at once; a busy one continues from the end of its step.
        if self.plan.is_none() && self.waiting.is_empty() && self.running.is_empty() {
            self.time = self.time.max(now);
        }
        let slot = self.requests.add(EnqueuedRequest::new(request, length, self.submitted));
        self.submitted += 1;
        self.slots.insert(request.id, slot);
        self.waiting.push_back(slot);
        // A request waits for those ahead of it, unless it may overtake them, and in a full batch
        // for a completion.
        let may_be_first = self.waiting.len() == 1 || self.spec.order == Order::LongestPrefix;
        if may_be_first && self.running.len() < self.spec.max_requests as usize {
            self.cut_plan(now);
        }
    }

    /// Ends a request whose client left at `now`; a running request leaves with the current step.
    pub fn cancel(&mut self, now: u64, id: u32) {
        let Some(slot) = self.slots.get(&id).copied() else {
            return;
        };
        if let Some(at) = self.waiting.iter().position(|one| *one == slot) {
            self.waiting.remove(at);
            self.remove(slot);
            self.cut_plan(now);
            return;
        }
        self.cut_plan(now);
        if self.plan.is_some() {
            self.cancelled.push(slot);
        } else {
            self.leave(slot);
        }
    }

    /// Returns the time of the next event; `None` while the engine is idle.
    pub fn next_event(&self) -> Option<u64> {
        if let Some(refused) = self.refused.first() {
            return Some(refused.at);
        }
        match &self.plan {
            Some(plan) => Some(plan.end(&self.spec.step_time)),
            None if self.waiting.is_empty() && self.running.is_empty() => None,
            None => Some(self.time),
        }
    }

    /// Computes every step that ends at `until` or before, and appends the events in order.
    pub fn advance(&mut self, until: u64, events: &mut Vec<EngineEvent>) {
        events.append(&mut self.refused);
        loop {
            if self.plan.is_none() {
                if self.time > until {
                    return;
                }
                self.plan = self.make_plan();
            }
            let Some(plan) = &self.plan else {
                return;
            };
            if plan.end(&self.spec.step_time) > until {
                return;
            }
            self.complete_plan(events);
            if let Some(step_time) = self.next_step_time.take() {
                self.spec.step_time = step_time;
            }
        }
    }

    /// Returns the telemetry at `at`, not earlier than the time the engine was advanced to.
    pub fn telemetry(&self, at: u64) -> EngineTelemetry {
        let started =
            self.plan.as_ref().map_or(0, |plan| plan.steps_started(at, &self.spec.step_time));
        EngineTelemetry {
            running: self.running.len(),
            waiting: self.waiting.len(),
            used_blocks: self.cache.used().saturating_add(self.decoders.blocks_for(started)),
            total_blocks: self.cache.total(),
        }
    }

    /// Sets the step time that applies after the step being computed at `now`.
    pub fn set_step_time(&mut self, now: u64, step_time: StepModel) {
        self.cut_plan(now);
        if self.plan.is_some() {
            self.next_step_time = Some(step_time);
        } else {
            self.spec.step_time = step_time;
        }
    }

    /// Returns the counters since the start.
    pub fn counters(&self) -> EngineCounters {
        self.counters
    }

    /// Restarts the engine at `now`: it loses its cache and all requests. Returns the ids of the
    /// requests.
    pub fn restart(&mut self, now: u64) -> Vec<u32> {
        let mut lost: Vec<u32> = self.slots.keys().copied().collect();
        // In a fixed order: a hash map would make runs with one seed differ.
        lost.sort_unstable();
        let counters = self.counters;
        let spec = self.spec.clone();
        // The specification has been validated already.
        if let Ok(fresh) = Self::new(spec) {
            *self = Self { time: self.time.max(now), counters, ..fresh };
        }
        lost
    }

    /// Returns the numbers of KV-cache blocks: held by requests, free, and total.
    pub fn block_counts(&self) -> (u32, u32, u32) {
        (self.cache.used(), self.cache.free_blocks(), self.cache.total())
    }

    /// Returns whether no request runs or waits.
    pub fn is_idle(&self) -> bool {
        self.slots.is_empty()
    }

    fn remove(&mut self, slot: u32) {
        if let Some(request) = self.requests.remove(slot) {
            self.slots.remove(&request.id);
        }
    }

    /// Removes a running request from the batch and frees its blocks.
    fn leave(&mut self, slot: u32) {
        self.running.retain(|one| *one != slot);
        self.release(slot);
        self.remove(slot);
    }

    /// Frees the blocks of a running request.
    fn release(&mut self, slot: u32) {
        let Some(request) = self.requests.get_mut(slot) else {
            return;
        };
        let computed = match request.phase {
            Phase::Decoding { base } => self.decoders.remove(base),
            Phase::Prefilling | Phase::Waiting => request.computed,
        };
        request.computed = computed;
        if self.spec.caching == Caching::Blocks {
            // Another request may have kept the same blocks at the time; those evicted since are
            // kept now.
            self.cache.keep(&mut request.held, computed);
        }
        self.cache.free(&mut request.held, computed);
        if let Some(index) = request.slot_cache.take() {
            self.slot_caches.free(index);
        }
    }
}
