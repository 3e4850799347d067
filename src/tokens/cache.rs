//! Verdicts on tokens by the hash of the token. A fixed number of slots, 16 for each hash: a
//! look-up reads at most 16, without a lock, and a new verdict takes an empty or expired one, or
//! that of the token which expires first. A lost verdict costs one more verification.

use std::sync::Arc;

use arc_swap::ArcSwapOption;
use penstock_config::{KeyHash, UnixTime};

use super::VerifiedToken;

const WAYS: usize = 16;

#[derive(Debug)]
pub(super) struct Cache {
    slots: Box<[ArcSwapOption<VerifiedToken>]>,
}

impl Cache {
    /// Creates an empty cache of `most` verdicts.
    pub(super) fn new(most: usize) -> Self {
        Self { slots: (0..most.max(1)).map(|_| ArcSwapOption::empty()).collect() }
    }

    pub(super) fn capacity(&self) -> usize {
        self.slots.len()
    }

    /// Returns the slots that a hash may be in.
    fn slots(&self, hash: &KeyHash) -> &[ArcSwapOption<VerifiedToken>] {
        let [a, b, c, d, e, f, g, h, ..] = *hash.as_bytes();
        let number = u64::from_le_bytes([a, b, c, d, e, f, g, h]);
        let sets = self.slots.len().div_ceil(WAYS);
        let set = number % u64::try_from(sets).unwrap_or(1).max(1);
        let from = usize::try_from(set).unwrap_or(0).saturating_mul(WAYS);
        let until = from.saturating_add(WAYS).min(self.slots.len());
        self.slots.get(from..until).unwrap_or_default()
    }

    /// Returns the verdict on the token with a hash.
    pub(super) fn find(&self, hash: &KeyHash) -> Option<Arc<VerifiedToken>> {
        self.slots(hash).iter().find_map(|slot| {
            let verdict = slot.load();
            let verdict = verdict.as_ref().filter(|verdict| verdict.hash == *hash)?;
            Some(Arc::clone(verdict))
        })
    }

    /// Remembers a verdict. Returns whether one of a token that is still valid was evicted.
    pub(super) fn insert(&self, verdict: Arc<VerifiedToken>, now: UnixTime) -> bool {
        // The time at which a slot is free: 0 for an empty one and for that of the same token.
        let free_at = |slot: &ArcSwapOption<VerifiedToken>| match &*slot.load() {
            Some(known) if known.hash != verdict.hash => known.expires_at.0,
            _ => 0,
        };
        let slots = self.slots(&verdict.hash).iter();
        let Some((free_at, slot)) = slots.map(|slot| (free_at(slot), slot)).min_by_key(|one| one.0)
        else {
            debug_assert!(false, "there is a slot for every hash");
            return false;
        };
        slot.store(Some(verdict));
        free_at > now.0
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = Arc<VerifiedToken>> {
        self.slots.iter().filter_map(ArcSwapOption::load_full)
    }
}
