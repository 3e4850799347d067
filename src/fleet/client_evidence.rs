//! Which clients met faults on a backend, and with which prompts.
//!
//! **Why per client.** A gateway in front of penstock sends everything from one address; a failing
//! engine must be avoided there, too. But a client whose prompts make any engine respond 500 must not
//! take that engine away from others. So the evidence of one client steers that client only, and the
//! circuit breaker counts evidence, not faults.
//!
//! **What counts.** A fault of a (client, prompt) that is not known yet is new evidence, at most
//! [`PROMPTS`] per client within `breaker.window`: a prompt retried for ever counts once, and a client
//! with twenty bad prompts counts twice.
//!
//! **What it does.** After one fault, the same prompt of the same client avoids the backend; after faults
//! of two prompts, all requests of that client do. The pause is that of the circuit breaker, and after it
//! one request of that client at a time may probe. Where a client avoids every backend, it is served as
//! if there were no evidence.
//!
//! **What would break it.** Entries are read without a lock by decisions and changed by attempts that
//! end. A reader that sees half of a change steers one request wrongly, to a backend that can serve it;
//! nothing else follows. The list itself is replaced as a whole.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};

use arc_swap::ArcSwap;

use super::circuit_breaker::{BreakerState, pause};
use super::requester::Requester;
use crate::config::BreakerConfig;
use crate::units::Timestamp;

/// Prompts of one client that count.
const PROMPTS: usize = 2;
/// Clients of one backend that are kept; beyond, the one whose evidence expires first makes room (LRU).
const MAX_CLIENTS: usize = 64;

/// A prompt that met a fault.
#[derive(Debug, Default)]
struct FailedPrompt {
    prompt: AtomicU64,
    /// When it no longer counts.
    expires_at: AtomicU64,
}

impl FailedPrompt {
    fn is_live(&self, now: Timestamp) -> bool {
        self.expires_at.load(Ordering::Relaxed) > now.0
    }

    fn is(&self, prompt: u64) -> bool {
        self.prompt.load(Ordering::Relaxed) == prompt
    }
}

/// What one client met on one backend.
#[derive(Debug, Default)]
pub(super) struct Evidence {
    client: u64,
    prompts: [FailedPrompt; PROMPTS],
    /// Until when the backend is avoided; 0 after a successful probe.
    avoided_until: AtomicU64,
    times_avoided: AtomicU32,
    probing: AtomicBool,
}

impl Evidence {
    fn expires_at(&self) -> u64 {
        let expiries = self.prompts.iter().map(|one| one.expires_at.load(Ordering::Relaxed));
        expiries.max().unwrap_or(0)
    }

    /// Whether it concerns a request with that prompt.
    fn concerns(&self, prompt: u64, now: Timestamp) -> bool {
        let live = || self.prompts.iter().filter(|one| one.is_live(now));
        live().count() == PROMPTS || live().any(|one| one.is(prompt))
    }

    fn state(&self, now: Timestamp) -> BreakerState {
        match self.avoided_until.load(Ordering::Relaxed) {
            0 => BreakerState::Closed,
            until if until <= now.0 && !self.probing.load(Ordering::Relaxed) => {
                BreakerState::HalfOpen
            }
            _ => BreakerState::Open,
        }
    }

    /// Notes a fault. Returns whether it is new evidence.
    fn note(&self, prompt: u64, now: Timestamp, config: &BreakerConfig) -> bool {
        let expires_at = now.after(config.window).0;
        if !self.prompts.iter().any(|one| one.is_live(now)) {
            self.times_avoided.store(0, Ordering::Relaxed);
        }
        let known = self.prompts.iter().find(|one| one.is_live(now) && one.is(prompt));
        let free = self.prompts.iter().find(|one| !one.is_live(now));
        if let Some(slot) = known.or(free) {
            slot.prompt.store(prompt, Ordering::Relaxed);
            slot.expires_at.store(expires_at, Ordering::Relaxed);
        }
        // Requests that were in flight when the pause began fail one after another: they must not
        // double it each time.
        if self.avoided_until.load(Ordering::Relaxed) <= now.0 {
            let times = self.times_avoided.fetch_add(1, Ordering::Relaxed);
            self.avoided_until.store(now.after(pause(config, times)).0, Ordering::Relaxed);
        }
        known.is_none() && free.is_some()
    }

    pub(super) fn try_take_probe(&self) -> bool {
        !self.probing.swap(true, Ordering::AcqRel)
    }

    pub(super) fn free_probe(&self) {
        self.probing.store(false, Ordering::Release);
    }
}

/// The evidence of all clients against one backend.
#[derive(Debug, Default)]
pub struct ClientEvidence(ArcSwap<Vec<Arc<Evidence>>>);

impl ClientEvidence {
    /// What the sender of a request meets: `Open` where its own evidence says to avoid the backend.
    pub fn state(&self, requester: Requester, now: Timestamp) -> BreakerState {
        let list = self.0.load();
        let found = list.iter().find(|one| one.client == requester.client);
        let found = found.filter(|one| one.concerns(requester.prompt, now));
        found.map_or(BreakerState::Closed, |one| one.state(now))
    }

    /// How many clients avoid the backend.
    pub fn clients_avoiding(&self, now: Timestamp) -> usize {
        let list = self.0.load();
        list.iter().filter(|one| one.avoided_until.load(Ordering::Relaxed) > now.0).count()
    }

    /// Takes the probe slot of the client's evidence; `None` when another request holds it or the
    /// evidence is gone.
    pub(super) fn try_take_probe(&self, client: u64) -> Option<Arc<Evidence>> {
        let list = self.0.load();
        let found = list.iter().find(|one| one.client == client)?;
        found.try_take_probe().then(|| Arc::clone(found))
    }

    /// Records a fault that `requester` met. Returns whether it is new evidence.
    pub(super) fn learn_fault(
        &self,
        requester: Requester,
        now: Timestamp,
        config: &BreakerConfig,
    ) -> bool {
        let Requester { client, prompt, .. } = requester;
        if let Some(known) = self.0.load().iter().find(|one| one.client == client) {
            return known.note(prompt, now, config);
        }
        let added = Arc::new(Evidence { client, ..Evidence::default() });
        let is_new = added.note(prompt, now, config);
        self.0.rcu(|list| {
            let live = list.iter().filter(|one| one.expires_at() > now.0).cloned();
            let mut list: Vec<Arc<Evidence>> = live.collect();
            if list.len() >= MAX_CLIENTS {
                let oldest = list.iter().enumerate().min_by_key(|(_, one)| one.expires_at());
                if let Some((index, _)) = oldest {
                    list.swap_remove(index);
                }
            }
            list.push(Arc::clone(&added));
            list
        });
        is_new
    }

    /// A probe of the client met no fault: it avoids the backend no longer. The prompts stay known, so
    /// that the same ones do not count again.
    pub(super) fn learn_passed(&self, client: u64) {
        if let Some(known) = self.0.load().iter().find(|one| one.client == client) {
            known.avoided_until.store(0, Ordering::Relaxed);
            known.times_avoided.store(0, Ordering::Relaxed);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    fn of(client: u64, prompt: u64) -> Requester {
        Requester { client, prompt, credential: 1 }
    }

    fn seconds(count: u64) -> Timestamp {
        Timestamp(count * 1_000_000)
    }

    fn config() -> BreakerConfig {
        let open = Duration::from_secs(2);
        BreakerConfig { open, max_open: Duration::from_secs(4), ..BreakerConfig::default() }
    }

    #[test]
    fn one_prompt_steers_itself_and_two_steer_the_client() {
        let evidence = ClientEvidence::default();
        assert!(evidence.learn_fault(of(1, 10), seconds(1), &config()));
        let state = |client, prompt| evidence.state(of(client, prompt), seconds(2));
        assert_eq!(state(1, 10), BreakerState::Open);
        assert_eq!(state(1, 11), BreakerState::Closed, "another prompt of the client");
        assert!(!evidence.learn_fault(of(1, 10), seconds(1), &config()), "it counts once");
        assert!(evidence.learn_fault(of(1, 11), seconds(1), &config()));
        assert_eq!(state(1, 12), BreakerState::Open);
        assert_eq!(state(2, 10), BreakerState::Closed, "another client");
        assert!(!evidence.learn_fault(of(1, 12), seconds(1), &config()), "two prompts count");
    }

    #[test]
    fn one_probe_at_a_time_ends_or_doubles_the_pause() {
        let evidence = ClientEvidence::default();
        evidence.learn_fault(of(1, 10), seconds(1), &config());
        let state = |at| evidence.state(of(1, 10), seconds(at));
        assert_eq!((state(2), state(3)), (BreakerState::Open, BreakerState::HalfOpen));
        let held = evidence.try_take_probe(1).unwrap();
        assert!(evidence.try_take_probe(1).is_none());
        assert_eq!(state(3), BreakerState::Open, "the slot is taken");
        evidence.learn_fault(of(1, 10), seconds(3), &config());
        held.free_probe();
        assert_eq!((state(6), state(7)), (BreakerState::Open, BreakerState::HalfOpen), "4 s");
        evidence.learn_passed(1);
        assert_eq!(state(7), BreakerState::Closed);
        assert!(!evidence.learn_fault(of(1, 10), seconds(8), &config()), "still known");
        assert!(
            evidence.learn_fault(of(1, 10), seconds(60), &config()),
            "forgotten with the window"
        );
    }

    #[test]
    fn number_of_clients_is_bounded() {
        let evidence = ClientEvidence::default();
        for client in 0..100 {
            evidence.learn_fault(of(client, 1), Timestamp(1_000_000 + client), &config());
        }
        assert_eq!(evidence.clients_avoiding(seconds(2)), MAX_CLIENTS);
        assert_eq!(evidence.state(of(0, 1), seconds(2)), BreakerState::Closed, "oldest first");
        assert_eq!(evidence.state(of(99, 1), seconds(2)), BreakerState::Open);
    }
}
