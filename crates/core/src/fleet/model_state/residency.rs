//! The residency of a model in a backend's memory.
//!
//! Probes report it, and penstock's own traffic keeps it current between them: a complete response
//! proves that the model is in memory now. An older probe that shows the opposite does not count,
//! unless the model was known to be in memory before: then another model has evicted it in between.
//! An announced expiry ends the residency without a further probe, unless a request is in flight.
//!
//! A request in flight counts as residency, because the backend loads the model for it. This does
//! not hold after a probe has shown an eviction: otherwise two models that evict each other on one
//! backend would both count as resident while each has requests in flight.
//! A response to a request from before the eviction shows that the model has been loaded again.
//! [`crate::fleet::Serving::residency`] adds the effect of other models on the backend.

use std::sync::atomic::Ordering;

use penstock_api::units::{ByteSize, Timestamp, TokenCount};
use penstock_scoring::Residency;

use super::{LoadedModel, ModelState};

/// The stored state of a model that a probe no longer showed although it was in use: it is loadable
/// again.
const EVICTED: u8 = 4;

impl ModelState {
    /// The residency at `now`. A model with a request in flight counts as resident: it is loaded,
    /// or being loaded.
    #[inline(always)]
    pub fn residency(&self, now: Timestamp) -> Residency {
        let residency = self.stored_residency();
        if self.load.in_flight() > 0 && !self.is_evicted() {
            return Residency::Resident;
        }
        let expires_at = self.expires_at.load(Ordering::Relaxed);
        if residency == Residency::Resident && expires_at != 0 && expires_at <= now.0 {
            return Residency::Loadable;
        }
        residency
    }

    #[inline(always)]
    fn stored_residency(&self) -> Residency {
        match self.residency.load(Ordering::Relaxed) {
            1 | EVICTED => Residency::Loadable,
            2 => Residency::Sleeping,
            3 => Residency::Resident,
            _ => Residency::Unknown,
        }
    }

    /// Returns whether a probe no longer showed it although it was in use.
    #[inline(always)]
    pub(in crate::fleet) fn is_evicted(&self) -> bool {
        self.residency.load(Ordering::Relaxed) == EVICTED
    }

    /// Sets the residency that an engine is known for, or of a saved fleet.
    pub fn set_residency(&self, residency: Residency) {
        let stored = match residency {
            Residency::Unknown => 0,
            Residency::Loadable => 1,
            Residency::Sleeping => 2,
            Residency::Resident => 3,
        };
        self.residency.store(stored, Ordering::Relaxed);
    }

    /// Sets the residency unless it is already known.
    pub(in crate::fleet) fn settle_residency(&self, residency: Residency) {
        if self.stored_residency() == Residency::Unknown {
            self.set_residency(residency);
        }
    }

    /// Returns whether a probe that started at `asked_at` and did not show the model may be older
    /// than its load: a request for it was sent, and no response or probe before showed it.
    pub(in crate::fleet) fn may_be_loaded_after(&self, asked_at: Timestamp) -> bool {
        !self.was_resident_before(asked_at) && self.is_used_after(asked_at) && !self.is_evicted()
    }

    fn is_used_after(&self, asked_at: Timestamp) -> bool {
        self.load.in_flight() > 0 || self.is_outdated(asked_at)
    }

    fn is_outdated(&self, asked_at: Timestamp) -> bool {
        self.last_used().is_some_and(|used| used > asked_at)
    }

    fn was_resident_before(&self, asked_at: Timestamp) -> bool {
        self.stored_residency() == Residency::Resident
            && self.resident_since.load(Ordering::Relaxed) < asked_at.0
    }

    /// Records a probe that started at `asked_at`; `None` if it did not show the model. Returns
    /// whether the context that the model is loaded with differs from the one before.
    pub(in crate::fleet) fn learn_probe(
        &self,
        found: Option<&LoadedModel>,
        asked_at: Timestamp,
    ) -> bool {
        let before = self.context_length();
        self.apply_probe(found, asked_at);
        self.context_length() != before
    }

    fn apply_probe(&self, found: Option<&LoadedModel>, asked_at: Timestamp) {
        let is_outdated = self.is_outdated(asked_at);
        let was_resident = self.stored_residency() == Residency::Resident;
        let Some(found) = found else {
            // In use, yet not shown: another model has evicted it.
            if self.was_resident_before(asked_at) && self.is_used_after(asked_at) {
                self.set_evicted();
                self.forget_loaded();
            } else if !is_outdated {
                self.unload();
            }
            return;
        };
        // A probe older than a response may confirm the response, but not contradict it.
        if !is_outdated || found.residency == Residency::Resident {
            self.set_residency(found.residency);
            if !was_resident && found.residency == Residency::Resident {
                self.resident_since.store(asked_at.0, Ordering::Relaxed);
            }
            // At least 1, because 0 stands for no expiry.
            let expires_at = found.expires_at.map_or(0, |at| at.0.max(1));
            self.expires_at.store(expires_at, Ordering::Relaxed);
        }
        self.vram.store(found.vram.unwrap_or_default().0, Ordering::Relaxed);
        let context_length = found.context_length.unwrap_or_default().0;
        self.context_length.store(context_length, Ordering::Relaxed);
    }

    /// Records that a probe sent at `at` settles the state of the model, or that a request sent
    /// then loads it.
    pub(in crate::fleet) fn prove(&self, at: Timestamp) {
        self.proved_at.fetch_max(at.0, Ordering::Relaxed);
    }

    /// The time of the last such probe or load.
    #[inline(always)]
    pub(in crate::fleet) fn proved_at(&self) -> Timestamp {
        Timestamp(self.proved_at.load(Ordering::Relaxed))
    }

    /// Marks it as evicted although requests are in flight: for a saved fleet.
    pub(in crate::fleet) fn set_evicted(&self) {
        self.residency.store(EVICTED, Ordering::Relaxed);
    }

    fn unload(&self) {
        self.set_residency(Residency::Loadable);
        self.forget_loaded();
    }

    fn forget_loaded(&self) {
        self.expires_at.store(0, Ordering::Relaxed);
        self.vram.store(0, Ordering::Relaxed);
        self.context_length.store(0, Ordering::Relaxed);
    }

    /// Records that a response of the model was complete at `now`, so that it is in memory. Returns
    /// whether that is new, so that other models may have been evicted.
    pub(in crate::fleet) fn learn_response(&self, now: Timestamp) -> bool {
        self.last_used.store(now.0.max(1), Ordering::Relaxed);
        let was_resident = self.stored_residency() == Residency::Resident;
        // The engine restarts its expiry at the response; the next probe shows the new time.
        self.expires_at.store(0, Ordering::Relaxed);
        if !was_resident {
            self.resident_since.store(now.0, Ordering::Relaxed);
            self.set_residency(Residency::Resident);
        }
        !was_resident
    }

    /// Forgets the process's memory: it ended, or has not reported for long.
    pub(in crate::fleet) fn forget_process(&self, residency: Residency) {
        self.set_residency(residency);
        self.forget_loaded();
    }

    /// The time of the last response that proved it to be in memory.
    pub fn last_used(&self) -> Option<Timestamp> {
        Some(Timestamp(self.last_used.load(Ordering::Relaxed))).filter(|at| at.0 != 0)
    }

    /// The time at which the engine unloads it, unless a request comes.
    pub fn expires_at(&self) -> Option<Timestamp> {
        Some(Timestamp(self.expires_at.load(Ordering::Relaxed))).filter(|at| at.0 != 0)
    }

    /// Its size on disk.
    pub fn size(&self) -> Option<ByteSize> {
        Some(ByteSize(self.size.load(Ordering::Relaxed))).filter(|size| size.0 != 0)
    }

    /// Sets its size on disk.
    pub fn set_size(&self, size: ByteSize) {
        self.size.store(size.0, Ordering::Relaxed);
    }

    /// The VRAM that it occupies.
    pub fn vram(&self) -> Option<ByteSize> {
        Some(ByteSize(self.vram.load(Ordering::Relaxed))).filter(|size| size.0 != 0)
    }

    /// The context length it is loaded with.
    pub fn context_length(&self) -> Option<TokenCount> {
        Some(TokenCount(self.context_length.load(Ordering::Relaxed))).filter(|length| length.0 != 0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn found(residency: Residency, expires_at: Option<u64>) -> LoadedModel {
        LoadedModel { residency, expires_at: expires_at.map(Timestamp), ..LoadedModel::default() }
    }

    #[test]
    fn model_evicted_while_in_use_is_loadable_until_its_next_response() {
        let model = ModelState::default();
        assert!(model.learn_response(Timestamp(10)));
        model.load.set_in_flight(2);
        assert!(!model.learn_response(Timestamp(30)));
        model.learn_probe(None, Timestamp(20));
        assert_eq!(model.residency(Timestamp(31)), Residency::Loadable, "requests are in flight");
        assert!(model.learn_response(Timestamp(40)), "it has been loaded again");
        assert_eq!(model.residency(Timestamp(41)), Residency::Resident);
    }

    #[test]
    fn probe_shows_whether_the_loaded_context_is_another_one() {
        let model = ModelState::default();
        let with = |length| LoadedModel {
            context_length: Some(TokenCount(length)),
            ..found(Residency::Resident, None)
        };
        assert!(model.learn_probe(Some(&with(4096)), Timestamp(1)));
        assert!(!model.learn_probe(Some(&with(4096)), Timestamp(2)));
        assert!(model.learn_probe(Some(&with(8192)), Timestamp(3)));
        assert!(model.learn_probe(None, Timestamp(4)), "unloaded");
        assert!(!model.learn_probe(None, Timestamp(5)));
    }

    #[test]
    fn residency_follows_the_newer_of_probe_and_response() {
        let model = ModelState::default();
        assert_eq!(model.residency(Timestamp(1)), Residency::Unknown);
        model.learn_probe(None, Timestamp(10));
        assert_eq!(model.residency(Timestamp(11)), Residency::Loadable);
        assert!(model.learn_response(Timestamp(20)), "it was not known to be in memory");
        assert!(!model.learn_response(Timestamp(21)));
        model.learn_probe(None, Timestamp(15));
        assert_eq!(
            model.residency(Timestamp(22)),
            Residency::Resident,
            "asked before the response"
        );
        model.learn_probe(None, Timestamp(30));
        assert_eq!(model.residency(Timestamp(31)), Residency::Loadable);
    }

    #[test]
    fn residency_ends_when_it_expires_and_lasts_while_in_use() {
        let model = ModelState::default();
        model.learn_probe(Some(&found(Residency::Resident, Some(50))), Timestamp(10));
        assert_eq!(model.residency(Timestamp(49)), Residency::Resident);
        assert_eq!(model.residency(Timestamp(50)), Residency::Loadable);
        assert!(model.load.try_begin(1));
        assert_eq!(model.residency(Timestamp(60)), Residency::Resident, "in use");
        model.load.end();
        assert!(!model.learn_response(Timestamp(60)));
        assert_eq!(model.residency(Timestamp(90)), Residency::Resident, "used since");
    }

    #[test]
    fn sleeping_model_wakes_with_a_response() {
        let model = ModelState::default();
        model.learn_probe(Some(&found(Residency::Sleeping, None)), Timestamp(10));
        assert_eq!(model.residency(Timestamp(11)), Residency::Sleeping);
        assert!(model.learn_response(Timestamp(12)));
        assert_eq!(model.residency(Timestamp(13)), Residency::Resident);
        model.forget_process(Residency::Unknown);
        assert_eq!(model.residency(Timestamp(14)), Residency::Unknown);
    }
}
