//! The decoding requests as sums: each computes one token in every step, so a step changes none of
//! them individually.

use std::cmp::Reverse;
use std::collections::BinaryHeap;

use super::BLOCK_TOKENS;

const RESIDUES: usize = BLOCK_TOKENS as usize;

/// The completion of a request: the step that emits its last token.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Completion {
    /// The step, counted from the engine's start.
    pub(super) step: u64,
    /// The admission number of the request.
    pub(super) order: u64,
    pub(super) slot: u32,
}

/// The sums over the decoding requests of the batch.
#[derive(Debug, Clone, Default)]
pub(super) struct Decoders {
    /// The number of steps so far.
    step: u64,
    count: u32,
    /// The sum of the requests' bases.
    bases: i64,
    /// The number of requests for each base modulo the tokens of a block.
    residues: [u32; RESIDUES],
    completions: BinaryHeap<Reverse<Completion>>,
}

fn residue(base: i64) -> usize {
    usize::try_from(base.rem_euclid(i64::from(BLOCK_TOKENS))).unwrap_or_default()
}

impl Decoders {
    /// Returns the number of decoding requests.
    pub(super) fn count(&self) -> u32 {
        self.count
    }

    /// Returns the total tokens of their contexts.
    pub(super) fn context(&self) -> u64 {
        let all = self.bases.saturating_add(self.steps().saturating_mul(i64::from(self.count)));
        debug_assert!(all >= 0, "contexts are not negative");
        u64::try_from(all).unwrap_or_default()
    }

    fn steps(&self) -> i64 {
        i64::try_from(self.step).unwrap_or(i64::MAX)
    }

    /// Adds a request with `computed` tokens and `left` tokens to emit. Returns its base.
    pub(super) fn add(&mut self, computed: u32, left: u32, order: u64, slot: u32) -> i64 {
        let base = i64::from(computed) - self.steps();
        self.count += 1;
        self.bases += base;
        if let Some(count) = self.residues.get_mut(residue(base)) {
            *count += 1;
        }
        let step = self.step + u64::from(left);
        self.completions.push(Reverse(Completion { step, order, slot }));
        base
    }

    /// Removes a request. Returns the number of tokens it has computed.
    pub(super) fn remove(&mut self, base: i64) -> u32 {
        self.count = self.count.saturating_sub(1);
        self.bases -= base;
        if let Some(count) = self.residues.get_mut(residue(base)) {
            *count = count.saturating_sub(1);
        }
        self.computed(base)
    }

    /// Returns the number of tokens that a request has computed.
    pub(super) fn computed(&self, base: i64) -> u32 {
        u32::try_from(base.saturating_add(self.steps())).unwrap_or_default()
    }

    /// Returns the number of steps until the next completion; `is_live` returns whether a
    /// completion is still valid.
    pub(super) fn steps_to_completion(
        &mut self,
        is_live: impl Fn(&Completion) -> bool,
    ) -> Option<u64> {
        // Requests that were preempted or left are still in the heap; they are dropped here.
        while let Some(Reverse(next)) = self.completions.peek() {
            if is_live(next) {
                return Some(next.step - self.step);
            }
            self.completions.pop();
        }
        None
    }

    /// Removes and returns a request that has completed.
    pub(super) fn pop_complete(&mut self) -> Option<Completion> {
        let Reverse(next) = self.completions.peek()?;
        if next.step > self.step {
            return None;
        }
        self.completions.pop().map(|Reverse(one)| one)
    }

    /// Counts steps in which every decoding request computed a token.
    pub(super) fn take_steps(&mut self, steps: u64) {
        self.step += steps;
    }

    /// Returns the number of requests that need a new block in the step after `done` more.
    fn at_a_boundary(&self, done: u64) -> u32 {
        let at = residue(-(self.steps().saturating_add(i64::try_from(done).unwrap_or(i64::MAX))));
        self.residues.get(at).copied().unwrap_or_default()
    }

    /// Returns the number of new blocks that `steps` steps need.
    pub(super) fn blocks_for(&self, steps: u64) -> u32 {
        let rounds = steps / u64::from(BLOCK_TOKENS);
        let rest = steps % u64::from(BLOCK_TOKENS);
        let whole = rounds.saturating_mul(u64::from(self.count));
        let part: u32 = (0..rest).map(|done| self.at_a_boundary(done)).sum();
        u32::try_from(whole).unwrap_or(u32::MAX).saturating_add(part)
    }

    /// Returns the maximum number of steps for which `free` blocks suffice; unlimited if nothing
    /// decodes.
    pub(super) fn steps_with(&self, free: u32) -> u64 {
        let Some(rounds) = free.checked_div(self.count) else {
            return u64::MAX;
        };
        let mut left = free % self.count;
        let mut steps = u64::from(rounds) * u64::from(BLOCK_TOKENS);
        for done in 0..u64::from(BLOCK_TOKENS) {
            let needed = self.at_a_boundary(done);
            if needed > left {
                break;
            }
            left -= needed;
            steps += 1;
        }
        steps
    }
}
