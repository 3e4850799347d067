//! Limits per client: requests and tokens per minute, tokens per day, requests in flight. A client
//! is a key, by its name, or an address; a request may have to pass both. All limits of a request
//! are checked and taken under the locks of its clients, so that never more is admitted than they
//! allow. The tokens of a request are reserved by an estimate and settled when they are known.
//! Without limits none of this code runs.

mod account;
mod addresses;
mod leaky_bucket;
mod permit;

use account::AccountHold;
pub use account::LimitKind;
pub use addresses::AddressKey;
pub use permit::RatePermit;

use std::sync::Arc;
use std::time::Duration;

use ahash::HashMap;
use parking_lot::RwLock;
use serde::{Deserialize, Serialize};

use crate::clients::is_token_client;
use crate::fleet::Openings;
use account::ClientAccount;
use addresses::ClientAddresses;
use penstock_api::KindCounters;
use penstock_api::units::Timestamp;
use penstock_config::{Config, RateLimits};

/// A point in time on two clocks: that of the process, and seconds since 1970, which define days.
#[derive(Debug, Clone, Copy, Default)]
pub struct LimitTime {
    /// The time on the process's clock.
    pub at: Timestamp,
    /// Seconds since 1970.
    pub unix: u64,
}

/// The sender of a request, with the limits that apply; a client without limits is left out.
#[derive(Debug, Clone, Copy, Default)]
pub struct Caller<'a> {
    /// The id of the client that its key names.
    pub key: Option<(&'a str, &'a RateLimits)>,
    pub address: Option<(AddressKey, &'a RateLimits)>,
}

/// The remaining part of a limit per minute.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Quota {
    pub limit: u64,
    /// The number that may still be used now.
    pub remaining: u64,
    /// The time until all of it is available again.
    pub reset: Duration,
}

/// The remaining part of a client's limits per minute: of the key or of the address, whichever has
/// less.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct RateStatus {
    pub requests: Option<Quota>,
    pub tokens: Option<Quota>,
}

/// The reason why a request is refused.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Refusal {
    pub kind: LimitKind,
    pub limit: u64,
    /// True if it is the limit of an address, not of a key.
    pub is_address: bool,
    /// The time until the request can pass if no others come; `None` if it needs more than the
    /// limit.
    pub wait: Option<Duration>,
    /// The tokens it would need.
    pub tokens: u64,
    /// The remaining parts of the limits.
    pub status: RateStatus,
}

/// The metrics of a key's limits.
#[derive(Debug, Clone)]
pub struct KeyFigures {
    pub name: Arc<str>,
    /// Refused requests by limit, in the order of [`LimitKind::ALL`].
    pub refused: [u64; LimitKind::ALL.len()],
    pub in_flight: u32,
    pub day_tokens: u64,
}

/// The usage of a key, as a graceful upgrade passes it to the new process.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct KeyUse {
    pub name: String,
    /// Usage of the limits per minute that has not drained, in units of the leaky buckets.
    requests: u64,
    tokens: u64,
    /// The day that its tokens belong to, in days since 1970.
    day: u64,
    day_tokens: u64,
}

/// The usage of all clients. A reload changes limits and keeps the usage.
#[derive(Debug)]
pub struct RateLimiter {
    keys: RwLock<HashMap<Arc<str>, Arc<ClientAccount>>>,
    addresses: ClientAddresses,
    /// The clients of tokens, whose number only their provider bounds.
    tokens: ClientAddresses,
    refused_addresses: KindCounters<{ LimitKind::ALL.len() }>,
}

impl RateLimiter {
    /// An empty limiter for a configuration.
    pub fn new(config: &Config) -> Self {
        let limiter = Self {
            keys: RwLock::default(),
            addresses: ClientAddresses::default(),
            tokens: ClientAddresses::default(),
            refused_addresses: KindCounters::default(),
        };
        limiter.adopt(config, std::iter::empty());
        limiter
    }

    /// Applies another configuration: removed keys are forgotten. `stored`: the ids of the clients
    /// that it does not list.
    pub fn adopt<'a>(&self, config: &'a Config, stored: impl Iterator<Item = &'a str>) {
        let names = || config.auth.keys.iter().map(|key| key.name.as_str());
        let mut keys = self.keys.write();
        let known: ahash::HashSet<&str> = names().chain(stored).collect();
        keys.retain(|name, _| known.contains(&**name));
        for name in names() {
            if !keys.contains_key(name) {
                keys.insert(name.into(), Arc::default());
            }
        }
        self.addresses.set_capacity(config.limits.client_addresses);
        self.tokens.set_capacity(config.auth.max_cached_tokens);
    }

    /// Takes the needs of a request from every limit of its client, or nothing. `tokens` is the
    /// estimate.
    ///
    /// # Errors
    /// The first limit that the request exceeds.
    pub fn admit(
        &self,
        caller: &Caller<'_>,
        tokens: u64,
        now: LimitTime,
    ) -> Result<RatePermit, Refusal> {
        let key = caller.key.map(|(name, limits)| AccountHold::new(self.account(name), limits));
        let address = caller.address.map(|(address, limits)| {
            AccountHold::new(self.addresses.account(address), limits).of_address()
        });
        let holds = [key, address];
        match take(&holds, tokens, now) {
            Ok(status) => Ok(RatePermit::new(holds, tokens, now, status)),
            Err(refusal) => {
                self.count(&refusal, holds.first().and_then(Option::as_ref));
                Err(refusal)
            }
        }
    }

    /// Gives back what a request took, because a limit elsewhere refuses it; counts that refusal.
    pub fn refuse(&self, permit: RatePermit, refusal: &Refusal, now: LimitTime) {
        self.count(refusal, permit.key());
        permit.undo(now);
    }

    /// Returns the times at which the limit that refused a request lets others pass; `None` if it
    /// is no limit per minute or of requests in flight. `usual`: the duration of requests, if those
    /// of the client are not known.
    pub fn openings(
        &self,
        caller: &Caller<'_>,
        refusal: &Refusal,
        usual: Option<Duration>,
        now: Timestamp,
    ) -> Option<Openings> {
        let account = match (caller.address, caller.key) {
            (Some((address, _)), _) if refusal.is_address => self.addresses.account(address),
            (_, key) => self.account(key?.0),
        };
        account.state.lock().openings(refusal, usual, now)
    }

    fn count(&self, refusal: &Refusal, key: Option<&AccountHold>) {
        let counters = match key.filter(|_| !refusal.is_address) {
            Some(hold) => &hold.account.refused,
            None => &self.refused_addresses,
        };
        counters.count(refusal.kind as usize);
    }

    fn account(&self, name: &str) -> Arc<ClientAccount> {
        if is_token_client(name) {
            return self.tokens.account(AddressKey::of_token_client(name));
        }
        if let Some(account) = self.keys.read().get(name) {
            return Arc::clone(account);
        }
        // The request started before a reload that removed its key.
        Arc::clone(self.keys.write().entry(name.into()).or_default())
    }

    /// Counts tokens that a key used this day before this process started.
    pub fn restore_day(&self, name: &str, tokens: u64, now: LimitTime) {
        self.account(name).state.lock().restore_day(tokens, now);
    }

    /// The usage of clients, by their ids, that have limits: for the next process.
    pub fn used<'a>(
        &self,
        clients: impl Iterator<Item = (&'a str, &'a RateLimits)>,
        now: LimitTime,
    ) -> Vec<KeyUse> {
        let limited = clients.filter(|(_, limits)| !limits.is_unlimited());
        let mut all: Vec<KeyUse> = limited
            .map(|(id, limits)| self.account(id).state.lock().used(id, limits, now))
            .collect();
        // Keys with the same name share their usage.
        all.sort_by(|one, other| one.name.cmp(&other.name));
        all.dedup_by(|one, other| one.name == other.name);
        all
    }

    /// Continues with the usage counted by another process, for the keys that this one has.
    /// `is_stored` says so of the ids that the configuration does not list. Returns the number of
    /// those keys.
    pub fn restore_used(
        &self,
        all: &[KeyUse],
        is_stored: &dyn Fn(&str) -> bool,
        now: LimitTime,
    ) -> usize {
        let is_known =
            |id: &str| is_token_client(id) || self.keys.read().contains_key(id) || is_stored(id);
        let known = all.iter().filter(|used| is_known(&used.name));
        known.map(|used| self.account(&used.name).state.lock().restore(used, now)).count()
    }

    pub fn keys(&self, now: LimitTime) -> Vec<KeyFigures> {
        let keys = self.keys.read();
        let mut figures: Vec<KeyFigures> =
            keys.iter().map(|(name, account)| account.figures(name, now)).collect();
        figures.sort_by(|one, other| one.name.cmp(&other.name));
        figures
    }

    /// Requests refused by the limits per address, in the order of [`LimitKind::ALL`].
    pub fn refused_addresses(&self) -> [u64; LimitKind::ALL.len()] {
        self.refused_addresses.read()
    }

    /// The number of remembered addresses.
    pub fn addresses(&self) -> usize {
        self.addresses.len()
    }

    pub fn evicted_addresses(&self) -> u64 {
        self.addresses.evicted()
    }
}

/// Takes the needs of a request from all accounts, or nothing. Returns the remaining limits.
fn take(
    holds: &[Option<AccountHold>; 2],
    tokens: u64,
    now: LimitTime,
) -> Result<RateStatus, Refusal> {
    // Always the key before the address: two requests never wait for each other.
    let mut states = holds.each_ref().map(|hold| {
        let hold = hold.as_ref()?;
        Some((hold, hold.account.state.lock()))
    });
    let mut refusal = None;
    for (hold, state) in states.iter_mut().flatten() {
        state.advance(&hold.limits, now);
        refusal = refusal.or_else(|| state.check(hold, tokens, now).err());
    }
    let mut status = RateStatus::default();
    for (hold, state) in states.iter_mut().flatten() {
        if refusal.is_none() {
            state.take(&hold.limits, tokens, now);
        }
        status.narrow(&state.status(&hold.limits));
    }
    refusal.map_or(Ok(status), |refusal| Err(Refusal { status, ..refusal }))
}

impl RateStatus {
    /// Keeps the lower remainder of each limit.
    pub fn narrow(&mut self, other: &Self) {
        let narrower = |own: Option<Quota>, other: Option<Quota>| match (own, other) {
            (Some(own), Some(other)) if other.remaining < own.remaining => Some(other),
            (Some(own), _) => Some(own),
            (None, other) => other,
        };
        self.requests = narrower(self.requests, other.requests);
        self.tokens = narrower(self.tokens, other.tokens);
    }
}

#[cfg(test)]
mod tests;
