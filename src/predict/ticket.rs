//! What a request carries from its prediction to its end, and what running streams can bear.

use std::collections::BTreeMap;

use super::prediction::{Prediction, Sent};

/// What a request carries from its prediction to its end.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Ticket {
    /// When it was sent.
    pub sent_at: f64,
    /// What was sent.
    pub sent: Sent,
    /// What was predicted.
    pub prediction: Prediction,
    /// Its number on the backend.
    pub(super) number: u64,
    /// Its objective for the time per token, if it has one.
    pub(super) objective: Option<f64>,
    /// The time per token that it can bear now: its objective, and what it is ahead of it. In nanoseconds.
    pub(super) allowed: Option<u64>,
    /// When its first token came.
    pub(super) first_at: f64,
    /// Tokens that it has emitted; 0 before the first.
    pub(super) age: u32,
}

impl Ticket {
    /// Tokens that it has emitted.
    pub fn age(&self) -> u32 {
        self.age
    }
}

/// The times per token that running streams can bear, in nanoseconds, and how many have each.
#[derive(Debug, Default)]
pub(super) struct Allowances(BTreeMap<u64, u32>);

impl Allowances {
    /// A stream can bear that much from now on, in microseconds; `None` once it has ended or has no objective.
    pub(super) fn set(&mut self, ticket: &mut Ticket, per_token: Option<f64>) {
        if let Some(before) = ticket.allowed.take()
            && let Some(count) = self.0.get_mut(&before)
        {
            *count -= 1;
            if *count == 0 {
                self.0.remove(&before);
            }
        }
        ticket.allowed = per_token.map(nanoseconds);
        if let Some(after) = ticket.allowed {
            *self.0.entry(after).or_default() += 1;
        }
    }

    /// The least of them in microseconds; infinite where no stream has an objective.
    pub(super) fn tightest(&self) -> f64 {
        self.0.keys().next().map_or(f64::INFINITY, |least| *least as f64 / 1000.0)
    }
}

#[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "clamped")]
fn nanoseconds(micros: f64) -> u64 {
    (micros * 1000.0).round().clamp(0.0, 1e18) as u64
}
