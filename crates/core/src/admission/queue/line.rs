//! The requests of a model that the same backends can take: the more important priorities first.

use std::cmp::Reverse;
use std::collections::BTreeMap;

use super::class::{Class, Entry};
use super::{Charge, Cost, EntryId, Newcomer};
use crate::fleet::BackendSet;
use penstock_api::units::Timestamp;

/// Owners that are remembered beside those that wait, of all priorities.
const MAX_IDLE_OWNERS: usize = 4096;

/// A line.
#[derive(Debug)]
pub(super) struct Line {
    /// The backends that can take its requests.
    pub(super) backends: BackendSet,
    /// At most one per priority.
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

    pub(super) fn push(&mut self, priority: i32, entry: &Entry) {
        self.forget_idle();
        self.classes.entry(Reverse(priority)).or_default().push(entry);
        self.len += 1;
    }

    pub(super) fn remove(&mut self, priority: i32, entry: &Entry) {
        if let Some(class) = self.classes.get_mut(&Reverse(priority)) {
            class.remove(entry);
            self.len -= 1;
        }
    }

    /// Its next request of an owner that is not `held_back`, and that one's priority. None of a lower priority overtakes
    /// those.
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

    /// The least important of its requests, and that one's priority.
    pub(super) fn last(&self) -> Option<(i32, EntryId)> {
        let mut classes = self.classes.iter().rev().filter(|(_, class)| !class.is_empty());
        let (Reverse(priority), class) = classes.next()?;
        Some((*priority, class.last()?))
    }

    /// The request of `newcomer`'s priority that is to make room for it, because its owner has more here.
    pub(super) fn last_of_most(&self, newcomer: &Newcomer) -> Option<EntryId> {
        let class = self.classes.get(&Reverse(newcomer.priority))?;
        class.last_of_most(newcomer.owner, newcomer.weight)
    }

    /// An owner is served a request.
    pub(super) fn charge(&mut self, charge: &Charge) {
        if let Some(class) = self.classes.get_mut(&Reverse(charge.priority)) {
            class.charge(charge);
        }
    }

    /// It has ended, and has cost so much.
    pub(super) fn settle(&mut self, charge: &Charge, cost: Cost) {
        if let Some(class) = self.classes.get_mut(&Reverse(charge.priority)) {
            class.settle(charge, cost);
        }
    }

    /// Forgets owners that wait for nothing, so that their number is bounded: first those that have no lead.
    fn forget_idle(&mut self) {
        for keeps_leads in [true, false] {
            if self.idle_owners() < MAX_IDLE_OWNERS {
                return;
            }
            self.classes.values_mut().for_each(|class| class.forget_idle(keeps_leads));
        }
    }

    /// Owners that it remembers and that wait for nothing.
    pub(super) fn idle_owners(&self) -> usize {
        self.classes.values().map(Class::idle_owners).sum()
    }
}
