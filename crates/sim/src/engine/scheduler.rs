//! The scheduler: decides the work of the next step, and carries it out.

use std::cmp::Reverse;

use super::block_cache::{HeldBlocks, Hit};
use super::plan::{PrefillChunk, StepPlan};
use super::request::Phase;
use super::{
    Admission, BLOCK_TOKENS, BatchingEngine, Caching, EngineEvent, EventKind, Order, StepWork,
};

const PICOS_PER_MICRO: u64 = 1_000_000;

/// The longest queue that is sorted by cached tokens (SGLang: `schedule_policy.py`).
pub(super) const MAX_SORTED: usize = 128;

impl BatchingEngine {
    /// Plans from `self.time` on; returns `None` if no request runs or waits.
    pub(super) fn make_plan(&mut self) -> Option<StepPlan> {
        self.sort_waiting();
        let taken = self.preempt_for_decoders();
        let decodes = self.decoders.count();
        let missing = self.decoders.blocks_for(1).saturating_sub(taken.unwrap_or(0));
        let budget = self.spec.max_step_tokens.saturating_sub(decodes);
        let partly = self.partly_computed();
        let lacks_room = partly.is_some_and(|slot| !self.fits(slot, budget, missing));
        let (decodes, context) = (u64::from(decodes), self.decoders.context());
        let work = StepWork { decodes, context, ..StepWork::default() };
        if taken.is_some() || lacks_room {
            // A step with a preemption admits no request.
            self.cache.take(missing);
            if lacks_room {
                self.preempt_last();
            }
            return Some(self.mixed(Vec::new(), work));
        }
        if partly.is_some() || self.can_admit(budget, missing) {
            self.cache.take(missing);
            let chunks = self.chunks(partly, budget);
            return Some(self.mixed(chunks, work));
        }
        if decodes == 0 {
            debug_assert!(self.waiting.is_empty(), "an idle engine admits the first in its queue");
            return None;
        }
        if self.may_fit_later(budget) {
            // The request may fit once the decoding requests have taken their blocks.
            self.cache.take(missing);
            let chunks =
                if self.can_admit(budget, 0) { self.chunks(None, budget) } else { Vec::new() };
            return Some(self.mixed(chunks, work));
        }
        let most = self.decoders.steps_with(self.cache.free_blocks());
        let requests = &self.requests;
        let to_completion = self.decoders.steps_to_completion(|one| {
            requests.get(one.slot).is_some_and(|request| request.is_decoding(one.order))
        });
        // No further than the free blocks reach: the step after that may preempt.
        let steps = to_completion.unwrap_or(most).min(most);
        Some(StepPlan::Decoding { start: self.time, steps, decodes, context })
    }

    /// Sorts the waiting requests into the order of admission.
    fn sort_waiting(&mut self) {
        if self.spec.order == Order::Arrival || self.waiting.len() < 2 {
            return;
        }
        let by_prefix = self.waiting.len() <= MAX_SORTED;
        let key = |slot: &u32| {
            let request = self.requests.get(*slot);
            let cached = request.filter(|_| by_prefix);
            let cached = cached.map_or(0, |one| self.find(&one.held, one.target()).tokens);
            (Reverse(cached), request.map_or(u64::MAX, |one| one.number))
        };
        let mut sorted: Vec<u32> = self.waiting.iter().copied().collect();
        sorted.sort_by_cached_key(key);
        self.waiting = sorted.into();
    }

    /// Preempts until there are blocks for the next step of all decoding requests. Returns the
    /// number of blocks taken for those before the first that found none; `None` if nothing was
    /// preempted.
    fn preempt_for_decoders(&mut self) -> Option<u32> {
        let mut taken = None;
        while self.decoders.blocks_for(1) > taken.unwrap_or(0) + self.cache.free_blocks() {
            let free = self.cache.free_blocks();
            self.cache.take(free);
            taken = Some(taken.unwrap_or(0) + free);
            self.preempt_last();
        }
        taken
    }

    /// Selects the prompt chunks of the next step and takes their blocks.
    fn chunks(&mut self, partly: Option<u32>, budget: u32) -> Vec<PrefillChunk> {
        let mut chunks = Vec::new();
        let first = partly.and_then(|slot| self.next_chunk(slot, budget));
        chunks.extend(first);
        self.admit(budget - first.map_or(0, |chunk| chunk.tokens), &mut chunks);
        chunks
    }

    /// Returns whether there are blocks for the next chunk of a running request's prompt and for
    /// the decoding requests.
    fn fits(&self, slot: u32, budget: u32, for_decoders: u32) -> bool {
        self.requests.get(slot).is_some_and(|request| {
            let tokens = request.target().saturating_sub(request.computed).min(budget);
            let missing = request.held.missing(request.computed + tokens);
            missing.saturating_add(for_decoders) <= self.cache.free_blocks()
        })
    }

    /// Returns whether the first waiting request may be admitted next to requests that need
    /// `for_decoders` blocks. These may be blocks that the request would have shared.
    fn can_admit(&self, budget: u32, for_decoders: u32) -> bool {
        let has_slot = budget > 0 && self.running.len() < self.spec.max_requests as usize;
        let first = self.waiting.front().filter(|_| has_slot);
        first.is_some_and(|slot| self.room_for(*slot, budget, for_decoders).is_some())
    }

    /// Returns whether the first waiting request may come to fit without a completion. If only part
    /// of its prompt is computed at first, it needs fewer blocks once others have taken those it
    /// would have shared. If the order depends on the cache, another request may become the first.
    fn may_fit_later(&self, budget: u32) -> bool {
        let has_slot = self.running.len() < self.spec.max_requests as usize;
        if has_slot && self.spec.order == Order::LongestPrefix && self.waiting.len() > 1 {
            return true;
        }
        let first = self.waiting.front().and_then(|slot| self.requests.get(*slot));
        first.is_some_and(|request| {
            let target = request.target();
            let hit = self.find(&request.held, target);
            hit.unused > 0 && target - hit.tokens > budget
        })
    }

    /// Finds the shared part of the first `target` tokens of a prompt. The last token is always
    /// computed, because its result is the next token.
    fn find(&self, held: &HeldBlocks, target: u32) -> Hit {
        match self.spec.caching {
            Caching::Blocks => self.cache.find(held, target - 1),
            Caching::None => Hit::of_tokens(0),
            Caching::Slots => {
                let found = self.slot_caches.find(held, target - 1);
                found.map_or(Hit::of_tokens(0), |(_, hit)| hit)
            }
        }
    }

    /// Returns the cached part of a waiting request's prompt if there is room for its first chunk.
    fn room_for(&self, slot: u32, budget: u32, for_others: u32) -> Option<Hit> {
        let request = self.requests.get(slot)?;
        let own = request.longest.div_ceil(BLOCK_TOKENS);
        if self
            .reserved_blocks()
            .is_some_and(|others| others.saturating_add(own) > self.cache.total())
        {
            return None;
        }
        let target = request.target();
        let hit = self.find(&request.held, target);
        let tokens = (target - hit.tokens).min(budget);
        // A block that is only partly cached needs a new one, since its end will differ.
        let new = (hit.tokens + tokens).div_ceil(BLOCK_TOKENS) - hit.tokens / BLOCK_TOKENS;
        let blocks = new.saturating_add(hit.unused).saturating_add(for_others);
        (blocks <= self.cache.free_blocks()).then_some(hit)
    }

    /// Returns the plan of a step that computes these chunks.
    fn mixed(&self, chunks: Vec<PrefillChunk>, mut work: StepWork) -> StepPlan {
        for chunk in &chunks {
            let computed = self.requests.get(chunk.slot).map_or(0, |request| request.computed);
            work.add_chunk(computed, chunk.tokens);
        }
        let end = self.time + self.spec.step_time.of(&work);
        StepPlan::Mixed { start: self.time, end, chunks }
    }

    /// Returns the request whose prompt is partly computed.
    fn partly_computed(&self) -> Option<u32> {
        let last = self.running.last().copied()?;
        let request = self.requests.get(last)?;
        (request.phase == Phase::Prefilling).then_some(last)
    }

    /// Returns the next chunk of a running request's prompt and takes its blocks; `None` if they do
    /// not suffice.
    fn next_chunk(&mut self, slot: u32, budget: u32) -> Option<PrefillChunk> {
        let request = self.requests.get_mut(slot)?;
        let tokens = request.target().saturating_sub(request.computed).min(budget);
        let has_room = self.cache.grow(&mut request.held, request.computed + tokens);
        has_room.then_some(PrefillChunk { slot, tokens })
    }

    /// Admits requests in the order of arrival while there is room; no request overtakes the first.
    fn admit(&mut self, mut budget: u32, chunks: &mut Vec<PrefillChunk>) {
        while budget > 0 && self.running.len() < self.spec.max_requests as usize {
            let Some(slot) = self.waiting.front().copied() else {
                return;
            };
            // A shorter request behind it could fit, but vLLM lets none overtake.
            if !self.take_in(slot, budget) {
                return;
            }
            self.waiting.pop_front();
            self.running.push(slot);
            let Some(chunk) = self.next_chunk(slot, budget) else {
                debug_assert!(false, "room was looked for");
                return;
            };
            budget -= chunk.tokens;
            chunks.push(chunk);
        }
    }

    /// Admits a waiting request with the cached part of its prompt, if there is room for its first
    /// chunk.
    fn take_in(&mut self, slot: u32, budget: u32) -> bool {
        let Some(hit) = self.room_for(slot, budget, 0) else {
            return false;
        };
        let Some(request) = self.requests.get_mut(slot) else {
            return false;
        };
        if self.spec.caching == Caching::Slots {
            let found = self.slot_caches.find(&request.held, request.target() - 1);
            request.slot_cache = found.map(|(index, _)| index);
            found.into_iter().for_each(|(index, _)| self.slot_caches.take(index, &request.held));
        }
        self.cache.share(&mut request.held, hit);
        request.computed = hit.tokens;
        request.phase = Phase::Prefilling;
        request.order = self.admitted;
        self.admitted += 1;
        // Counted at the first admission only: a preempted request is admitted again.
        if request.cached_tokens.is_none() {
            request.cached_tokens = Some(hit.tokens);
            self.counters.prompt_tokens += u64::from(request.input_tokens);
            self.counters.cached_tokens += u64::from(hit.tokens);
        }
        true
    }

    /// Returns the number of blocks that running requests may come to need; `None` if nothing is
    /// reserved.
    fn reserved_blocks(&self) -> Option<u32> {
        let blocks = |slot: &u32| {
            self.requests.get(*slot).map_or(0, |request| request.longest.div_ceil(BLOCK_TOKENS))
        };
        (self.spec.admission == Admission::Reserved).then(|| self.running.iter().map(blocks).sum())
    }

    /// Preempts the request admitted last: it loses its blocks and waits ahead of all others.
    fn preempt_last(&mut self) {
        let Some(slot) = self.running.pop() else {
            return;
        };
        self.release(slot);
        if let Some(request) = self.requests.get_mut(slot) {
            if let Phase::Decoding { .. } = request.phase {
                // Emitted tokens are computed again as a part of the prompt.
                request.emitted = request.computed - request.input_tokens + 1;
            }
            request.computed = 0;
            request.phase = Phase::Waiting;
        }
        // It goes first again, as in vLLM: others would otherwise overtake it for good.
        self.waiting.push_front(slot);
        self.counters.preemptions += 1;
    }

    /// Shortens a plan of decoding steps to those that start before `now`, because the scheduler
    /// may decide differently then.
    pub(super) fn cut_plan(&mut self, now: u64) {
        let Some(StepPlan::Decoding { start, steps, decodes, context }) = &mut self.plan else {
            return;
        };
        let passed = now.saturating_sub(*start);
        *steps = self.spec.step_time.steps_within(passed, *steps, *decodes, *context);
        if *steps == 0 {
            self.time = *start;
            self.plan = None;
        }
    }

    pub(super) fn complete_plan(&mut self, events: &mut Vec<EngineEvent>) {
        let Some(plan) = self.plan.take() else {
            return;
        };
        let end = plan.end(&self.spec.step_time);
        let (took, held) = (end - plan.start(), self.cache.used());
        self.counters.busy += took;
        self.time = end;
        let (steps, chunks) = match plan {
            StepPlan::Mixed { chunks, .. } => (1, chunks),
            StepPlan::Decoding { steps, .. } => {
                self.cache.take(self.decoders.blocks_for(steps));
                (steps, Vec::new())
            }
        };
        // Blocks are taken evenly over the steps of a plan.
        let held = u64::from(held.midpoint(self.cache.used()));
        self.counters.held_blocks += held.saturating_mul(took / PICOS_PER_MICRO);
        self.decoders.take_steps(steps);
        self.counters.steps += steps;
        // Every decoding request was admitted before all requests whose prompts were computed.
        while let Some(complete) = self.decoders.pop_complete() {
            let request = self.requests.get(complete.slot);
            if request.is_some_and(|request| request.is_decoding(complete.order)) {
                self.finish(complete.slot, events);
            }
        }
        for chunk in chunks {
            self.complete_chunk(chunk, events);
        }
        // Only now: an engine does not stop within a step.
        for slot in std::mem::take(&mut self.cancelled) {
            self.leave(slot);
        }
    }

    fn complete_chunk(&mut self, chunk: PrefillChunk, events: &mut Vec<EngineEvent>) {
        let Some(request) = self.requests.get_mut(chunk.slot) else {
            return;
        };
        request.computed += chunk.tokens;
        if self.spec.caching == Caching::Blocks {
            // As soon as it is computed: requests that arrive during a long prefill may share it.
            self.cache.keep(&mut request.held, request.computed);
        }
        if request.computed < request.target() {
            return;
        }
        if request.emitted == 0 {
            let cached_tokens = request.cached_tokens.unwrap_or_default();
            let kind = EventKind::FirstToken { cached_tokens };
            events.push(EngineEvent { id: request.id, at: self.time, kind });
        }
        request.emitted += 1;
        let left = request.output_tokens.saturating_sub(request.emitted);
        if left == 0 {
            self.finish(chunk.slot, events);
            return;
        }
        let base = self.decoders.add(request.computed, left, request.order, chunk.slot);
        request.phase = Phase::Decoding { base };
    }

    fn finish(&mut self, slot: u32, events: &mut Vec<EngineEvent>) {
        if let Some(request) = self.requests.get(slot) {
            let output_tokens = request.output_tokens;
            let kind = EventKind::Finished { output_tokens };
            events.push(EngineEvent { id: request.id, at: self.time, kind });
            self.counters.output_tokens += u64::from(output_tokens);
        }
        self.leave(slot);
    }
}
