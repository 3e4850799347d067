//! Cooldowns: pauses that a backend requested with a 429 or 503, and longer pauses after a refused
//! key or a missing model.
//!
//! **Why beside the circuit breaker.** An overloaded engine is not broken. It requests a pause
//! (`Retry-After`, bounded and spread by `routing.cooldown`). Counting its 503s as faults would
//! open the breakers of a whole fleet exactly when every backend is needed.
//!
//! **What one covers.** Hosted APIs limit each model, and often each key. A cooldown therefore
//! covers the refused model and, if the backend receives the clients' own credentials, only that
//! credential. If two models are in cooldown at once, the backend itself is assumed to be the
//! cause: all its models pause.
//!
//! **When it starts and ends.** Each 429 or 503 sets its end again. It ends at that time, or early
//! with a complete response to the probe described below. Responses to requests that were sent
//! before the cooldown do not end it: they prove nothing about new ones.
//!
//! **How many there are.** At most [`MAX_COOLDOWNS`] per backend. A client that keeps sending new
//! credentials gets new cooldowns. Beyond the limit, a cooldown of the client with the most is
//! evicted, so that one client cannot evict the cooldowns of others.
//!
//! **When everything is in cooldown** one request at a time probes the backend whose cooldown
//! expires first, holding its probe slot. All others are refused at once with the remaining time.
//! Without the slot every waiting request would hit the same backend at the same moment (thundering
//! herd).
//!
//! **What would break it.** `latest` may only err on the late side. It lets decisions skip the
//! list, so a cooldown that ends after it would be missed. The rare refusal replaces the list as a
//! whole, and readers need no lock.

use std::cmp::Reverse;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::time::Duration;

use arc_swap::ArcSwap;
use penstock_api::units::Timestamp;

use super::probe_slot::ProbeSlot;

/// The most cooldowns of one backend. Beyond it, the client with the most cooldowns loses the one
/// that ends first.
const MAX_COOLDOWNS: usize = 64;

/// The difference in which two ends of a cooldown are the same: a backend names whole seconds.
const END_PRECISION: Duration = Duration::from_secs(1);
/// The shortest cooldown whose end is known so well. Shorter ones are mostly defaults.
const MIN_NAMED: Duration = Duration::from_secs(2);

/// The requests that a cooldown covers.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct CooldownScope {
    /// A hash of the backend's name for the model; 0 covers every model.
    pub model: u64,
    /// The credential of [`super::Requester`]; 0 covers every client.
    pub credential: u64,
}

impl CooldownScope {
    pub const BACKEND: Self = Self { model: 0, credential: 0 };

    /// Every request for a model, by the backend's name for it.
    pub fn of_model(name: &str) -> Self {
        // At least 1, because 0 covers every model.
        Self { model: xxhash_rust::xxh3::xxh3_64(name.as_bytes()).max(1), credential: 0 }
    }

    fn covers(self, request: Self) -> bool {
        (self.model == 0 || self.model == request.model)
            && (self.credential == 0 || self.credential == request.credential)
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct CooldownCause {
    /// The status of the refusal, such as 429, 503 or 404.
    pub status: u16,
    /// The client of [`super::Requester`] whose request was refused; 0 if unknown.
    pub client: u64,
}

impl CooldownCause {
    /// A refusal of an unknown client: for `explain` on a saved fleet and for tests.
    pub fn of_status(status: u16) -> Self {
        Self { status, client: 0 }
    }
}

/// One cooldown of a backend.
#[derive(Debug)]
pub struct Cooldown {
    scope: CooldownScope,
    /// The client whose request started it.
    client: u64,
    until: AtomicU64,
    status: AtomicU32,
    /// The number of times the duration of a pause was doubled.
    doublings: AtomicU32,
    pub(super) probe: ProbeSlot,
}

impl Cooldown {
    /// The end of the cooldown.
    pub fn ends_at(&self) -> Timestamp {
        Timestamp(self.until.load(Ordering::Relaxed))
    }

    /// The status that started it, such as 429, 503 or 404.
    pub fn status(&self) -> u16 {
        u16::try_from(self.status.load(Ordering::Relaxed)).unwrap_or(503)
    }

    /// Returns whether a request in flight already probes for an early end.
    pub fn is_probed(&self) -> bool {
        !self.probe.is_free()
    }

    /// The number of doublings of a pause that starts now. Zero if the last pause ended longer ago
    /// than it lasted.
    fn doublings(&self, now: Timestamp) -> u32 {
        let doublings = self.doublings.load(Ordering::Relaxed);
        // A refusal after a quiet time as long as the pause is a new problem.
        let is_over = now.since(self.ends_at()) > pause_time(doublings);
        if is_over { 0 } else { doublings + 1 }
    }

    /// Returns whether a pause began after `time`.
    fn began_after(&self, time: Timestamp) -> bool {
        let length = pause_time(self.doublings.load(Ordering::Relaxed));
        self.ends_at().before(length) > time
    }

    fn set(&self, until: Timestamp, status: u16) {
        self.status.store(status.into(), Ordering::Relaxed);
        self.until.store(until.0, Ordering::Relaxed);
    }
}

/// The cooldowns of one backend.
#[derive(Debug, Default)]
#[repr(C)]
pub struct Cooldowns {
    /// The end of the last cooldown to expire; 0 before the first.
    latest: AtomicU64,
    list: ArcSwap<Vec<Arc<Cooldown>>>,
}

impl Cooldowns {
    /// Returns whether any request may be covered.
    pub fn is_active(&self, now: Timestamp) -> bool {
        self.latest.load(Ordering::Relaxed) > now.0
    }

    /// The cooldown that covers a request. If several do, the one that ends last.
    pub fn covering(&self, request: CooldownScope, now: Timestamp) -> Option<Arc<Cooldown>> {
        if !self.is_active(now) {
            return None;
        }
        let list = self.list.load();
        let covering = list.iter().filter(|one| one.ends_at() > now && one.scope.covers(request));
        covering.max_by_key(|one| one.ends_at()).cloned()
    }

    /// The cooldown to show for a model, or for all models. If several cover exactly these models,
    /// the one that ends last, with any credential.
    pub fn shown(&self, models: CooldownScope, now: Timestamp) -> Option<Arc<Cooldown>> {
        let list = self.list.load();
        let shown =
            list.iter().filter(|one| one.ends_at() > now && one.scope.model == models.model);
        shown.max_by_key(|one| one.ends_at()).cloned()
    }

    /// The number of active cooldowns that cover a single credential.
    pub fn count_of_credentials(&self, now: Timestamp) -> usize {
        let list = self.list.load();
        list.iter().filter(|one| one.ends_at() > now && one.scope.credential != 0).count()
    }

    /// Starts a cooldown until `until`. If another model is already in cooldown, it covers all
    /// models.
    pub fn start(
        &self,
        scope: CooldownScope,
        until: Timestamp,
        cause: CooldownCause,
        now: Timestamp,
    ) {
        // An end within a second of the known one is the same end, and clients have the known one.
        let is_named = until.since(now) >= MIN_NAMED;
        let known = self.list.load().iter().find(|one| one.scope == scope).map(|one| one.ends_at());
        let until = match known.filter(|known| is_named && *known > now && *known < until) {
            Some(known) if until.since(known) <= END_PRECISION => known,
            _ => until,
        };
        self.set(scope, until, cause, now);
        let list = self.list.load();
        let is_other = |one: &&Arc<Cooldown>| {
            one.ends_at() > now
                // Two clients with one refused model each prove nothing about the backend.
                && one.scope.credential == scope.credential
                && one.scope.model != 0
                && one.scope.model != scope.model
                // A missing model says nothing about the load of the others.
                && one.status() != 404
        };
        if scope.model != 0 && list.iter().any(|one| is_other(&one)) {
            self.set(CooldownScope { model: 0, ..scope }, until, cause, now);
        }
    }

    /// Pauses a scope after an error that lasts longer than seconds: a refused key or a missing
    /// model, of a request sent at `sent`. Each repetition doubles the duration.
    pub fn pause(
        &self,
        scope: CooldownScope,
        cause: CooldownCause,
        sent: Timestamp,
        now: Timestamp,
    ) {
        let known = self.list.load().iter().find(|one| one.scope == scope).cloned();
        // Requests that were in flight when the pause began are refused one after another.
        if known.as_ref().is_some_and(|known| known.ends_at() > now && known.began_after(sent)) {
            return;
        }
        let doublings = known.map_or(0, |known| known.doublings(now));
        self.set(scope, now.after(pause_time(doublings)), cause, now);
        if let Some(known) = self.list.load().iter().find(|one| one.scope == scope) {
            known.doublings.store(doublings, Ordering::Relaxed);
        }
    }

    fn set(&self, scope: CooldownScope, until: Timestamp, cause: CooldownCause, now: Timestamp) {
        if let Some(known) = self.list.load().iter().find(|one| one.scope == scope) {
            known.set(until, cause.status);
        } else {
            let added = Arc::new(Cooldown {
                scope,
                client: cause.client,
                until: AtomicU64::new(until.0),
                status: AtomicU32::new(cause.status.into()),
                doublings: AtomicU32::new(0),
                probe: ProbeSlot::default(),
            });
            self.list.rcu(|list| {
                // Cooldowns that have ended leave with the next refusal: no task sweeps the list.
                let in_force = list.iter().filter(|one| one.ends_at() > now).cloned();
                let mut list: Vec<Arc<Cooldown>> = in_force.collect();
                if list.len() >= MAX_COOLDOWNS {
                    remove_one(&mut list);
                }
                list.push(Arc::clone(&added));
                list
            });
        }
        // Released, so that a `clear` that overwrites it sees the end in the list as well.
        self.latest.fetch_max(until.0, Ordering::AcqRel);
    }

    /// Ends the cooldowns that cover a request: the backend served it.
    pub fn clear(&self, request: CooldownScope) {
        self.list.rcu(|list| {
            let others = list.iter().filter(|one| !one.scope.covers(request)).cloned();
            others.collect::<Vec<Arc<Cooldown>>>()
        });
        let last_end = || self.list.load().iter().map(|one| one.ends_at().0).max().unwrap_or(0);
        self.latest.swap(last_end(), Ordering::AcqRel);
        // A cooldown that started in between is in the list, and its end was overwritten.
        self.latest.fetch_max(last_end(), Ordering::AcqRel);
    }
}

/// The first pause.
const PAUSE: Duration = Duration::from_secs(60);
/// The longest pause.
const MAX_PAUSE: Duration = Duration::from_secs(600);

/// The duration of a pause after `doublings` doublings, at most [`MAX_PAUSE`].
fn pause_time(doublings: u32) -> Duration {
    PAUSE.saturating_mul(2_u32.saturating_pow(doublings)).min(MAX_PAUSE)
}

/// Removes a cooldown of the client with the most: the one that ends first.
fn remove_one(list: &mut Vec<Arc<Cooldown>>) {
    let started_by = |client| list.iter().filter(|one| one.client == client).count();
    let order = |one: &Cooldown| (Reverse(started_by(one.client)), one.ends_at());
    let found = list.iter().enumerate().min_by_key(|(_, one)| order(one));
    if let Some((index, _)) = found {
        list.swap_remove(index);
    }
}

#[cfg(test)]
mod tests;
