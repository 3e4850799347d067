//! Keeps the prefix index up to date: a prompt is expected in the cache of the backend it is routed
//! to, until the attempt fails or the engine reports otherwise.

use super::observer::{AttemptEnded, RequestObserver, Routed};
use crate::fleet::Outcome;

/// Updates the prefix index of the model that a request is routed to.
#[derive(Debug, Clone, Copy, Default)]
pub struct PrefixObserver;

impl RequestObserver for PrefixObserver {
    // Before the next decision: of two requests with the same prompt, the second finds the blocks
    // of the first.
    fn routed(&self, event: &Routed<'_>) {
        let weighted = event.generation.router.weighted();
        if let Some((weighted, prompt)) = weighted.zip(event.prompt) {
            weighted.record(event.fleet, event.decision, prompt);
        }
    }

    fn attempt_ended(&self, event: &AttemptEnded<'_>) {
        let Some(weighted) = event.router.weighted() else { return };
        let is_computed = match event.outcome {
            Outcome::Client => false,
            // The engine may have computed the prompt before its client left, but not at once: a
            // client that always leaves at once would fill the index with uncomputed prompts.
            Outcome::Cancel => {
                let scores = event.decision.scores;
                event.has_output || scores.is_some_and(|one| one.may_be_computed(event.took))
            }
            _ => event.is_relayed,
        };
        if !is_computed {
            weighted.take_back(event.fleet, event.decision);
        } else if let Some(cached) = event.usage.and_then(|usage| usage.cached_tokens) {
            weighted.learn(event.fleet, event.decision, cached);
        }
    }
}
