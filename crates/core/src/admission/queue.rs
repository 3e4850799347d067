//! Requests that wait for a backend with room: their order, and which of them decides next. Pure:
//! time is an argument, and a waiting request is woken through the waker that it left.
//!
//! A model has one [`ModelQueue`]. In it, the requests that the same backends can take form a
//! `line`. Within a line higher priorities come first (`class`); within a priority keys take turns
//! by the tokens they have been served over their weights; the requests of a key are in order of
//! their deadlines, earliest first.
//!
//! One request of a model at a time has the **turn**: it decides by the ordinary router. If it
//! finds a backend, it leaves the queue and the next request has the turn; if not, it keeps its
//! place, and the first request of another line tries. Once every line has tried, all wait for the
//! next signal: a permit given back, a backend that recovers, another configuration. So one free
//! permit wakes one request, and no request is overtaken by one behind it in its line. The
//! exception is room kept for owners below their share: the first of those takes it.

mod class;
mod line;
mod model_queue;
#[cfg(test)]
mod tests;

pub use model_queue::{ModelQueue, QueueRules, Turn};

use penstock_api::units::Timestamp;

use crate::fleet::BackendSet;

/// The number of a waiting request; later requests have larger numbers.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct EntryId(u64);

/// A request that is to wait.
#[derive(Debug, Clone, Copy)]
pub struct Newcomer {
    /// The backends that could take it if they had room.
    pub backends: BackendSet,
    /// Higher is more important.
    pub priority: i32,
    /// The owner of the request: a hash of its key, or of its client.
    pub owner: u64,
    /// The owner's share; at least 1.
    pub weight: u32,
    /// The time by which its objective requires the first token.
    pub due: Option<Timestamp>,
    /// The end of its wait.
    pub until: Timestamp,
}

/// The result of a turn in which a request found no room.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct PassedTurn {
    /// The backends that can take it once they have room.
    pub backends: BackendSet,
    /// True if one of them has room that is kept for owners below their share.
    pub is_held_back: bool,
}

/// A request that has joined.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Joined {
    pub id: EntryId,
    /// The request evicted for it, which must leave.
    pub displaced: Option<EntryId>,
}

/// The cost of a request, charged to its owner.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Cost {
    /// Tokens of its prompt that are not cached.
    pub prompt: u32,
    /// Tokens of its output: first the expected number, later the actual one.
    pub output: u32,
}

impl Cost {
    /// Returns the cost in prompt tokens. An output token counts as two, as in the virtual token
    /// counter.
    fn tokens(self) -> u64 {
        u64::from(self.prompt) + 2 * u64::from(self.output)
    }
}

/// The charge for a request that was served, to be [settled](ModelQueue::settle) when the request
/// has ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Charge {
    pub cost: Cost,
    owner: u64,
    weight: u32,
    priority: i32,
    line: usize,
}

penstock_api::named! {
    /// The reason why a request no longer waits.
    pub enum QueueEnd {
        /// It went to a backend.
        Served = "served",
        /// The maximum wait has passed.
        TimedOut = "timed_out",
        /// Its objective can no longer be met, and it is sheddable.
        Late = "late",
        /// It was evicted from a full queue by a request of higher priority, or of an owner with
        /// fewer requests there.
        Displaced = "displaced",
        /// It found the queue full.
        Full = "full",
        ClientLeft = "client_left",
        /// It can no longer be served: its model is gone, for example.
        Refused = "refused",
    }
}

/// The queue has no place for a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct QueueFull;
