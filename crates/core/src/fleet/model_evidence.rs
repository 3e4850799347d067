//! The failing backends of one model, for each client and for all clients.
//!
//! **Why per client.** A gateway in front of penstock sends everything from one address, and must
//! avoid a failing engine, too. But no client's prompts may cost another client anything. So the
//! responses of one client are judged separately ([`FaultShares`]) and steer that client. The
//! responses of all clients are also judged together, if at least two met the faults, and steer
//! everyone: a broken engine is avoided after a few failures, not after a few per client. Faults of
//! a client whose prompts also fail elsewhere are excluded, and such a client probes nothing for
//! others. Refusals (4xx) are judged apart from faults, so that neither hides the other, and steer
//! everyone only if [`REFUSED_CLIENTS`] met them: several clients may well send bad requests.
//!
//! **Why per model.** A model that is broken on a backend says nothing about the other models
//! there. The backend itself is avoided only if two models fail there at once
//! ([`super::FaultyModels`]).
//!
//! **The effect.** Other backends are preferred to a paused one. If all others are down or paused,
//! it is used as if there were no evidence: traffic alone makes no model unavailable. A probe holds
//! its slot until its tokens have flowed for as long as it takes to see a stream stall.
//!
//! **What would break it.** Decisions read the pauses without a lock. The ends of attempts take a
//! lock after a fault within the window, for as long as it takes to add a number. A decision that
//! sees an older pause steers one request wrongly, to a backend that can serve it.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use arc_swap::ArcSwap;
use penstock_api::units::Timestamp;
use penstock_config::BreakerConfig;

use super::backend::SharedBackend;
use super::circuit_breaker::{BreakerState, pauses_end};
use super::evidence::{Evidence, Learned};
use super::fault_shares::{Sign, Terms};
use super::health::Health;
use super::longest_response::LongestResponse;
use super::paused_backend::PausedBackend;

/// The number of clients that must have met the faults that steer everyone.
const FAILED_CLIENTS: u32 = 2;
/// The number of clients that must have met the refusals that steer everyone.
const REFUSED_CLIENTS: u32 = 8;

/// The evidence against the backends of one model.
#[derive(Debug, Default)]
pub struct ModelEvidence {
    /// The end of all evidence; spares attempts a look at the rest.
    active_until: AtomicU64,
    /// The end of all pauses, which may be longer than their evidence counts.
    paused_until: AtomicU64,
    faults: Evidence,
    refusals: Evidence,
    /// The backends that serve the model.
    backends: ArcSwap<Vec<SharedBackend>>,
    /// The duration of the model's whole responses.
    pub(super) longest: LongestResponse,
    /// The TTFT of the model's streams.
    pub(super) longest_first_token: LongestResponse,
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
        let own = self.kinds().map(|kind| kind.state_for(client, serial, now)).into_iter().max();
        match for_all {
            BreakerState::HalfOpen if self.has_bad_prompts(client, now) => BreakerState::Open,
            _ => for_all.max(own.unwrap_or(BreakerState::Closed)),
        }
    }

    fn kinds(&self) -> [&Evidence; 2] {
        [&self.faults, &self.refusals]
    }

    /// The breaker state that the requests of all clients find on a backend.
    pub fn state_for_all(&self, serial: u64, now: Timestamp) -> BreakerState {
        self.faults.state(serial, now).max(self.refusals.state(serial, now))
    }

    /// Returns whether a client's own prompts may be the cause of its failures. A backend is not
    /// probed with them.
    pub fn has_bad_prompts(&self, client: u64, now: Timestamp) -> bool {
        self.is_active(now) && self.faults.has_bad_prompts(client)
    }

    fn is_active(&self, now: Timestamp) -> bool {
        self.active_until.load(Ordering::Relaxed) > now.0
    }

    fn may_be_paused(&self, now: Timestamp) -> bool {
        self.paused_until.load(Ordering::Relaxed) > now.0
    }

    /// Adds the clients that avoid a backend by their own evidence to `found`.
    pub(super) fn add_avoiding(&self, serial: u64, now: Timestamp, found: &mut Vec<u64>) {
        self.kinds().iter().for_each(|kind| kind.add_avoiding(serial, now, found));
    }

    /// Takes the probe slot of a pause that is open to a probe: of one for all clients, or else for
    /// this client. `None` if another request holds it or nothing is paused.
    pub(super) fn try_take_probe(
        &self,
        client: u64,
        serial: u64,
        now: Timestamp,
    ) -> Option<Arc<PausedBackend>> {
        let for_all = self.kinds().into_iter().filter_map(|kind| kind.paused(serial));
        let own = self.kinds().into_iter().filter_map(|kind| kind.paused_for(client, serial));
        // A pause that is over, or forgotten, may still be listed: its slot is not what the
        // decision found free.
        let mut open = for_all.chain(own).filter(|one| one.state(now) == BreakerState::HalfOpen);
        open.next().filter(|paused| paused.probe.try_take())
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
        } else if !self.is_active(sign.at) && !self.may_be_paused(sign.at) {
            return Learned::default();
        }
        // A failure on a backend that fails for all clients says nothing about prompts.
        let is_sound = |serial| self.state_for_all(serial, sign.at) == BreakerState::Closed;
        let terms = |clients, are_refusals| Terms { config, backends, clients, are_refusals };
        let of_faults = || self.faults.learn(sign, name, terms(FAILED_CLIENTS, false), is_sound);
        let of_refusals =
            || self.refusals.learn(sign, name, terms(REFUSED_CLIENTS, true), is_sound);
        let learned = match sign.is_fault {
            true if sign.is_refusal => of_refusals(),
            true => of_faults(),
            false => of_faults().and(of_refusals()),
        };
        if learned.has_pause() {
            self.paused_until.fetch_max(pauses_end(sign.at, config).0, Ordering::Relaxed);
        }
        learned
    }
}

#[cfg(test)]
mod pause_tests;
#[cfg(test)]
mod tests;
