//! The failing backends of one model, for each client and for all clients.
//!
//! **Why per client.** A gateway in front of penstock sends everything from one address, and must
//! avoid a failing engine, too. But no client's prompts may cost another client anything. So the
//! responses of one client are judged separately ([`FaultShares`]) and steer that client. The
//! responses of all clients are also judged together, if at least two met the faults, and steer
//! everyone: a broken engine is avoided after a few failures, not after a few per client. Faults of
//! a client whose prompts also fail elsewhere are excluded, and such a client probes nothing for
//! others. Refusals (4xx) are judged apart from faults, and steer everyone only if
//! [`REFUSED_CLIENTS`] met them: several clients may well send bad requests.
//!
//! **Why per model.** A model that is broken on a backend says nothing about the other models
//! there. The backend itself is avoided only if two models fail there at once
//! ([`super::FaultyModels`]).
//!
//! **The effect.** Other backends are preferred to a paused one. If all others are down or paused,
//! it is used as if there were no evidence: traffic alone makes no model unavailable.
//!
//! **What would break it.** Decisions read the pauses without a lock. The ends of attempts take a
//! lock after a fault within the window, for as long as it takes to add a number. A decision that
//! sees an older pause steers one request wrongly, to a backend that can serve it.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use arc_swap::ArcSwap;
use parking_lot::Mutex;
use penstock_api::units::Timestamp;
use penstock_config::BreakerConfig;

use super::backend::SharedBackend;
use super::circuit_breaker::BreakerState;
use super::fault_shares::{Changes, FaultShares, Sign, Terms};
use super::health::Health;
use super::longest_response::LongestResponse;
use super::paused_backend::PausedBackend;

/// The most clients of one model that are kept. Beyond it, the client with the oldest last fault is
/// evicted, clients that avoid no backend first.
const MAX_CLIENTS: usize = 64;
/// The share of faults on other backends at which faults speak against a client's prompts.
const BAD_PROMPTS: f64 = 0.25;

/// The number of clients that must have met the faults that steer everyone.
const FAILED_CLIENTS: u32 = 2;
/// The number of clients that must have met the refusals that steer everyone.
const REFUSED_CLIENTS: u32 = 8;

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
        let Changes { paused, released: serials } = changes;
        Learned {
            paused: paused.zip(own),
            released,
            is_own_released: serials.contains(&sign.backend),
            is_paused_for_client: false,
        }
    }

    /// Returns whether a fault within `window` may be evidence.
    fn is_active(&self, now: Timestamp, window: Duration) -> bool {
        let last = self.last_fault.load(Ordering::Relaxed);
        last > 0 && now.since(Timestamp(last)) < window
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
    fn and(mut self, other: Self) -> Self {
        self.released.extend(other.released);
        Self {
            paused: self.paused.or(other.paused),
            released: self.released,
            is_own_released: self.is_own_released || other.is_own_released,
            is_paused_for_client: self.is_paused_for_client || other.is_paused_for_client,
        }
    }
}

/// The evidence against the backends of one model.
#[derive(Debug, Default)]
pub struct ModelEvidence {
    /// The end of all evidence; spares attempts a look at the rest.
    active_until: AtomicU64,
    /// The evidence of all clients.
    faults: Record,
    refusals: Record,
    clients: ArcSwap<Vec<Arc<Record>>>,
    /// The backends that serve the model.
    backends: ArcSwap<Vec<SharedBackend>>,
    /// The duration of the model's whole responses.
    pub(super) longest: LongestResponse,
}

impl ModelEvidence {
    /// Sets the backends that serve the model.
    pub(super) fn set_backends(&self, backends: Vec<SharedBackend>) {
        self.backends.store(Arc::new(backends));
    }

    /// The serial numbers of the backends that could serve the model now, and of `own`, which is
    /// compared with them.
    pub(super) fn usable_backends(&self, own: u64) -> Vec<u64> {
        let backends = self.backends.load();
        let usable = backends.iter().filter(|one| {
            let is_up = !matches!(one.status(), Health::Unhealthy | Health::Draining);
            one.serial == own || (is_up && one.breaker.is_closed() && !one.is_frozen())
        });
        usable.map(|one| one.serial).collect()
    }

    /// The breaker state that a client's request finds on a backend: `Open` if other backends are
    /// preferred, `HalfOpen` if it would probe.
    pub fn state(&self, client: u64, serial: u64, now: Timestamp) -> BreakerState {
        let for_all = self.state_for_all(serial, now);
        let clients = self.clients.load();
        let record = clients.iter().find(|one| one.client == client);
        let own = record.map_or(BreakerState::Closed, |one| one.state(serial, now));
        match for_all {
            BreakerState::HalfOpen if self.is_suspected(record, now) => BreakerState::Open,
            _ => for_all.max(own),
        }
    }

    /// The breaker state that the requests of all clients find on a backend.
    pub fn state_for_all(&self, serial: u64, now: Timestamp) -> BreakerState {
        self.faults.state(serial, now).max(self.refusals.state(serial, now))
    }

    /// Returns whether a client's own prompts may be the cause of its failures. A backend is not
    /// probed with them.
    pub fn has_bad_prompts(&self, client: u64, now: Timestamp) -> bool {
        let clients = self.clients.load();
        self.is_suspected(clients.iter().find(|one| one.client == client), now)
    }

    fn is_suspected(&self, record: Option<&Arc<Record>>, now: Timestamp) -> bool {
        self.is_active(now) && record.is_some_and(|one| one.has_bad_prompts.load(Ordering::Relaxed))
    }

    fn is_active(&self, now: Timestamp) -> bool {
        self.active_until.load(Ordering::Relaxed) > now.0
    }

    /// Adds the clients that avoid a backend by their own evidence to `found`.
    pub(super) fn add_avoiding(&self, serial: u64, now: Timestamp, found: &mut Vec<u64>) {
        let clients = self.clients.load();
        let avoiding =
            clients.iter().filter(|one| one.of(serial).is_some_and(|it| it.is_waiting(now)));
        found.extend(avoiding.map(|one| one.client));
    }

    /// Takes the probe slot of a backend that is paused for all clients, or else for this client.
    /// `None` if another request holds it or nothing is paused.
    pub(super) fn try_take_probe(&self, client: u64, serial: u64) -> Option<Arc<PausedBackend>> {
        let own = || self.clients.load().iter().find(|one| one.client == client)?.of(serial);
        let for_all = || self.faults.of(serial).or_else(|| self.refusals.of(serial));
        let paused = for_all().or_else(own)?;
        paused.try_take_probe().then_some(paused)
    }

    /// Records a response, or its absence, of the backend called `name`. `backends` are those that
    /// could serve the model. Returns the changes for all clients.
    pub(super) fn learn(
        &self,
        sign: &Sign,
        name: &str,
        config: &BreakerConfig,
        backends: &[u64],
    ) -> Learned {
        if sign.is_fault {
            self.active_until.fetch_max(sign.at.after(config.window).0, Ordering::Relaxed);
        // Most responses end here: without a recent fault they take no lock.
        } else if !self.is_active(sign.at) {
            return Learned::default();
        }
        let (mut is_evidence, mut is_paused_for_client) = (true, false);
        if let Some(record) = self.record(sign, config.window) {
            let terms = Terms { config, backends, clients: 1 };
            let mut shares = record.shares.lock();
            let learned = record.learn(sign, name, terms, &mut shares);
            is_paused_for_client = learned.paused.is_some();
            let are_bad = |least: usize, counts: &dyn Fn(u64) -> bool| {
                let share = shares.share_of_prompts(sign.at, config.window, least, counts);
                share.is_some_and(|share| share >= BAD_PROMPTS)
            };
            // On a single backend it is open whether the prompts or the backend are at fault.
            record.has_bad_prompts.store(are_bad(2, &|_| true), Ordering::Relaxed);
            // A failure on a backend that fails for all clients says nothing about prompts.
            let is_sound = |serial| self.state_for_all(serial, sign.at) == BreakerState::Closed;
            let is_other = |serial| serial != sign.backend && is_sound(serial);
            is_evidence = !(sign.is_fault && are_bad(1, &is_other));
        }
        let own = Learned { is_paused_for_client, ..Learned::default() };
        if !is_evidence {
            return own;
        }
        let for_all =
            [(&self.faults, false, FAILED_CLIENTS), (&self.refusals, true, REFUSED_CLIENTS)];
        let concerned =
            for_all.into_iter().filter(|(record, of_refusals, _)| match sign.is_fault {
                true => sign.is_refusal == *of_refusals,
                false => record.is_active(sign.at, config.window),
            });
        concerned.fold(own, |learned, (record, _, clients)| {
            let terms = Terms { config, backends, clients };
            learned.and(record.learn(sign, name, terms, &mut record.shares.lock()))
        })
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
        let oldest = sign.at.before(window).0;
        self.clients.rcu(|list| {
            // Of two records that a client's first faults start at once, the later one stays.
            let live = list.iter().filter(|one| last_fault(one) >= oldest && one.client != client);
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

#[cfg(test)]
mod tests;
