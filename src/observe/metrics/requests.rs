//! Counters of finished requests. One lookup finds every series of a combination of labels.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use penstock_api::{KindCounters, OPERATIONS, Operation};
use penstock_core::routing::RequestOutcome;
use prometheus::Histogram;

use super::distribution::{Distributions, observe};
use super::outcome::OutcomeId;
use crate::observe::names::{BoundedNames, NameId};
use crate::observe::series::SeriesMap;

/// The labels of a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(super) struct RequestKey {
    pub(super) model: NameId,
    pub(super) backend: NameId,
    pub(super) operation: Option<Operation>,
    pub(super) status: u16,
    pub(super) outcome: OutcomeId,
}

/// The labels of a request's duration.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(super) struct DurationKey {
    pub(super) model: NameId,
    pub(super) backend: NameId,
    pub(super) outcome: OutcomeId,
}

/// The labels of tokens.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(super) struct TokensKey {
    pub(super) model: NameId,
    pub(super) backend: NameId,
}

/// The labels of OpenTelemetry's conventions.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(super) struct GenAiKey {
    pub(super) operation: &'static str,
    pub(super) provider: &'static str,
    pub(super) model: NameId,
}

/// Tokens as counted by the engines.
#[derive(Debug, Default)]
pub(super) struct TokenSeries {
    pub(super) input: AtomicU64,
    pub(super) output: AtomicU64,
    pub(super) cached: AtomicU64,
    /// The cached tokens that the prefix index expected for the same requests.
    pub(super) expected: AtomicU64,
}

/// The metrics of OpenTelemetry's conventions.
#[derive(Debug)]
pub(super) struct GenAiSeries {
    pub(super) took: Histogram,
    pub(super) first_token: Histogram,
    pub(super) per_token: Histogram,
    pub(super) input: Histogram,
    pub(super) output: Histogram,
}

/// Every series of one combination of labels.
#[derive(Debug)]
pub(super) struct RequestSeries {
    pub(super) count: AtomicU64,
    took: Arc<Histogram>,
    tokens: Arc<TokenSeries>,
    /// Present only for complete responses of an engine.
    gen_ai: Option<Arc<GenAiSeries>>,
}

/// Every series of finished requests.
#[derive(Debug, Default)]
pub(super) struct RequestMetrics {
    pub(super) by_labels: SeriesMap<RequestKey, RequestSeries>,
    pub(super) durations: SeriesMap<DurationKey, Histogram>,
    pub(super) tokens: SeriesMap<TokensKey, TokenSeries>,
    pub(super) gen_ai: SeriesMap<GenAiKey, GenAiSeries>,
}

impl RequestMetrics {
    /// Counts a finished request. `provider` names the engine of its backend.
    pub(super) fn count(
        &self,
        key: RequestKey,
        provider: Option<&'static str>,
        outcome: &RequestOutcome<'_>,
        kinds: &Distributions,
    ) {
        let make = || Arc::new(self.make(key, provider, kinds));
        self.by_labels.with(key, make, |series| series.count(outcome));
    }

    fn make(
        &self,
        key: RequestKey,
        provider: Option<&'static str>,
        kinds: &Distributions,
    ) -> RequestSeries {
        let RequestKey { model, backend, outcome, .. } = key;
        let duration = DurationKey { model, backend, outcome };
        // The conventions for GenAI are about operations of a model: errors would distort the
        // times.
        let is_response = backend != BoundedNames::PLACEHOLDER && outcome == OutcomeId::OK;
        let gen_ai = key.operation.filter(|_| is_response).map(|operation| {
            let operation = operation.row().gen_ai_name;
            let key = GenAiKey { operation, provider: provider.unwrap_or("unknown"), model };
            self.gen_ai.get_or_add(key, || Arc::new(GenAiSeries::new(kinds)))
        });
        RequestSeries {
            count: AtomicU64::new(0),
            // Shared by combinations that differ only in labels that these series lack.
            took: self.durations.get_or_add(duration, || Arc::new(kinds.durations.make())),
            tokens: self.tokens.get_or_add(TokensKey { model, backend }, Arc::default),
            gen_ai,
        }
    }
}

impl RequestSeries {
    fn count(&self, outcome: &RequestOutcome<'_>) {
        self.count.fetch_add(1, Ordering::Relaxed);
        observe(&self.took, outcome.took);
        if let Some(usage) = outcome.record.response.usage {
            add(&self.tokens.input, usage.prompt_tokens);
            add(&self.tokens.output, usage.completion_tokens);
            add(&self.tokens.cached, usage.cached_tokens);
            add(&self.tokens.expected, outcome.record.routing.expected_cached);
        }
        if let Some(gen_ai) = &self.gen_ai {
            gen_ai.count(outcome);
        }
    }
}

impl GenAiSeries {
    fn new(kinds: &Distributions) -> Self {
        Self {
            took: kinds.durations.make(),
            first_token: kinds.first_tokens.make(),
            per_token: kinds.per_token.make(),
            input: kinds.tokens.make(),
            output: kinds.tokens.make(),
        }
    }

    fn count(&self, outcome: &RequestOutcome<'_>) {
        observe(&self.took, outcome.took);
        let usage = outcome.record.response.usage;
        let output = usage.and_then(|usage| usage.completion_tokens);
        if let Some(tokens) = usage.and_then(|usage| usage.prompt_tokens) {
            self.input.observe(tokens.into());
        }
        if let Some(tokens) = output {
            self.output.observe(tokens.into());
        }
        if let Some(first) = outcome.first_token.filter(|_| outcome.record.request.is_streaming) {
            observe(&self.first_token, first);
            // The first token ends TTFT; the others share the remaining time.
            let others = output.unwrap_or(outcome.record.response.token_events).saturating_sub(1);
            if let Some(each) = outcome.took.saturating_sub(first).checked_div(others) {
                observe(&self.per_token, each);
            }
        }
    }
}

fn add(counter: &AtomicU64, tokens: Option<u32>) {
    // Most requests have no cached tokens, and an addition moves the counter's cache line.
    if let Some(tokens) = tokens.filter(|tokens| *tokens > 0) {
        counter.fetch_add(tokens.into(), Ordering::Relaxed);
    }
}

/// The counts of converted requests: a counter for each pair of an original and a new operation.
#[derive(Debug, Default)]
pub(super) struct Conversions([KindCounters<{ OPERATIONS.len() }>; OPERATIONS.len()]);

impl Conversions {
    pub(super) fn count(&self, from: Operation, to: Operation) {
        let row = self.0.get(from as usize);
        debug_assert!(row.is_some(), "there is a row per operation");
        if let Some(row) = row {
            row.count(to as usize);
        }
    }

    /// Returns every pair that was counted.
    pub(super) fn all(&self) -> impl Iterator<Item = (&'static str, &'static str, u64)> {
        let names = || OPERATIONS.iter().map(|row| row.name);
        self.0.iter().zip(names()).flat_map(move |(row, from)| {
            let counts = row.read().into_iter().zip(names());
            counts.map(move |(count, to)| (from, to, count)).filter(|(.., count)| *count > 0)
        })
    }
}
