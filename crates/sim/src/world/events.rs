//! Planned events, in the order in which they happen.

use std::cmp::Reverse;
use std::collections::BinaryHeap;

/// An event that can be planned.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum WorldEvent {
    /// A fault starts, by its index.
    Fault(u32),
    /// A fault ends, by its index.
    FaultEnd(u32),
    /// A request that follows others arrives.
    Arrive(u32),
    /// A request reaches the engine.
    Send(Sent),
    /// A scheduled health check of a backend.
    Check { balancer: u32, backend: u32 },
    /// An unscheduled check of a backend, because an attempt failed.
    CheckOnce { balancer: u32, backend: u32 },
    /// A balancer reads which models a backend has in memory.
    Probe { balancer: u32, backend: u32 },
    /// An unscheduled probe, because a response showed that the known models are outdated.
    ProbeOnce { balancer: u32, backend: u32 },
    /// Balancers update their predictors.
    Refresh,
    /// A balancer reports its requests in flight, and reads the reports of its peers.
    Share { balancer: u32 },
    /// The patience of a client ends.
    Leave(u32),
    /// The queue timeout of a request ends.
    QueueEnd(u32),
}

/// A request on its way to its engine. Such requests are ordered by arrival.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Sent {
    pub(super) due: u64,
    /// The sequence number: requests with the same arrival time arrive in the order in which they
    /// were sent.
    pub(super) number: u64,
    pub(super) id: u32,
    pub(super) attempt: u16,
    /// The index of the backend.
    pub(super) backend: usize,
}

/// The class of arrivals, which orders events of the same time.
pub(super) const ARRIVAL: u8 = 1;
/// The class of engine events.
pub(super) const ENGINE: u8 = 3;

impl WorldEvent {
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

/// The queue of events, ordered by time, class and planning order.
#[derive(Debug, Default)]
pub(super) struct EventQueue {
    events: BinaryHeap<Reverse<(u64, u8, u64, WorldEvent)>>,
    planned: u64,
}

impl EventQueue {
    pub(super) fn push(&mut self, at: u64, event: WorldEvent) {
        self.planned += 1;
        self.events.push(Reverse((at, event.class(), self.planned, event)));
    }

    /// Returns the number of events planned so far.
    pub(super) fn planned(&self) -> u64 {
        self.planned
    }

    /// Returns the time and class of the next event.
    pub(super) fn next_at(&self) -> Option<(u64, u8)> {
        self.events.peek().map(|Reverse((at, class, ..))| (*at, *class))
    }

    pub(super) fn pop(&mut self) -> Option<WorldEvent> {
        self.events.pop().map(|Reverse((.., event))| event)
    }
}
