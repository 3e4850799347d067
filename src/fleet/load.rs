//! What is in flight on a backend: requests, and the tokens they stand for.

use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

/// How many requests a backend has in flight.
#[derive(Debug, Default)]
pub struct Load {
    in_flight: AtomicU32,
    total: AtomicU64,
}

/// How many tokens the requests in flight on a backend stand for.
#[derive(Debug, Default)]
pub struct TokensInFlight {
    tokens: AtomicU64,
    prefill_tokens: AtomicU64,
}

impl TokensInFlight {
    /// Tokens of the requests in flight: of their prompts and of the responses expected.
    pub fn tokens(&self) -> u64 {
        self.tokens.load(Ordering::Relaxed)
    }

    /// Tokens of the prompts in flight that have had no first byte of a response.
    pub fn prefill_tokens(&self) -> u64 {
        self.prefill_tokens.load(Ordering::Relaxed)
    }

    pub(super) fn add(&self, tokens: u64, prefill_tokens: u64) {
        self.prefill_tokens.fetch_add(prefill_tokens, Ordering::Relaxed);
        self.tokens.fetch_add(tokens, Ordering::Relaxed);
    }

    pub(super) fn end_prefill(&self, tokens: u64) {
        self.prefill_tokens.fetch_sub(tokens, Ordering::Relaxed);
    }

    pub(super) fn end(&self, tokens: u64) {
        self.tokens.fetch_sub(tokens, Ordering::Relaxed);
    }
}

impl Load {
    /// Requests dispatched and not ended.
    pub fn in_flight(&self) -> u32 {
        self.in_flight.load(Ordering::Relaxed)
    }

    /// Attempts dispatched since the backend was first seen.
    pub fn total(&self) -> u64 {
        self.total.load(Ordering::Relaxed)
    }

    /// Sets a load: for `explain` on a saved fleet and for tests.
    pub fn set_in_flight(&self, count: u32) {
        self.in_flight.store(count, Ordering::Relaxed);
    }

    /// Counts one more request unless `limit` is reached.
    pub(super) fn try_begin(&self, limit: u32) -> bool {
        let taken = self.in_flight.fetch_update(Ordering::AcqRel, Ordering::Relaxed, |now| {
            if now < limit { now.checked_add(1) } else { None }
        });
        if taken.is_ok() {
            self.total.fetch_add(1, Ordering::Relaxed);
        }
        taken.is_ok()
    }

    pub(super) fn end(&self) {
        // In one order with the look at those who wait for capacity.
        self.in_flight.fetch_sub(1, Ordering::SeqCst);
    }
}

/// The probe slot an attempt holds beside its permit.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Probe {
    /// None: an ordinary attempt.
    #[default]
    None,
    /// That of the half-open circuit breaker.
    Breaker,
    /// That of the cooldown which expires first.
    Cooldown,
    /// That of the client's own evidence against the backend.
    Client,
}
