//! The usage of one client.

use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use penstock_api::KindCounters;
use penstock_api::units::Timestamp;
use penstock_config::RateLimits;

use super::leaky_bucket::LeakyBucket;
use super::{KeyFigures, KeyUse, LimitTime, RateStatus, Refusal};
use crate::fleet::{Durations, Openings, UNKNOWN_DURATION, time_left};

const DAY: u64 = 24 * 3600;

/// The wait of a client with too many requests in flight, if nothing is known of these.
const SLOT_WAIT: Duration = Duration::from_secs(1);
/// The most requests in flight whose starts are remembered.
const MAX_STARTS: usize = 256;
const MINUTE: Duration = Duration::from_secs(60);

penstock_api::named! {
    /// The limits of a client.
    #[repr(u8)]
    pub enum LimitKind {
        RequestsPerMinute = "requests_per_minute",
        TokensPerMinute = "tokens_per_minute",
        TokensPerDay = "tokens_per_day",
        InFlight = "in_flight",
    }
}

impl LimitKind {
    /// The value of this limit; `None` if it is not set.
    pub fn value(self, limits: &RateLimits) -> Option<u64> {
        match self {
            Self::RequestsPerMinute => limits.requests_per_minute.map(u64::from),
            Self::TokensPerMinute => limits.tokens_per_minute.map(u64::from),
            Self::TokensPerDay => u64::try_from(limits.tokens_per_day?).ok(),
            Self::InFlight => limits.in_flight.map(u64::from),
        }
    }
}

#[derive(Debug, Default)]
pub(super) struct ClientAccount {
    pub(super) state: Mutex<AccountState>,
    pub(super) refused: KindCounters<{ LimitKind::ALL.len() }>,
}

impl ClientAccount {
    pub(super) fn figures(&self, name: &Arc<str>, now: LimitTime) -> KeyFigures {
        let state = self.state.lock();
        let is_today = state.day == now.unix / DAY;
        KeyFigures {
            name: Arc::clone(name),
            refused: self.refused.read(),
            in_flight: state.in_flight,
            day_tokens: if is_today { state.day_tokens } else { 0 },
        }
    }
}

/// A client's account, with the limits that apply to a request.
#[derive(Debug)]
pub(super) struct AccountHold {
    pub(super) account: Arc<ClientAccount>,
    pub(super) limits: RateLimits,
    is_address: bool,
}

impl AccountHold {
    pub(super) fn new(account: Arc<ClientAccount>, limits: &RateLimits) -> Self {
        Self { account, limits: limits.clone(), is_address: false }
    }

    pub(super) fn of_address(self) -> Self {
        Self { is_address: true, ..self }
    }
}

#[derive(Debug, Default)]
pub(super) struct AccountState {
    requests: LeakyBucket,
    tokens: LeakyBucket,
    pub(super) in_flight: u32,
    /// The starts of requests in flight, in no order; none without a limit of these.
    starts: Vec<Timestamp>,
    /// The durations of requests that were served, if those in flight are limited.
    durations: Durations,
    /// The day of the counted tokens, in days since 1970.
    day: u64,
    day_tokens: u64,
}

impl AccountState {
    /// Brings all usage up to `now`.
    pub(super) fn advance(&mut self, limits: &RateLimits, now: LimitTime) {
        if let Some(limit) = limits.requests_per_minute {
            self.requests.drain(limit, now.at);
        }
        if let Some(limit) = limits.tokens_per_minute {
            self.tokens.drain(limit, now.at);
        }
        // Never back to an earlier day, if the system's clock is set back a little.
        if now.unix / DAY > self.day {
            (self.day, self.day_tokens) = (now.unix / DAY, 0);
        }
    }

    /// Checks that a request fits every limit.
    pub(super) fn check(
        &self,
        hold: &AccountHold,
        tokens: u64,
        now: LimitTime,
    ) -> Result<(), Refusal> {
        let refusal = |kind, limit, wait| Refusal {
            kind,
            limit,
            is_address: hold.is_address,
            wait,
            tokens,
            status: RateStatus::default(),
        };
        let RateLimits { requests_per_minute, tokens_per_minute, tokens_per_day, in_flight } =
            &hold.limits;
        let day_limit = tokens_per_day.map(|limit| u64::try_from(limit).unwrap_or(u64::MAX));
        // First the limits that no wait can satisfy.
        if let Some(limit) = tokens_per_minute.map(u64::from).filter(|limit| tokens > *limit) {
            return Err(refusal(LimitKind::TokensPerMinute, limit, None));
        }
        if let Some(limit) = day_limit.filter(|limit| tokens > *limit) {
            return Err(refusal(LimitKind::TokensPerDay, limit, None));
        }
        if let Some(limit) =
            day_limit.filter(|limit| self.day_tokens.saturating_add(tokens) > *limit)
        {
            let wait = Duration::from_secs(DAY - now.unix % DAY);
            return Err(refusal(LimitKind::TokensPerDay, limit, Some(wait)));
        }
        if let Some(limit) = requests_per_minute {
            let wait = self.requests.time_until_room(*limit, 1);
            if !wait.is_zero() {
                let kind = LimitKind::RequestsPerMinute;
                return Err(refusal(kind, u64::from(*limit), Some(wait)));
            }
        }
        if let Some(limit) = tokens_per_minute {
            let wait = self.tokens.time_until_room(*limit, tokens);
            if !wait.is_zero() {
                let kind = LimitKind::TokensPerMinute;
                return Err(refusal(kind, u64::from(*limit), Some(wait)));
            }
        }
        if let Some(limit) = in_flight.filter(|limit| self.in_flight >= *limit) {
            return Err(refusal(LimitKind::InFlight, u64::from(limit), Some(SLOT_WAIT)));
        }
        Ok(())
    }

    pub(super) fn take(&mut self, limits: &RateLimits, tokens: u64, now: LimitTime) {
        if limits.requests_per_minute.is_some() {
            self.requests.take(1);
        }
        if limits.tokens_per_minute.is_some() {
            self.tokens.take(tokens);
        }
        self.day_tokens = self.day_tokens.saturating_add(tokens);
        self.in_flight = self.in_flight.saturating_add(1);
        if limits.in_flight.is_some() && self.starts.len() < MAX_STARTS {
            self.starts.push(now.at);
        }
    }

    /// Frees the slot of a request that has held it since `since`.
    pub(super) fn release(&mut self, since: LimitTime) {
        debug_assert!(self.in_flight > 0, "a slot is freed once");
        self.in_flight = self.in_flight.saturating_sub(1);
        if let Some(place) = self.starts.iter().position(|start| *start == since.at) {
            self.starts.swap_remove(place);
        }
    }

    /// Records the duration of a request that was served.
    pub(super) fn learn_duration(&self, limits: &RateLimits, took: Duration) {
        if limits.in_flight.is_some() {
            self.durations.learn(took);
        }
    }

    /// The times at which a limit that has refused a request lets others pass, if nothing else
    /// arrives. `usual`: the duration of requests, if those of the client are not known.
    pub(super) fn openings(
        &self,
        refusal: &Refusal,
        usual: Option<Duration>,
        now: Timestamp,
    ) -> Option<Openings> {
        let wait = refusal.wait?;
        let per_minute = |units: u64| {
            let micros = MINUTE.as_micros().saturating_mul(units.into());
            let interval = micros / u128::from(refusal.limit.max(1));
            Duration::from_micros(u64::try_from(interval).unwrap_or(u64::MAX))
        };
        match refusal.kind {
            LimitKind::RequestsPerMinute => Some(Openings::at_rate(wait, per_minute(1))),
            LimitKind::TokensPerMinute => Some(Openings::at_rate(wait, per_minute(refusal.tokens))),
            // All of it is free at midnight.
            LimitKind::TokensPerDay => None,
            LimitKind::InFlight => {
                let usual = self.durations.usual().or(usual).unwrap_or(UNKNOWN_DURATION);
                let mut openings = Openings::default();
                let mut left = u32::try_from(refusal.limit).unwrap_or(u32::MAX);
                for start in self.starts.iter().take(usize::try_from(left).unwrap_or(usize::MAX)) {
                    openings.add(time_left(usual, now.since(*start)), 1, usual);
                    left = left.saturating_sub(1);
                }
                // Those of other replicas, and those beyond the remembered ones.
                openings.add(usual, left, usual);
                Some(openings)
            }
        }
    }

    /// Replaces the tokens reserved at `since` by those used.
    pub(super) fn settle(&mut self, used: u64, reserved: u64, since: LimitTime) {
        let (more, less) = (used.saturating_sub(reserved), reserved.saturating_sub(used));
        self.tokens.take(more);
        self.tokens.give_back(less);
        self.day_tokens = self.day_tokens.saturating_add(more);
        // Tokens reserved yesterday are not in today's sum.
        if since.unix / DAY == self.day {
            self.day_tokens = self.day_tokens.saturating_sub(less);
        }
    }

    /// Gives back what a request took and [`settle`](Self::settle) does not return.
    pub(super) fn undo(&mut self, limits: &RateLimits) {
        if limits.requests_per_minute.is_some() {
            self.requests.give_back(1);
        }
    }

    pub(super) fn restore_day(&mut self, tokens: u64, now: LimitTime) {
        self.advance(&RateLimits::default(), now);
        self.day_tokens = self.day_tokens.saturating_add(tokens);
    }

    /// The usage at `now`, for the next process.
    pub(super) fn used(&mut self, name: &str, limits: &RateLimits, now: LimitTime) -> KeyUse {
        self.advance(limits, now);
        KeyUse {
            name: name.to_owned(),
            requests: self.requests.units(),
            tokens: self.tokens.units(),
            day: self.day,
            day_tokens: self.day_tokens,
        }
    }

    /// Continues with the usage counted by another process.
    pub(super) fn restore(&mut self, used: &KeyUse, now: LimitTime) {
        self.advance(&RateLimits::default(), now);
        self.requests.restore(used.requests, now.at);
        self.tokens.restore(used.tokens, now.at);
        // The token ledger may have been read for the same day already.
        if used.day == self.day {
            self.day_tokens = self.day_tokens.max(used.day_tokens);
        }
    }

    pub(super) fn status(&self, limits: &RateLimits) -> RateStatus {
        RateStatus {
            requests: limits.requests_per_minute.map(|limit| self.requests.quota(limit)),
            tokens: limits.tokens_per_minute.map(|limit| self.tokens.quota(limit)),
        }
    }
}
