//! The part of the contexts on an engine that takes room in its KV cache: streams that begin alike
//! share the blocks of what they have in common.

/// The rate at which the share follows each report, about once a second: a report and the contexts
/// are up to a second apart.
const RATE: f64 = 0.1;
/// The least share of the cache that contexts must take to be learned from: of few, a block that is
/// half full counts for much.
const MIN_CONTEXTS: f64 = 0.1;
/// The least share. Found in simulation: agents that start together share up to 70 % of their
/// contexts.
const MIN_SHARE: f64 = 0.1;

/// The share of the contexts there that takes room, as the engine reports it.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct KvSharing(f64);

impl Default for KvSharing {
    fn default() -> Self {
        Self(1.0)
    }
}

impl KvSharing {
    /// Learns from `used_tokens` of a cache of `kv_tokens` that the engine reports as used while
    /// contexts of `context_tokens` are there.
    pub(super) fn learn(&mut self, used_tokens: f64, context_tokens: f64, kv_tokens: f64) {
        if context_tokens >= MIN_CONTEXTS * kv_tokens {
            let share = (used_tokens / context_tokens).clamp(MIN_SHARE, 1.0);
            self.0 += RATE * (share - self.0);
        }
    }

    /// Returns the tokens of contexts for which a cache of `kv_tokens` has room.
    pub(super) fn room(self, kv_tokens: f64) -> f64 {
        kv_tokens / self.0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cache_has_room_for_more_where_contexts_share_blocks() {
        let mut sharing = KvSharing::default();
        assert_eq!(sharing.room(100_000.0), 100_000.0);
        sharing.learn(100.0, 9_000.0, 100_000.0);
        assert_eq!(sharing.room(100_000.0), 100_000.0, "too little is there");
        (0..100).for_each(|_| sharing.learn(30_000.0, 60_000.0, 100_000.0));
        assert!((sharing.room(100_000.0) - 200_000.0).abs() < 100.0);
        (0..100).for_each(|_| sharing.learn(90_000.0, 60_000.0, 100_000.0));
        assert!((sharing.room(100_000.0) - 100_000.0).abs() < 100.0, "others use it as well");
    }
}
