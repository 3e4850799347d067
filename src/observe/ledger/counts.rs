//! The counts, and the contribution of one request.

use penstock_api::{Operation, Work};
use penstock_core::admission::budgets::Money;
use penstock_core::fleet::Outcome;
use penstock_core::routing::RequestOutcome;

/// Requests and their tokens.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct LedgerCounts {
    /// Successful requests, and cancelled ones with at least a part of a response.
    pub requests: u64,
    /// The requests among them whose tokens penstock estimated, at least in part.
    pub estimated_requests: u64,
    /// Tokens of the prompts.
    pub input_tokens: u64,
    /// Tokens of the responses.
    pub output_tokens: u64,
    /// The requests whose model has a price, and their cost in billionths of the currency: by the
    /// price at the time, so that a later change of prices changes nothing.
    pub priced_requests: u64,
    pub cost: u64,
}

impl LedgerCounts {
    /// Returns the counts of a request; `None` if it failed or is not one that a model serves.
    ///
    /// The engine's own counts have precedence. Without them, the output is the number of stream
    /// events with tokens, and the input is the estimate that the request was routed by.
    pub(super) fn of(outcome: &RequestOutcome<'_>) -> Option<Self> {
        let operation = outcome.operation?;
        let seen = outcome.record.response.token_events;
        let is_cancelled = match outcome.outcome {
            Outcome::Ok | Outcome::Empty if outcome.backend().is_some() => false,
            // Only requests whose client received a part: tokens computed before that are unknown.
            Outcome::Cancel if seen > 0 || outcome.record.response.usage.is_some() => true,
            Outcome::Ok
            | Outcome::Empty
            | Outcome::Cancel
            | Outcome::Client
            | Outcome::Busy { .. }
            | Outcome::Refused { .. }
            | Outcome::Fault
            | Outcome::Unreachable
            | Outcome::Shortage => return None,
        };
        let one = Self { requests: 1, ..Self::default() };
        // Requests that only count or format text compute no token.
        if operation.row().work == Work::Text || operation == Operation::Passthrough {
            return Some(one);
        }
        let usage = outcome.record.response.usage.unwrap_or_default();
        let estimate = outcome.record.request.prompt_tokens.map_or(0, |tokens| tokens.0);
        let input = usage.prompt_tokens.unwrap_or(estimate);
        // A truncated stream may have reported a part of its output at its start.
        let output = match usage.completion_tokens {
            Some(tokens) if !is_cancelled => tokens,
            reported => reported.unwrap_or(0).max(seen),
        };
        let price = outcome.record.routing.price.as_ref();
        let cached = usage.cached_tokens.unwrap_or(0);
        let cost = price.map(|price| {
            Money::of(price.request_cost(input.into(), cached.into(), output.into())).0
        });
        let is_input_known = usage.prompt_tokens.is_some() || estimate == 0;
        let is_output_known = seen == 0 || (usage.completion_tokens.is_some() && !is_cancelled);
        Some(Self {
            estimated_requests: u64::from(!(is_input_known && is_output_known)),
            input_tokens: input.into(),
            output_tokens: output.into(),
            priced_requests: price.map_or(0, |_| 1),
            cost: cost.unwrap_or(0),
            ..one
        })
    }

    /// Returns the sum of input and output.
    pub fn total_tokens(&self) -> u64 {
        self.input_tokens.saturating_add(self.output_tokens)
    }

    /// Returns whether nothing was counted.
    pub(super) fn is_zero(&self) -> bool {
        *self == Self::default()
    }

    pub fn add(&mut self, other: &Self) {
        let sum = |mine: &mut u64, more: u64| *mine = mine.saturating_add(more);
        sum(&mut self.requests, other.requests);
        sum(&mut self.estimated_requests, other.estimated_requests);
        sum(&mut self.input_tokens, other.input_tokens);
        sum(&mut self.output_tokens, other.output_tokens);
        sum(&mut self.priced_requests, other.priced_requests);
        sum(&mut self.cost, other.cost);
    }

    /// Returns the difference to `earlier` counts.
    pub(super) fn since(&self, earlier: &Self) -> Self {
        Self {
            requests: self.requests.wrapping_sub(earlier.requests),
            estimated_requests: self.estimated_requests.wrapping_sub(earlier.estimated_requests),
            input_tokens: self.input_tokens.wrapping_sub(earlier.input_tokens),
            output_tokens: self.output_tokens.wrapping_sub(earlier.output_tokens),
            priced_requests: self.priced_requests.wrapping_sub(earlier.priced_requests),
            cost: self.cost.wrapping_sub(earlier.cost),
        }
    }
}
