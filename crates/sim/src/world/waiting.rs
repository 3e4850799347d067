//! Requests that wait at a balancer while every backend is full, in the proxy's queues. Whatever
//! would wake a request there is an event here, after which the requests whose turn it is decide.

use penstock_api::units::to_micros;
use penstock_core::admission::queue::{Cost, EntryId, Newcomer, PassedTurn, QueueEnd, QueueRules};
use penstock_core::fleet::BackendSet;
use penstock_core::routing::ServiceTime;

use super::attempts::Earlier;
use super::balancer::{Arrived, requester_of};
use super::events::WorldEvent;
use super::result::ShedReason;
use super::{World, timestamp};
use crate::workload::{Request, rounded};

/// The place of a request in a queue.
#[derive(Debug, Clone, Copy)]
pub(super) struct EntryPlace {
    balancer: u32,
    model: usize,
    entry: EntryId,
    until: u64,
    /// If set, the wait ends with the objective of the request, not with the queue timeout.
    is_late: bool,
}

/// The capacity that a request waits for.
struct AwaitedCapacity {
    room: PassedTurn,
    /// The time that its first token takes after that.
    service: ServiceTime,
}

impl World<'_> {
    /// Returns whether a request has to queue because others of its model wait.
    pub(super) fn has_others_waiting(&self, id: u32, balancer: u32) -> bool {
        let request = self.workload.requests.get(id as usize);
        let balancer = self.balancers.get(balancer as usize);
        self.waiting > 0
            && request.zip(balancer).is_some_and(|(request, balancer)| {
                let queue = balancer.queues.get(self.queue_of(id, request));
                queue.is_some_and(|queue| !queue.is_empty())
            })
    }

    /// Returns the queue of the model that a request gets, as an index.
    fn queue_of(&self, id: u32, request: &Request) -> usize {
        let instead = self.budgets.as_ref().and_then(|budgets| budgets.model_of(id));
        instead.map_or(usize::from(request.model), |budget| self.workload.models.len() + budget)
    }

    /// Adds a request to the queue of its model.
    pub(super) fn line_up(&mut self, id: u32, balancer: u32, at: u64) {
        let config = &self.spec.config.queue;
        if !self.has_others_waiting(id, balancer) {
            self.judge(id, at);
        }
        let Some(request) = self.workload.requests.get(id as usize) else { return };
        let Some(AwaitedCapacity { room: PassedTurn { backends, .. }, service }) =
            self.awaited(id, balancer, at)
        else {
            return self.shed(id, ShedReason::Unserved, at);
        };
        let model = self.queue_of(id, request);
        let Some(one) = self.balancers.get_mut(balancer as usize) else { return };
        let objectives = one.objectives_of(request);
        let until = at + to_micros(config.timeout);
        let due_less = |service| {
            Some(rounded(objectives.ttft_ms? * 1000.0).saturating_sub(to_micros(service)) + at)
        };
        // Cautious for the order; only the mean decides that a request is given up, as in the
        // proxy.
        let due = due_less(service.p90);
        let newcomer = Newcomer {
            backends,
            priority: objectives.priority,
            owner: requester_of(request).owner.id,
            weight: requester_of(request).owner.weight,
            due: due.map(timestamp),
            until: timestamp(until),
        };
        let Some(queue) = one.queues.get_mut(model) else { return };
        let joined = queue.join(&newcomer, QueueRules::new(config), timestamp(at));
        let Ok(joined) = joined else {
            return self.shed(id, ShedReason::QueueFull, at);
        };
        if let Some(displaced) = joined.displaced {
            // The queue only names it: its place is free once it leaves.
            queue.leave(displaced, QueueEnd::Displaced, timestamp(at));
            let other = self.entries.remove(&(balancer, model, displaced));
            self.waiting -= 1;
            if let Some(other) = other {
                self.forget_place(other);
                self.shed(other, ShedReason::QueueFull, at);
            }
        }
        let late = due_less(service.mean);
        let late = late.filter(|late| objectives.is_sheddable() && *late < until);
        let (until, is_late) = (late.unwrap_or(until), late.is_some());
        let place = EntryPlace { balancer, model, entry: joined.id, until, is_late };
        if let Some(own) = self.places.get_mut(id as usize) {
            *own = Some(place);
        }
        self.entries.insert((balancer, model, joined.id), id);
        self.waiting += 1;
        self.queue.push(until, WorldEvent::QueueEnd(id));
        self.take_turns(balancer, model, at);
    }

    /// Returns the time that a request has waited in a queue, in milliseconds; `None` if it does
    /// not wait.
    pub(super) fn queued_ms(&self, id: u32, at: u64) -> Option<f64> {
        self.places.get(id as usize)?.as_ref()?;
        let arrived = self.results.get(id as usize)?.arrived;
        Some(at.saturating_sub(arrived) as f64 * 1e-3)
    }

    fn forget_place(&mut self, id: u32) -> Option<EntryPlace> {
        self.places.get_mut(id as usize)?.take()
    }

    /// Returns the capacity that a request waits for.
    fn awaited(&self, id: u32, balancer: u32, at: u64) -> Option<AwaitedCapacity> {
        let request = self.workload.requests.get(id as usize)?;
        let (workload, tried) = (self.workload, &BackendSet::default());
        let (now, queued_ms) = (timestamp(at), self.queued_ms(id, at));
        let terms = self.terms_of(id);
        let arrived = Arrived { id, request, workload, tried, terms, attempt: 1, queued_ms, now };
        let balancer = self.balancers.get(balancer as usize)?;
        let room = balancer.awaited(&arrived)?;
        Some(AwaitedCapacity { room, service: balancer.service_time(&arrived) })
    }

    /// Signals all queues after an event that may have freed capacity.
    pub(super) fn signal_queues(&mut self, at: u64) {
        let balancers = u32::try_from(self.balancers.len()).unwrap_or(0);
        for balancer in 0..balancers {
            let one = self.balancers.get(balancer as usize);
            for model in 0..one.map_or(0, |one| one.queues.len()) {
                let one = self.balancers.get_mut(balancer as usize);
                let queue = one.and_then(|one| one.queues.get_mut(model));
                if let Some(queue) = queue.filter(|queue| !queue.is_empty()) {
                    queue.signal(timestamp(at));
                    self.take_turns(balancer, model, at);
                }
            }
        }
    }

    /// Lets the requests whose turn it is decide, until none is left.
    fn take_turns(&mut self, balancer: u32, model: usize, at: u64) {
        while let Some(entry) = self.turn(balancer, model) {
            let Some(id) = self.entries.get(&(balancer, model, entry)).copied() else {
                debug_assert!(false, "every entry belongs to a request");
                return;
            };
            // Before the attempt, which changes the state that the request waits for.
            let room = self.awaited(id, balancer, at).map(|one| one.room);
            let before = self.live.get(id as usize).is_some_and(Option::is_some);
            debug_assert!(!before, "a request that waits is not in flight");
            let error = self.try_attempt(id, balancer, Earlier::default(), at).err();
            let Some(one) = self.balancers.get_mut(balancer as usize) else { return };
            let live = self.live.get_mut(id as usize).and_then(Option::as_mut);
            let cost = live.as_ref().map_or_else(Cost::default, |live| {
                let serving = live.serving(&one.topology);
                let request = self.workload.requests.get(id as usize).copied().unwrap_or_default();
                // What the balancer believes, not the true length: it charges before it knows.
                let output = serving.map_or(0, |row| row.latency.expect(true, None).tokens.0);
                Cost { prompt: request.input_tokens.saturating_sub(live.believed()), output }
            });
            let Some(queue) = one.queues.get_mut(model) else { return };
            match error {
                Some(error) if error.may_pass() => {
                    queue.pass(entry, room.unwrap_or_default(), timestamp(at));
                    continue;
                }
                Some(error) => {
                    queue.leave(entry, QueueEnd::Refused, timestamp(at));
                    self.left(id);
                    self.shed(id, super::attempts::shed_reason(&error), at);
                }
                None => {
                    let charge = queue.serve(entry, cost, timestamp(at));
                    if let Some(live) = live {
                        live.charge = charge.map(|charge| (model, charge));
                    }
                    self.left(id);
                }
            }
        }
    }

    fn turn(&self, balancer: u32, model: usize) -> Option<EntryId> {
        self.balancers.get(balancer as usize)?.queues.get(model)?.turn()
    }

    /// Removes the records of a request that has left its queue.
    fn left(&mut self, id: u32) {
        if let Some(place) = self.forget_place(id) {
            self.entries.remove(&(place.balancer, place.model, place.entry));
            self.waiting -= 1;
        }
    }

    /// Removes a request from its queue. Returns whether it was in one.
    pub(super) fn leave_queue(&mut self, id: u32, end: QueueEnd, at: u64) -> bool {
        let Some(place) = self.places.get(id as usize).copied().flatten() else { return false };
        let one = self.balancers.get_mut(place.balancer as usize);
        if let Some(queue) = one.and_then(|one| one.queues.get_mut(place.model)) {
            queue.leave(place.entry, end, timestamp(at));
        }
        self.left(id);
        self.take_turns(place.balancer, place.model, at);
        true
    }

    /// Ends the wait of a request whose time is over.
    pub(super) fn end_wait(&mut self, id: u32, at: u64) {
        let Some(place) = self.places.get(id as usize).copied().flatten() else { return };
        // An event of an earlier wait of the same request.
        if place.until > at {
            return;
        }
        let (end, reason) = match place.is_late {
            true => (QueueEnd::Late, ShedReason::ObjectiveMissed),
            false => (QueueEnd::TimedOut, ShedReason::QueueTimeout),
        };
        self.leave_queue(id, end, at);
        self.shed(id, reason, at);
    }
}
