//! What is planned, in the order in which it happens.

use std::cmp::Reverse;
use std::collections::BinaryHeap;

/// What may be planned.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Event {
    /// A fault starts, by its index.
    Fault(u32),
    /// It ends.
    FaultEnd(u32),
    /// A request that followed others arrives.
    Arrive(u32),
    /// A request reaches the engine.
    Send(Sent),
    /// A backend is checked.
    Check { balancer: u32, backend: u32 },
    /// The same beside the schedule, because an attempt failed.
    CheckOnce { balancer: u32, backend: u32 },
    /// A balancer reads which models a backend has in memory.
    Probe { balancer: u32, backend: u32 },
    /// The same beside the schedule, because a response showed that what it knew is outdated.
    ProbeOnce { balancer: u32, backend: u32 },
    /// Balancers keep their predictors current.
    Refresh,
    /// A balancer reports what it has in flight, and reads what the others reported.
    Share { balancer: u32 },
    /// A client has waited as long as it does.
    Leave(u32),
    /// A request has waited in a queue for as long as it may.
    QueueEnd(u32),
}

/// A request that has not reached its engine. Those on their way are in the order in which they arrive.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Sent {
    /// When it does.
    pub(super) due: u64,
    /// Those of the same time arrive in the order in which they were sent.
    pub(super) number: u64,
    pub(super) id: u32,
    pub(super) attempt: u16,
    /// The backend, as an index.
    pub(super) backend: usize,
}

/// The class of arrivals among events of the same time.
pub(super) const ARRIVAL: u8 = 1;
/// The class of what engines do.
pub(super) const ENGINE: u8 = 3;

impl Event {
    fn class(self) -> u8 {
        match self {
            Self::Fault(_) | Self::FaultEnd(_) => 0,
            Self::Arrive(_) => ARRIVAL,
            Self::Check { .. }
            | Self::CheckOnce { .. }
            | Self::Probe { .. }
            | Self::ProbeOnce { .. }
            | Self::Refresh
            | Self::Share { .. } => 2,
            Self::Send(_) => ENGINE,
            Self::Leave(_) | Self::QueueEnd(_) => 4,
        }
    }
}

/// Events by time, class, and the order they were planned in.
#[derive(Debug, Default)]
pub(super) struct EventQueue {
    events: BinaryHeap<Reverse<(u64, u8, u64, Event)>>,
    planned: u64,
}

impl EventQueue {
    pub(super) fn push(&mut self, at: u64, event: Event) {
        self.planned += 1;
        self.events.push(Reverse((at, event.class(), self.planned, event)));
    }

    /// The number of events that were planned so far.
    pub(super) fn planned(&self) -> u64 {
        self.planned
    }

    /// The time and the class of what is next.
    pub(super) fn next_at(&self) -> Option<(u64, u8)> {
        self.events.peek().map(|Reverse((at, class, ..))| (*at, *class))
    }

    pub(super) fn pop(&mut self) -> Option<Event> {
        self.events.pop().map(|Reverse((.., event))| event)
    }
}
