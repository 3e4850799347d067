//! A direct implementation of the scheduler's rules: a loop over single steps and single requests.

use std::cmp::Reverse;
use std::collections::VecDeque;

use super::super::block_cache::{BlockCache, HeldBlocks};
use super::super::scheduler::MAX_SORTED;
use super::super::{
    BLOCK_TOKENS, Caching, EngineEvent, EngineSpec, EventKind, Order, RefuseReason, StepWork,
};
use super::Sent;

struct One {
    id: usize,
    input: u32,
    output: u32,
    computed: u32,
    emitted: u32,
    held: HeldBlocks,
    seen: bool,
    cached: u32,
    decodes: bool,
}

impl One {
    fn target(&self) -> u32 {
        self.input + self.emitted
    }
}

pub(super) struct Naive {
    spec: EngineSpec,
    cache: BlockCache,
    running: Vec<One>,
    waiting: VecDeque<One>,
    pub(super) steps: u64,
    pub(super) preemptions: u64,
    pub(super) cached_tokens: u64,
    /// The number of used blocks at the start of each step.
    pub(super) used_blocks: Vec<(u64, u32)>,
}

impl Naive {
    pub(super) fn new(spec: &EngineSpec) -> Self {
        Self {
            spec: spec.clone(),
            cache: BlockCache::new(spec.kv_blocks),
            running: Vec::new(),
            waiting: VecDeque::new(),
            steps: 0,
            preemptions: 0,
            cached_tokens: 0,
            used_blocks: Vec::new(),
        }
    }

    pub(super) fn run(&mut self, workload: &[Sent]) -> Vec<EngineEvent> {
        let mut events = Vec::new();
        let mut arrivals = workload.iter().enumerate().peekable();
        let mut now = 0;
        loop {
            if self.running.is_empty() && self.waiting.is_empty() {
                let Some((_, sent)) = arrivals.peek() else {
                    return events;
                };
                now = now.max(sent.at);
            }
            while let Some((id, sent)) = arrivals.next_if(|(_, sent)| sent.at <= now) {
                self.arrive(id, sent, &mut events);
            }
            if self.running.is_empty() && self.waiting.is_empty() {
                continue;
            }
            now = self.step(now, &mut events);
        }
    }

    fn arrive(&mut self, id: usize, sent: &Sent, events: &mut Vec<EngineEvent>) {
        let longest = self.spec.longest();
        if sent.input >= longest {
            let kind = EventKind::Refused(RefuseReason::TooLong);
            events.push(EngineEvent { id: u32::try_from(id).unwrap(), at: sent.at, kind });
            return;
        }
        self.waiting.push_back(One {
            id,
            input: sent.input,
            output: sent.output.min(longest - sent.input),
            computed: 0,
            emitted: 0,
            held: HeldBlocks::new(&sent.prefix, BLOCK_TOKENS, sent.input),
            seen: false,
            cached: 0,
            decodes: false,
        });
    }

    fn free(&mut self, one: &mut One) {
        if self.spec.caching == Caching::Blocks {
            self.cache.keep(&mut one.held, one.computed);
        }
        self.cache.free(&mut one.held, one.computed);
    }

    fn preempt(&mut self) {
        let mut victim = self.running.pop().unwrap();
        self.free(&mut victim);
        victim.computed = 0;
        victim.decodes = false;
        self.waiting.push_front(victim);
        self.preemptions += 1;
    }

    fn sort_waiting(&mut self) {
        if self.spec.order == Order::LongestPrefix {
            let by_prefix = self.waiting.len() <= MAX_SORTED;
            let cache = &self.cache;
            self.waiting.make_contiguous().sort_by_key(|one| {
                let cached = cache.find(&one.held, one.target() - 1).tokens;
                (Reverse(if by_prefix { cached } else { 0 }), one.id)
            });
        }
    }

    fn step(&mut self, now: u64, events: &mut Vec<EngineEvent>) -> u64 {
        self.sort_waiting();
        let mut budget = self.spec.max_step_tokens;
        let mut taken = Vec::new();
        let before = self.preemptions;
        let mut index = 0;
        'batch: while index < self.running.len() && budget > 0 {
            let need = (self.running[index].target() - self.running[index].computed).min(budget);
            loop {
                let one = &mut self.running[index];
                if self.cache.grow(&mut one.held, one.computed + need) {
                    break;
                }
                self.preempt();
                if self.running.len() == index {
                    break 'batch;
                }
            }
            taken.push(need);
            budget -= need;
            index += 1;
        }
        while self.preemptions == before
            && budget > 0
            && self.running.len() < self.spec.max_requests as usize
        {
            let Some(mut one) = self.waiting.pop_front() else {
                break;
            };
            let limit = if self.spec.caching == Caching::Blocks { one.target() - 1 } else { 0 };
            let hit = self.cache.find(&one.held, limit);
            let need = (one.target() - hit.tokens).min(budget);
            let blocks = (hit.tokens + need).div_ceil(BLOCK_TOKENS) - hit.tokens / BLOCK_TOKENS;
            if blocks + hit.unused > self.cache.free_blocks() {
                self.waiting.push_front(one);
                break;
            }
            self.cache.share(&mut one.held, hit);
            one.computed = hit.tokens;
            assert!(self.cache.grow(&mut one.held, one.computed + need));
            if !one.seen {
                one.seen = true;
                one.cached = hit.tokens;
                self.cached_tokens += u64::from(hit.tokens);
            }
            self.running.push(one);
            taken.push(need);
            budget -= need;
        }
        let work = self.work(&taken);
        self.used_blocks.push((now, self.cache.used()));
        let end = now + self.spec.step_time.of(&work);
        self.complete(end, &taken, events);
        self.steps += 1;
        end
    }

    fn work(&self, taken: &[u32]) -> StepWork {
        let mut work = StepWork::default();
        for (one, tokens) in self.running.iter().zip(taken) {
            if one.decodes {
                work.decodes += 1;
                work.context += u64::from(one.computed);
            } else {
                work.add_chunk(one.computed, *tokens);
            }
        }
        work
    }

    fn complete(&mut self, end: u64, taken: &[u32], events: &mut Vec<EngineEvent>) {
        let mut left = Vec::new();
        for (index, mut one) in std::mem::take(&mut self.running).into_iter().enumerate() {
            let Some(tokens) = taken.get(index) else {
                left.push(one);
                continue;
            };
            one.computed += tokens;
            if self.spec.caching == Caching::Blocks && !one.decodes {
                self.cache.keep(&mut one.held, one.computed);
            }
            let id = u32::try_from(one.id).unwrap();
            if one.computed == one.target() {
                if one.emitted == 0 {
                    let kind = EventKind::FirstToken { cached_tokens: one.cached };
                    events.push(EngineEvent { id, at: end, kind });
                }
                one.emitted += 1;
                one.decodes = true;
            }
            if one.emitted == one.output {
                let kind = EventKind::Finished { output_tokens: one.output };
                events.push(EngineEvent { id, at: end, kind });
                self.free(&mut one);
            } else {
                left.push(one);
            }
        }
        self.running = left;
    }
}
