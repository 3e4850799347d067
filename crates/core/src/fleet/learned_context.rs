//! The context length of a model on a backend, learned from the prompts that the engine refused for
//! their length, and from the responses that it ended for theirs.

use std::sync::atomic::{AtomicU64, Ordering};

/// The longest context that counts as known. A request beyond a longer context is sent although it
/// may not fit: at that length the estimate of a prompt is too coarse to shorten it by.
const MAX_CONTEXT: u32 = 32_768;

/// The limit that the last refusal showed. One atomic, so that both parts belong to one refusal.
#[derive(Debug, Default)]
pub struct LearnedContext(AtomicU64);

/// An engine's context, and the ratio of its tokens to estimated ones.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ContextLimit {
    /// The context length in tokens of the engine.
    pub tokens: u32,
    /// Tokens of the engine per thousand estimated tokens.
    pub scale: u32,
}

impl LearnedContext {
    /// Records the limit that a refusal showed.
    pub fn learn(&self, limit: ContextLimit) {
        let packed = u64::from(limit.tokens) << 32 | u64::from(limit.scale);
        self.0.store(packed, Ordering::Relaxed);
    }

    /// The known limit; `None` before the first refusal, and for contexts of more than 32,768
    /// tokens.
    pub fn limit(&self) -> Option<ContextLimit> {
        let packed = self.0.load(Ordering::Relaxed);
        let tokens = u32::try_from(packed >> 32).unwrap_or(u32::MAX);
        let scale = u32::try_from(packed & u64::from(u32::MAX)).unwrap_or(u32::MAX);
        (1..=MAX_CONTEXT).contains(&tokens).then_some(ContextLimit { tokens, scale })
    }

    /// Forgets a context shorter than `tokens`, the prompt and response that the engine has just
    /// held.
    pub fn disprove(&self, tokens: u32) {
        if self.limit().is_some_and(|limit| limit.tokens < tokens) {
            self.0.store(0, Ordering::Relaxed);
        }
    }

    /// Forgets the limit after a restart of the engine.
    pub(super) fn forget(&self) {
        self.0.store(0, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn short_contexts_are_known_until_the_engine_restarts() {
        let learned = LearnedContext::default();
        assert_eq!(learned.limit(), None);
        let limit = ContextLimit { tokens: 512, scale: 1250 };
        learned.learn(limit);
        assert_eq!(learned.limit(), Some(limit));
        learned.disprove(512);
        assert_eq!(learned.limit(), Some(limit));
        learned.disprove(513);
        assert_eq!(learned.limit(), None, "it was no limit");
        learned.learn(limit);
        learned.forget();
        assert_eq!(learned.limit(), None);
        learned.learn(ContextLimit { tokens: 32_769, scale: 1000 });
        assert_eq!(learned.limit(), None, "a long context is not known beforehand");
    }
}
