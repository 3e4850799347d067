//! The state of a request from its prediction to its end, and the times per token that running
//! streams can bear.

use std::collections::BTreeMap;

use super::prediction::{Prediction, RequestShape};
use super::streams::Stream;

/// The state of a request from its prediction to its end.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Ticket {
    /// The time at which it was sent.
    pub(crate) sent_at_us: f64,
    /// The request as it was sent.
    pub(crate) request: RequestShape,
    /// The prediction by which it was sent.
    pub(crate) prediction: Prediction,
    /// Its number on the backend.
    pub(super) number: u64,
    /// Its objective for the time per token, if it has one.
    pub(super) tpot_objective_us: Option<f64>,
    /// The time per token that it can bear now, in nanoseconds: its objective, and a part of its
    /// lead over it.
    pub(super) allowed_ns: Option<u64>,
    /// The time of its first token.
    pub(super) first_token_at_us: f64,
    /// The time of the last one that was learned.
    pub(super) last_token_at_us: f64,
    /// The work of all prompts sent up to it.
    pub(super) sent_work_us: f64,
    /// The number of tokens that it has emitted; 0 before the first.
    pub(super) emitted_tokens: u32,
}

impl Ticket {
    /// Returns the number of tokens that it has emitted.
    pub fn emitted_tokens(&self) -> u32 {
        self.emitted_tokens
    }

    /// Returns its stream.
    pub(super) fn stream(&self) -> Stream {
        let RequestShape { prompt_tokens, max_output_tokens, .. } = self.request;
        Stream {
            number: self.number,
            prompt_tokens,
            age_tokens: self.emitted_tokens,
            max_output_tokens,
        }
    }
}

/// The times per token that running streams can bear, in nanoseconds, each with its number of
/// streams.
#[derive(Debug, Default)]
pub(super) struct Allowances(BTreeMap<u64, u32>);

impl Allowances {
    /// Sets the time per token that a stream can bear, in microseconds; `None` once it has ended or
    /// if it has no objective.
    pub(super) fn set(&mut self, ticket: &mut Ticket, allowed_tpot_us: Option<f64>) {
        if let Some(before) = ticket.allowed_ns.take()
            && let Some(count) = self.0.get_mut(&before)
        {
            *count -= 1;
            if *count == 0 {
                self.0.remove(&before);
            }
        }
        ticket.allowed_ns = allowed_tpot_us.map(nanoseconds);
        if let Some(after) = ticket.allowed_ns {
            *self.0.entry(after).or_default() += 1;
        }
    }

    /// Returns the least of them in microseconds; infinite if no stream has an objective.
    pub(super) fn tightest_tpot_us(&self) -> f64 {
        self.0.keys().next().map_or(f64::INFINITY, |least| *least as f64 / 1000.0)
    }
}

#[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "clamped")]
fn nanoseconds(us: f64) -> u64 {
    (us * 1000.0).round().clamp(0.0, 1e18) as u64
}
