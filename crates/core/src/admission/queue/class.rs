//! The requests of one priority in a line. Owners take turns by start-time fair queueing (Goyal,
//! Vin and Cheng 1996): the owner with the smallest tag is served next, and its tag advances by the
//! cost of the request over the owner's weight. Costs are tokens, as in the virtual token counter
//! (Sheng et al. 2024). An owner that returns after a pause starts at the tag of the owner served
//! last, so that idle time is not saved up.

use std::collections::{BTreeMap, BTreeSet};

use ahash::HashMap;
use penstock_api::units::Timestamp;

use super::{Charge, Cost, EntryId};

/// The advance of a tag per token at weight 1; it is divided by the weight.
const TAG_PER_TOKEN: u64 = 1000;

/// The most owners that are compared to find the one with the most requests.
const MAX_COMPARED: usize = 64;

/// A request as its class stores it.
#[derive(Debug, Clone, Copy)]
pub(super) struct QueueEntry {
    pub(super) id: EntryId,
    pub(super) owner: u64,
    pub(super) weight: u32,
    /// The time by which its objective requires the first token.
    pub(super) due: Option<Timestamp>,
    /// The end of its wait.
    pub(super) until: Timestamp,
}

impl QueueEntry {
    /// The sort key among the requests of one owner.
    fn rank(&self) -> Rank {
        (self.due.unwrap_or(self.until), self.id)
    }
}

type Rank = (Timestamp, EntryId);

/// The requests of one owner.
#[derive(Debug, Default)]
struct OwnerFlow {
    tag: u64,
    weight: u32,
    /// Earliest deadline first. The value is the deadline that replaces a missed objective.
    by_deadline: BTreeMap<Rank, Option<Timestamp>>,
    /// The requests without an objective in order of arrival, with their deadlines.
    plain: BTreeMap<EntryId, Timestamp>,
}

impl OwnerFlow {
    fn insert(&mut self, entry: &QueueEntry) {
        self.weight = entry.weight.max(1);
        self.by_deadline.insert(entry.rank(), entry.due.map(|_| entry.until));
        if entry.due.is_none() {
            self.plain.insert(entry.id, entry.until);
        }
    }

    fn remove(&mut self, entry: &QueueEntry) {
        // A request that missed its objective is filed under the end of its wait.
        let is_found = self.by_deadline.remove(&entry.rank()).is_some();
        if !is_found {
            self.by_deadline.remove(&(entry.until, entry.id));
        }
        self.plain.remove(&entry.id);
    }

    /// The number of its waiting requests over its weight.
    fn crowd(&self) -> u64 {
        let count = u64::try_from(self.by_deadline.len()).unwrap_or(u64::MAX);
        crowd(count, self.weight)
    }

    fn first(&mut self, now: Timestamp, newest_first: bool) -> Option<EntryId> {
        while let Some((rank, until)) = self.by_deadline.first_key_value() {
            let (rank, until) = (*rank, *until);
            match until {
                // Late already: it must not make the others late as well.
                Some(until) if rank.0 < now => {
                    self.by_deadline.remove(&rank);
                    self.by_deadline.insert((until, rank.1), None);
                }
                Some(_) => return Some(rank.1),
                None if newest_first => {
                    // Without a plain request, only those that missed their objective are left.
                    return self.plain.last_key_value().map(|(id, _)| *id).or(Some(rank.1));
                }
                None => return Some(rank.1),
            }
        }
        None
    }
}

/// A number of requests in relation to a weight.
fn crowd(count: u64, weight: u32) -> u64 {
    count.saturating_mul(TAG_PER_TOKEN) / u64::from(weight.max(1))
}

/// The requests of one priority.
#[derive(Debug, Default)]
pub(super) struct Class {
    flows: HashMap<u64, OwnerFlow>,
    /// Tags of the owners with requests.
    turns: BTreeSet<(u64, u64)>,
    /// The largest tag that an owner was served at.
    virtual_time: u64,
}

impl Class {
    pub(super) fn is_empty(&self) -> bool {
        self.turns.is_empty()
    }

    pub(super) fn push(&mut self, entry: &QueueEntry) {
        let flow = self.flows.entry(entry.owner).or_default();
        if flow.by_deadline.is_empty() {
            // Otherwise an owner that was idle would be served alone until it had caught up.
            flow.tag = flow.tag.max(self.virtual_time);
            self.turns.insert((flow.tag, entry.owner));
        }
        flow.insert(entry);
    }

    pub(super) fn remove(&mut self, entry: &QueueEntry) {
        let Some(flow) = self.flows.get_mut(&entry.owner) else { return };
        flow.remove(entry);
        if flow.by_deadline.is_empty() {
            self.turns.remove(&(flow.tag, entry.owner));
        }
    }

    /// The next request of an owner that is not `held_back`. `newest_first` applies to requests
    /// without an objective.
    pub(super) fn first(
        &mut self,
        now: Timestamp,
        newest_first: bool,
        held_back: &[u64],
    ) -> Option<EntryId> {
        let (_, owner) = self.turns.iter().find(|(_, owner)| !held_back.contains(owner))?;
        self.flows.get_mut(owner)?.first(now, newest_first)
    }

    /// The request to evict, of those that `may_leave`: the last one of the owner that has been
    /// served most.
    pub(super) fn last(&self, may_leave: impl Fn(&EntryId) -> bool) -> Option<EntryId> {
        let flows = self.turns.iter().rev().filter_map(|(_, owner)| self.flows.get(owner));
        let mut ids = flows.flat_map(|flow| flow.by_deadline.keys().rev().map(|rank| rank.1));
        ids.find(may_leave)
    }

    /// The request to evict for one of `owner`: the last one of the owner with the most requests by
    /// weight, if those are more than `owner` would then have.
    pub(super) fn last_of_most(&self, owner: u64, weight: u32) -> Option<EntryId> {
        let own = self.flows.get(&owner).map_or(0, |flow| flow.by_deadline.len());
        let own = u64::try_from(own).unwrap_or(u64::MAX).saturating_add(1);
        // From the largest tag down: beyond the bound, the owners that were served least keep their
        // places.
        let owners = self.turns.iter().rev().take(MAX_COMPARED);
        let flows = owners.filter_map(|(_, owner)| self.flows.get(owner));
        let most = flows.max_by_key(|flow| flow.crowd())?;
        let (rank, _) = most.by_deadline.last_key_value()?;
        (most.crowd() > crowd(own, weight)).then_some(rank.1)
    }

    /// Charges an owner for a request that is served.
    pub(super) fn charge(&mut self, charge: &Charge) {
        let Some(flow) = self.flows.get(&charge.owner) else { return };
        // The tag before it advances: in start-time fair queueing the start tag is the virtual
        // time.
        self.virtual_time = self.virtual_time.max(flow.tag);
        // At least 1, so that the owner of requests without a cost loses the turn, too.
        self.move_tag(charge, 0, charge.cost.tokens().max(1));
    }

    /// Replaces the expected cost of a request that has ended by its actual `cost`.
    pub(super) fn settle(&mut self, charge: &Charge, cost: Cost) {
        self.move_tag(charge, charge.cost.tokens(), cost.tokens());
    }

    /// Replaces a charge of `taken` tokens by one of `added` tokens.
    fn move_tag(&mut self, charge: &Charge, taken: u64, added: u64) {
        let Some(flow) = self.flows.get_mut(&charge.owner) else { return };
        // The set is ordered by tag, so the owner leaves it before its tag changes.
        let is_waiting = self.turns.remove(&(flow.tag, charge.owner));
        let share =
            |tokens: u64| tokens.saturating_mul(TAG_PER_TOKEN) / u64::from(charge.weight.max(1));
        // Added first: an owner that was forgotten meanwhile may have a tag below the charge.
        flow.tag = flow.tag.saturating_add(share(added)).saturating_sub(share(taken));
        if is_waiting {
            self.turns.insert((flow.tag, charge.owner));
        }
    }

    /// The number of remembered owners without waiting requests.
    pub(super) fn idle_owners(&self) -> usize {
        self.flows.len() - self.turns.len()
    }

    /// Forgets owners without waiting requests; with `keeps_leads` not those that were served more
    /// than others.
    pub(super) fn forget_idle(&mut self, keeps_leads: bool) {
        let virtual_time = self.virtual_time;
        // Without a lead an owner returns at the virtual time anyway: forgetting it changes no
        // turn.
        let has_lead = |flow: &OwnerFlow| keeps_leads && flow.tag > virtual_time;
        self.flows.retain(|_, flow| !flow.by_deadline.is_empty() || has_lead(flow));
    }
}
