//! Logs the events of each request at `debug`: its backend, the reason, and the counted tokens.
//! Above that level it costs a comparison.

use penstock_core::routing::{RequestObserver, RequestOutcome, Routed};
use tracing::debug;

/// Logs decisions and token counts at `debug`, without prompts and without keys of clients.
#[derive(Debug, Clone, Copy)]
pub struct DebugLog;

impl RequestObserver for DebugLog {
    fn routed(&self, event: &Routed<'_>) {
        let Some(serving) = event.decision.serving(event.fleet) else { return };
        debug!(
            request_id = event.request_id,
            model = event.requested_model,
            backend = %serving.state.name,
            strategy = event.decision.strategy.name(),
            candidates = event.decision.candidates,
            attempt = event.attempt,
            is_fallback = event.decision.is_fallback,
            "picked"
        );
    }

    fn finished(&self, outcome: &RequestOutcome<'_>) {
        let Some((_, backend)) = outcome.backend else { return };
        debug!(
            request_id = outcome.details.request_id,
            model = outcome.model,
            backend,
            status = outcome.status,
            input_tokens = outcome.usage.and_then(|usage| usage.prompt_tokens),
            output_tokens = outcome.usage.and_then(|usage| usage.completion_tokens),
            token_events = outcome.token_events,
            "counted"
        );
    }
}
