//! The number of tokens in one event of a model's streams on a backend. Engines that predict
//! several tokens at once (speculative decoding), or send at intervals, would look as slow as their
//! events are rare.

use std::sync::atomic::{AtomicU32, Ordering};

use penstock_api::units::TokenCount;

/// The fewest events from which the number is learned: the last event may be a partial one.
const MIN_EVENTS: u32 = 8;
/// The largest number: an engine's count is not trusted beyond it.
const MAX_TOKENS: f32 = 32.0;
/// The weight of a stream in the average.
const GAIN: f32 = 0.25;

/// The mean number of tokens in an event, as the bits of an `f32`; 0 before the first stream with a
/// count.
#[derive(Debug, Default)]
pub(super) struct EventTokens(AtomicU32);

impl EventTokens {
    pub(super) fn value(&self) -> f32 {
        match f32::from_bits(self.0.load(Ordering::Relaxed)) {
            0.0 => 1.0,
            known => known,
        }
    }

    #[expect(clippy::cast_precision_loss, reason = "a mean needs few digits")]
    pub(super) fn learn(&self, tokens: u32, events: u32) {
        if events < MIN_EVENTS {
            return;
        }
        let seen = (tokens as f32 / events as f32).clamp(1.0, MAX_TOKENS);
        let known = f32::from_bits(self.0.load(Ordering::Relaxed));
        let mixed = if known == 0.0 { seen } else { known + GAIN * (seen - known) };
        self.0.store(mixed.to_bits(), Ordering::Relaxed);
    }

    pub(super) fn forget(&self) {
        self.0.store(0, Ordering::Relaxed);
    }
}

/// The tokens of one stream, counted by its events.
#[derive(Debug, Clone, Copy)]
pub struct TokenCounter {
    event_tokens: f32,
    events: u32,
    tokens: f32,
}

impl TokenCounter {
    pub(super) fn new(event_tokens: f32) -> Self {
        Self { event_tokens, events: 0, tokens: 0.0 }
    }

    /// Returns the tokens in the next `events`. Fractions add up.
    #[expect(clippy::cast_precision_loss, reason = "a mean needs few digits")]
    pub fn count(&mut self, events: u32) -> u32 {
        let before = self.total().0;
        self.events = self.events.saturating_add(events);
        self.tokens += events as f32 * self.event_tokens;
        self.total().0.saturating_sub(before)
    }

    /// The tokens so far.
    #[expect(
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        reason = "a positive number"
    )]
    pub fn total(&self) -> TokenCount {
        TokenCount(self.tokens as u32)
    }

    pub(super) fn events(&self) -> u32 {
        self.events
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fractions_of_tokens_add_up() {
        let mut counter = TokenCounter::new(2.5);
        let counts = [1, 1, 0, 2].map(|events| counter.count(events));
        assert_eq!((counts, counter.total()), ([2, 3, 0, 5], TokenCount(10)));
    }

    #[test]
    fn tokens_of_an_event_are_the_mean_of_streams_with_enough_events() {
        let tokens = EventTokens::default();
        assert_eq!(tokens.value(), 1.0);
        tokens.learn(70, 7);
        assert_eq!(tokens.value(), 1.0, "too few events");
        tokens.learn(80, 10);
        assert_eq!(tokens.value(), 8.0);
        tokens.learn(40, 10);
        assert_eq!(tokens.value(), 7.0);
        tokens.learn(3, 10);
        assert_eq!(tokens.value(), 5.5, "at least one each");
        tokens.forget();
        tokens.learn(u32::MAX, 8);
        assert_eq!(tokens.value(), MAX_TOKENS);
    }
}
