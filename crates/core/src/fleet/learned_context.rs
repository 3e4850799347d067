//! The context length of a model on a backend, learned from the prompts that the engine refused for
//! their length, and from the responses that it ended for theirs.
//!
//! A prompt that an engine has held disproves a shorter context. An end for its length is weak
//! evidence: the engine may limit the output alone. Such a limit gives responses of equal length, a
//! full context gives equal sums of prompt and response: two ends have to agree on the sum with
//! different prompts.

use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use penstock_api::units::lower_half;

/// The longest context that counts as known. A request beyond a longer context is sent although it
/// may not fit: at that length the estimate of a prompt is too coarse to shorten it by.
const MAX_CONTEXT: u32 = 32_768;
/// The shortest context that responses show: a limit of the output alone is rarely longer.
const MIN_FILLED: u32 = 2048;
/// The largest difference between the sums of two responses that fill the same context.
const MAX_SUM_DIFFERENCE: u32 = 8;
/// The smallest difference between their prompts.
const MIN_PROMPT_DIFFERENCE: u32 = 64;

/// The limit that the last refusal showed, or two responses that filled it.
#[derive(Debug, Default)]
pub struct LearnedContext {
    /// One atomic, so that both parts belong to one refusal.
    limit: AtomicU64,
    /// The most tokens that a prompt and its response had together.
    held: AtomicU32,
    /// The prompt and the sum of the last response that may have filled the context.
    filled: AtomicU64,
}

/// An engine's context, and the ratio of its tokens to estimated ones.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ContextLimit {
    /// The context length in tokens of the engine.
    pub tokens: u32,
    /// Tokens of the engine per thousand estimated tokens.
    pub scale: u32,
}

impl ContextLimit {
    /// The scale of an engine whose count equals the estimate.
    pub const UNIT: u32 = 1000;
}

impl LearnedContext {
    /// Records the limit that a refusal showed, unless the engine has held more.
    ///
    /// Its scale is that of one prompt, and Base64 has twice as many tokens as words have: other
    /// conversations would be shortened although they fit. With a scale that is too low they meet
    /// the engine's refusal at worst, so only a low one is kept.
    pub fn learn(&self, limit: ContextLimit) {
        if limit.tokens >= self.held.load(Ordering::Relaxed) {
            let scale = limit.scale.min(ContextLimit::UNIT);
            self.limit.store(packed(limit.tokens, scale), Ordering::Relaxed);
        }
    }

    /// The known limit; `None` before the first refusal, and for contexts of more than 32,768
    /// tokens.
    pub fn limit(&self) -> Option<ContextLimit> {
        let (tokens, scale) = unpacked(self.limit.load(Ordering::Relaxed));
        (1..=MAX_CONTEXT).contains(&tokens).then_some(ContextLimit { tokens, scale })
    }

    /// Records that the engine has held a prompt and a response of `tokens` together, which
    /// disproves a shorter context.
    pub fn hold(&self, tokens: u32) {
        self.held.fetch_max(tokens, Ordering::Relaxed);
        let (limit, _) = unpacked(self.limit.load(Ordering::Relaxed));
        if limit < tokens {
            self.limit.store(0, Ordering::Relaxed);
        }
    }

    /// Records a response that ended for its length although its client set no limit: `prompt`
    /// and `sum`, the tokens of the prompt, and of both. The second one that ends at the same sum
    /// with another prompt shows the context; `scale` is then that of the limit.
    pub fn fill(&self, prompt: u32, sum: u32, scale: u32) {
        self.hold(sum);
        let held = self.held.load(Ordering::Relaxed);
        let is_longest = sum.saturating_add(MAX_SUM_DIFFERENCE) >= held;
        // The words of an engine that refused, or an earlier pair, are no worse.
        let is_known = self.limit.load(Ordering::Relaxed) != 0;
        if sum < MIN_FILLED || !is_longest || is_known {
            return;
        }
        let (last_prompt, last_sum) =
            unpacked(self.filled.swap(packed(prompt, sum), Ordering::Relaxed));
        if last_sum.abs_diff(sum) <= MAX_SUM_DIFFERENCE
            && last_prompt.abs_diff(prompt) >= MIN_PROMPT_DIFFERENCE
        {
            self.learn(ContextLimit { tokens: sum.max(last_sum), scale });
        }
    }

    /// Forgets everything after a restart of the engine.
    pub(super) fn forget(&self) {
        self.limit.store(0, Ordering::Relaxed);
        self.held.store(0, Ordering::Relaxed);
        self.filled.store(0, Ordering::Relaxed);
    }
}

fn packed(high: u32, low: u32) -> u64 {
    u64::from(high) << 32 | u64::from(low)
}

fn unpacked(both: u64) -> (u32, u32) {
    (lower_half(both >> 32), lower_half(both))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn known(learned: &LearnedContext) -> Option<u32> {
        learned.limit().map(|limit| limit.tokens)
    }

    #[test]
    fn short_contexts_are_known_until_the_engine_restarts() {
        let learned = LearnedContext::default();
        assert_eq!(learned.limit(), None);
        let limit = ContextLimit { tokens: 512, scale: 900 };
        learned.learn(limit);
        assert_eq!(learned.limit(), Some(limit));
        learned.hold(512);
        assert_eq!(learned.limit(), Some(limit));
        learned.hold(513);
        assert_eq!(learned.limit(), None, "it was no limit");
        learned.learn(limit);
        assert_eq!(learned.limit(), None, "the engine has held more");
        learned.forget();
        learned.learn(limit);
        assert_eq!(learned.limit(), Some(limit));
        learned.learn(ContextLimit { tokens: 32_769, scale: 1000 });
        assert_eq!(learned.limit(), None, "a long context is not known beforehand");
    }

    #[test]
    fn dense_prompt_of_one_client_does_not_shorten_those_of_others() {
        let learned = LearnedContext::default();
        learned.learn(ContextLimit { tokens: 8192, scale: 2800 });
        let expected = ContextLimit { tokens: 8192, scale: ContextLimit::UNIT };
        assert_eq!(learned.limit(), Some(expected));
    }

    #[test]
    fn responses_of_one_sum_show_the_context() {
        let learned = LearnedContext::default();
        learned.fill(3000, 4096, 1000);
        learned.fill(3010, 4096, 1000);
        assert_eq!(known(&learned), None, "the same conversation again");
        learned.fill(1000, 4095, 900);
        assert_eq!(learned.limit(), Some(ContextLimit { tokens: 4096, scale: 900 }));
        learned.fill(2500, 3000, 1000);
        learned.fill(1500, 3000, 1000);
        assert_eq!(known(&learned), Some(4096), "more has been held");
        learned.hold(4097);
        assert_eq!(known(&learned), None);
    }

    #[test]
    fn limit_of_the_output_is_no_context() {
        let learned = LearnedContext::default();
        for prompt in [1, 20, 3000, 5000, 2100, 2100, 9000, 8990] {
            learned.fill(prompt, prompt + 100, 1000);
            assert_eq!(known(&learned), None, "{prompt}");
        }
        let learned = LearnedContext::default();
        learned.fill(100, 612, 1000);
        learned.fill(300, 612, 1000);
        assert_eq!(known(&learned), None, "too short to be believed");
        learned.learn(ContextLimit { tokens: 8192, scale: 1000 });
        learned.fill(1000, 4096, 1000);
        learned.fill(3000, 4096, 1000);
        assert_eq!(known(&learned), Some(8192), "a refusal is better evidence");
    }
}
