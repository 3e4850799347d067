//! The requests of a model that the same backends can take: higher priorities first.

use std::cmp::Reverse;
use std::collections::BTreeMap;

use penstock_api::units::Timestamp;

use super::class::{Class, QueueEntry};
use super::{Charge, Cost, EntryId, Newcomer};
use crate::fleet::BackendSet;

/// The most owners without waiting requests that are remembered, over all priorities.
const MAX_IDLE_OWNERS: usize = 4096;

#[derive(Debug)]
pub(super) struct Line {
    /// The backends that can take its requests.
    pub(super) backends: BackendSet,
    /// Its requests by priority, the highest first.
    classes: BTreeMap<Reverse<i32>, Class>,
    len: usize,
}

impl Line {
    pub(super) fn new(backends: BackendSet) -> Self {
        Self { backends, classes: BTreeMap::new(), len: 0 }
    }

    pub(super) fn is_empty(&self) -> bool {
        self.len == 0
    }

    pub(super) fn push(&mut self, priority: i32, entry: &QueueEntry) {
        self.forget_idle();
        self.classes.entry(Reverse(priority)).or_default().push(entry);
        self.len += 1;
    }

    pub(super) fn remove(&mut self, priority: i32, entry: &QueueEntry) {
        if let Some(class) = self.classes.get_mut(&Reverse(priority)) {
            class.remove(entry);
            self.len -= 1;
        }
    }

    /// Its next request of an owner that is not `held_back`, with its priority. No request of a
    /// lower priority overtakes a held-back one.
    pub(super) fn first(
        &mut self,
        now: Timestamp,
        newest_first: bool,
        held_back: &[u64],
    ) -> Option<(i32, EntryId)> {
        let mut classes = self.classes.iter_mut().filter(|(_, class)| !class.is_empty());
        let (Reverse(priority), class) = classes.next()?;
        Some((*priority, class.first(now, newest_first, held_back)?))
    }

    /// The request of the lowest priority of those that `may_leave`, with that priority.
    pub(super) fn last(&self, may_leave: impl Fn(&EntryId) -> bool) -> Option<(i32, EntryId)> {
        let mut classes = self.classes.iter().rev();
        classes.find_map(|(Reverse(priority), class)| Some((*priority, class.last(&may_leave)?)))
    }

    /// The request that is evicted for `newcomer`: one of the same priority whose owner has more
    /// requests here.
    pub(super) fn last_of_most(&self, newcomer: &Newcomer) -> Option<EntryId> {
        let class = self.classes.get(&Reverse(newcomer.priority))?;
        class.last_of_most(newcomer.owner, newcomer.weight)
    }

    pub(super) fn charge(&mut self, charge: &Charge) {
        if let Some(class) = self.classes.get_mut(&Reverse(charge.priority)) {
            class.charge(charge);
        }
    }

    pub(super) fn settle(&mut self, charge: &Charge, cost: Cost) {
        if let Some(class) = self.classes.get_mut(&Reverse(charge.priority)) {
            class.settle(charge, cost);
        }
    }

    /// Forgets owners without waiting requests, so that their number is bounded: first those
    /// without a lead.
    fn forget_idle(&mut self) {
        for keeps_leads in [true, false] {
            if self.idle_owners() < MAX_IDLE_OWNERS {
                return;
            }
            self.classes.values_mut().for_each(|class| class.forget_idle(keeps_leads));
        }
    }

    pub(super) fn idle_owners(&self) -> usize {
        self.classes.values().map(Class::idle_owners).sum()
    }
}
