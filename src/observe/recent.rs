//! The recent traffic, for the simulation of a new configuration before a reload
//! (`routing.reload_gate`): times, token counts and salted hashes, no text. Bounded in time and
//! number.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use parking_lot::Mutex;
use penstock_api::units::{Timestamp, to_micros};
use penstock_clock::now;
use penstock_config::{Config, ReloadGateConfig};
use penstock_core::fleet::Outcome;
use penstock_core::routing::{RequestObserver, RequestOutcome};
use penstock_sim::replay::{EarlierConfig, ServedRequest};

/// The maximum number of requests kept.
const MAX_REQUESTS: usize = 20_000;

/// The requests served in the last minutes.
#[derive(Debug, Default)]
pub struct RecentTraffic {
    /// The time that a request is kept, in microseconds; 0 keeps none.
    window: AtomicU64,
    changes: Mutex<ConfigHistory>,
    // Locked once per request at its end, and only if the gate is configured.
    requests: Mutex<VecDeque<ServedRequest>>,
}

/// The configurations of the recent traffic.
#[derive(Debug, Default)]
struct ConfigHistory {
    /// The time since which the one in force serves.
    since: Timestamp,
    earlier: Option<EarlierConfig>,
}

impl RecentTraffic {
    /// Records that `config` was replaced by another configuration.
    pub fn note_replaced(&self, config: Config) {
        let mut changes = self.changes.lock();
        let (since, until) = (changes.since, now());
        *changes =
            ConfigHistory { since: until, earlier: Some(EarlierConfig { config, since, until }) };
    }

    /// Returns the time since which the configuration in force serves, and the configuration before
    /// it.
    pub fn changes(&self) -> (Timestamp, Option<EarlierConfig>) {
        let changes = self.changes.lock();
        (changes.since, changes.earlier.clone())
    }

    /// Applies the configuration: without a gate, nothing is kept.
    pub fn configure(&self, gate: Option<&ReloadGateConfig>) {
        let window = gate.map_or(0, |gate| to_micros(gate.window));
        self.window.store(window, Ordering::Relaxed);
        if window == 0 {
            // A reload may have removed the gate: its memory goes, too.
            *self.requests.lock() = VecDeque::new();
            self.changes.lock().earlier = None;
        }
    }

    /// Returns the requests served within the last `window`, the oldest first.
    pub fn within(&self, window: Duration) -> Vec<ServedRequest> {
        let since = now().before(window);
        let requests = self.requests.lock();
        // Older requests stay until another one ends: without traffic nothing is evicted.
        requests.iter().filter(|one| one.ended >= since).cloned().collect()
    }
}

impl RequestObserver for RecentTraffic {
    fn finished(&self, outcome: &RequestOutcome<'_>) {
        let window = self.window.load(Ordering::Relaxed);
        let (Some(fields), Some((_, backend))) =
            (outcome.record.request.replay.as_deref(), outcome.backend())
        else {
            return;
        };
        // A failed request shows neither how long its prompt takes nor the length of its output.
        if window == 0 || outcome.outcome != Outcome::Ok {
            return;
        }
        let usage = outcome.record.response.usage.unwrap_or_default();
        let estimated = outcome.record.request.prompt_tokens.map(|tokens| tokens.0);
        let input = usage.prompt_tokens.or(estimated).filter(|count| *count > 0);
        let output = usage.completion_tokens.or(Some(outcome.record.response.token_events));
        let Some((input_tokens, output_tokens)) = input.zip(output.filter(|count| *count > 0))
        else {
            return;
        };
        let client = outcome.details.client.map(|address| address.to_string());
        let served = ServedRequest {
            ended: now(),
            took: outcome.took,
            first_token: outcome.first_token.filter(|_| outcome.record.request.is_streaming),
            input_tokens,
            estimated_tokens: estimated.unwrap_or(0),
            output_tokens,
            model: outcome.record.request.requested_model.as_deref().unwrap_or_default().into(),
            client: outcome
                .details
                .key
                .map_or_else(|| client.unwrap_or_default(), str::to_owned)
                .into(),
            backend: backend.into(),
            fields: fields.clone(),
        };
        let since = served.ended.0.saturating_sub(window);
        let mut requests = self.requests.lock();
        while requests.front().is_some_and(|oldest| oldest.ended.0 < since)
            || requests.len() >= MAX_REQUESTS
        {
            requests.pop_front();
        }
        requests.push_back(served);
    }
}
