//! The evidence of one kind, faults or refusals, against the backends of a model: of each client,
//! and of all clients together.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use arc_swap::ArcSwap;
use parking_lot::Mutex;
use penstock_api::units::Timestamp;

use super::circuit_breaker::BreakerState;
use super::fault_shares::{FaultShares, PauseChanges, Sign, Terms};
use super::paused_backend::PausedBackend;

/// The most clients of one model that are kept. Beyond it, the client with the oldest last fault is
/// evicted, clients that avoid no backend first.
const MAX_CLIENTS: usize = 64;
/// The share of faults on other backends at which faults speak against a client's prompts.
const BAD_PROMPTS: f64 = 0.25;

/// The evidence from the responses to one client, or to all.
#[derive(Debug, Default)]
struct Record {
    client: u64,
    last_fault: AtomicU64,
    /// True if its requests fail on every backend that has had some, of at least two.
    has_bad_prompts: AtomicBool,
    shares: Mutex<FaultShares>,
    paused: ArcSwap<Vec<Arc<PausedBackend>>>,
}

impl Record {
    fn of(&self, serial: u64) -> Option<Arc<PausedBackend>> {
        self.paused.load().iter().find(|one| one.serial == serial).cloned()
    }

    fn state(&self, serial: u64, now: Timestamp) -> BreakerState {
        let paused = self.paused.load();
        let found = paused.iter().find(|one| one.serial == serial);
        found.map_or(BreakerState::Closed, |one| one.state(now))
    }

    fn learn(
        &self,
        sign: &Sign,
        name: &str,
        terms: Terms<'_>,
        shares: &mut FaultShares,
    ) -> Learned {
        if sign.is_fault {
            self.last_fault.fetch_max(sign.at.0, Ordering::Relaxed);
        }
        let changes = shares.learn(sign, terms);
        if changes.is_empty() {
            return Learned::default();
        }
        let before = self.paused.load_full();
        let names = before.iter().filter(|one| changes.released.contains(&one.serial));
        let released = names.map(|one| one.name.clone()).collect();
        self.publish(&before, shares, name, terms.config.window);
        let own = changes.paused.and_then(|_| self.of(sign.backend));
        let PauseChanges { paused, released: serials } = changes;
        Learned {
            paused: paused.zip(own),
            released,
            is_own_released: serials.contains(&sign.backend),
            is_paused_for_client: false,
        }
    }

    /// Returns whether a fault within `window` may be evidence, or a pause by an earlier one.
    fn is_active(&self, now: Timestamp, window: Duration) -> bool {
        let last = self.last_fault.load(Ordering::Relaxed);
        let has_fault = last > 0 && now.since(Timestamp(last)) < window;
        has_fault || self.paused.load().iter().any(|one| one.state(now) != BreakerState::Closed)
    }

    /// Publishes the pauses to decisions. Continued pauses keep their probe slot.
    fn publish(
        &self,
        before: &[Arc<PausedBackend>],
        shares: &FaultShares,
        name: &str,
        window: Duration,
    ) {
        let pauses = shares.pauses().map(|(serial, pause)| {
            let forgotten_at = pause.until.after(window);
            let known = before.iter().find(|one| one.serial == serial);
            if let Some(known) = known {
                known.set(pause.until, forgotten_at);
                return Arc::clone(known);
            }
            Arc::new(PausedBackend::new(serial, name, pause.until, forgotten_at))
        });
        let pauses: Vec<Arc<PausedBackend>> = pauses.collect();
        let is_over = |one: &&Arc<PausedBackend>| pauses.iter().all(|kept| !Arc::ptr_eq(kept, one));
        // A decision that still holds the old list must see the end, too.
        for over in before.iter().filter(is_over) {
            over.end();
        }
        self.paused.store(Arc::new(pauses));
    }
}

/// The changes for all clients after the end of an attempt.
#[derive(Debug, Default)]
pub(super) struct Learned {
    /// The backend's pause, if it is paused.
    pub(super) paused: Option<(Duration, Arc<PausedBackend>)>,
    /// The names of the backends that are released.
    pub(super) released: Vec<Box<str>>,
    /// True if the backend itself is among them.
    pub(super) is_own_released: bool,
    /// True if the backend is paused for the client.
    pub(super) is_paused_for_client: bool,
}

impl Learned {
    /// Returns whether the backend is paused now, for the client or for all.
    pub(super) fn has_pause(&self) -> bool {
        self.is_paused_for_client || self.paused.is_some()
    }

    /// Adds the changes by the other kind of evidence.
    pub(super) fn and(mut self, other: Self) -> Self {
        self.released.extend(other.released);
        Self {
            paused: self.paused.or(other.paused),
            released: self.released,
            is_own_released: self.is_own_released || other.is_own_released,
            is_paused_for_client: self.is_paused_for_client || other.is_paused_for_client,
        }
    }
}

/// The evidence of all clients, and of each client that met a failure.
#[derive(Debug, Default)]
pub(super) struct Evidence {
    everyone: Record,
    clients: ArcSwap<Vec<Arc<Record>>>,
}

impl Evidence {
    fn client(&self, client: u64) -> Option<Arc<Record>> {
        self.clients.load().iter().find(|one| one.client == client).cloned()
    }

    /// The number of clients that are kept.
    #[cfg(test)]
    pub(super) fn client_count(&self) -> usize {
        self.clients.load().len()
    }

    /// The breaker state that the requests of all clients find on a backend.
    pub(super) fn state(&self, serial: u64, now: Timestamp) -> BreakerState {
        self.everyone.state(serial, now)
    }

    /// The breaker state that a client's own evidence imposes.
    pub(super) fn state_for(&self, client: u64, serial: u64, now: Timestamp) -> BreakerState {
        let clients = self.clients.load();
        let record = clients.iter().find(|one| one.client == client);
        record.map_or(BreakerState::Closed, |one| one.state(serial, now))
    }

    /// Returns whether a client's own prompts may be the cause of its failures.
    pub(super) fn has_bad_prompts(&self, client: u64) -> bool {
        let clients = self.clients.load();
        let record = clients.iter().find(|one| one.client == client);
        record.is_some_and(|one| one.has_bad_prompts.load(Ordering::Relaxed))
    }

    /// Adds the clients that avoid a backend by their own evidence to `found`.
    pub(super) fn add_avoiding(&self, serial: u64, now: Timestamp, found: &mut Vec<u64>) {
        let clients = self.clients.load();
        let avoiding =
            clients.iter().filter(|one| one.of(serial).is_some_and(|it| it.is_waiting(now)));
        found.extend(avoiding.map(|one| one.client));
    }

    /// The pause of a backend for all clients.
    pub(super) fn paused(&self, serial: u64) -> Option<Arc<PausedBackend>> {
        self.everyone.of(serial)
    }

    /// The pause of a backend for one client.
    pub(super) fn paused_for(&self, client: u64, serial: u64) -> Option<Arc<PausedBackend>> {
        self.client(client)?.of(serial)
    }

    /// Records a response, or its absence, of the backend called `name`. `is_sound`: true for a
    /// backend that does not fail for all clients. Returns the changes for all clients.
    pub(super) fn learn(
        &self,
        sign: &Sign,
        name: &str,
        terms: Terms<'_>,
        is_sound: impl Fn(u64) -> bool,
    ) -> Learned {
        let window = terms.config.window;
        let (mut is_evidence, mut own) = (true, Learned::default());
        if let Some(record) = self.record(sign, window) {
            let mut shares = record.shares.lock();
            let learned = record.learn(sign, name, Terms { clients: 1, ..terms }, &mut shares);
            own.is_paused_for_client = learned.paused.is_some();
            let are_bad = |least: usize, counts: &dyn Fn(u64) -> bool| {
                let share = shares.share_of_prompts(sign.at, window, least, counts);
                share.is_some_and(|share| share >= BAD_PROMPTS)
            };
            // On a single backend it is open whether the prompts or the backend are at fault.
            record.has_bad_prompts.store(are_bad(2, &|_| true), Ordering::Relaxed);
            let is_other = |serial| serial != sign.backend && is_sound(serial);
            is_evidence = !(sign.is_fault && are_bad(1, &is_other));
        }
        // Most good responses end here: without a recent failure they take no lock.
        let is_of_all = sign.is_fault || self.everyone.is_active(sign.at, window);
        if !(is_evidence && is_of_all) {
            return own;
        }
        own.and(self.everyone.learn(sign, name, terms, &mut self.everyone.shares.lock()))
    }

    /// Returns the record of a client, which starts with its first fault.
    fn record(&self, sign: &Sign, window: Duration) -> Option<Arc<Record>> {
        let client = sign.client;
        if let Some(known) = self.clients.load().iter().find(|one| one.client == client) {
            return Some(Arc::clone(known));
        }
        if !sign.is_fault {
            return None;
        }
        let added = Arc::new(Record { client, ..Record::default() });
        let last_fault = |one: &Record| one.last_fault.load(Ordering::Relaxed);
        self.clients.rcu(|list| {
            // Of two records that a client's first faults start at once, the later one stays.
            let is_live =
                |one: &&Arc<Record>| one.client != client && one.is_active(sign.at, window);
            let live = list.iter().filter(is_live);
            let mut list: Vec<Arc<Record>> = live.cloned().collect();
            if list.len() >= MAX_CLIENTS {
                let order = |one: &Record| (!one.paused.load().is_empty(), last_fault(one));
                let first = list.iter().enumerate().min_by_key(|(_, one)| order(one));
                if let Some((index, _)) = first {
                    list.swap_remove(index);
                }
            }
            list.push(Arc::clone(&added));
            list
        });
        Some(added)
    }
}
