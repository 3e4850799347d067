//! Requests that wait for a backend with room: what their order is and which of them decides next. Pure: time is
//! an argument, and a request that waits is woken through the waker that it left.
//!
//! A model has one [`ModelQueue`]. In it, the requests that the same backends can take are a `line`. In a line the
//! more important priorities come first (`class`); inside a priority keys take turns by the tokens they have been
//! served, by their weights; and the requests of a key come earliest deadline first.
//!
//! One request of a model at a time has the **turn**: it decides by the ordinary router. Where it finds a backend
//! it leaves the queue and the next one has the turn; where it does not, it keeps its place, and the first request
//! of another line tries. Once every line has tried, all wait for the next signal: a permit given back, a
//! backend that recovers, another configuration. So one free permit wakes one request, and none is overtaken by
//! one behind it in its line, unless the room is kept for owners below their share: then the first of those
//! takes it.

mod class;
mod dispatch_rate;
mod line;
mod model_queue;
#[cfg(test)]
mod tests;

pub use model_queue::{ModelQueue, QueueRules, Turn};

use std::time::Duration;

use crate::fleet::BackendSet;
use penstock_api::units::Timestamp;

/// The number of a request that waits; a later one has a larger number.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct EntryId(u64);

/// A request that is to wait.
#[derive(Debug, Clone, Copy)]
pub struct Newcomer {
    /// The backends that could take it if they had room.
    pub backends: BackendSet,
    /// More important ones come first.
    pub priority: i32,
    /// Whose request it is: a hash of its key, or of its client.
    pub owner: u64,
    /// The owner's share; at least 1.
    pub weight: u32,
    /// When its first token is due by its objective.
    pub due: Option<Timestamp>,
    /// Until when it waits.
    pub until: Timestamp,
}

/// The result of a turn in which a request found no room.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Passed {
    /// The backends that can take it once they have room.
    pub backends: BackendSet,
    /// Whether one of them has room that is kept for owners below their share.
    pub is_held_back: bool,
}

/// A request that has joined.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Joined {
    /// Its number.
    pub id: EntryId,
    /// The one whose place it took: that one is to leave.
    pub displaced: Option<EntryId>,
}

/// What a request costs its owner.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Cost {
    /// Tokens of its prompt that are not cached.
    pub prompt: u32,
    /// Tokens of its output: expected ones first, later those that came.
    pub output: u32,
}

impl Cost {
    /// In tokens of a prompt. One of an output counts as two, as the virtual token counter has it.
    fn tokens(self) -> u64 {
        u64::from(self.prompt) + 2 * u64::from(self.output)
    }
}

/// What an owner was charged for a request that was served, to be [settled](ModelQueue::settle) when that has ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Charge {
    /// What it was expected to cost.
    pub cost: Cost,
    owner: u64,
    weight: u32,
    priority: i32,
    line: usize,
}

/// Why a request no longer waits.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum QueueEnd {
    /// It went to a backend.
    Served,
    /// The time that requests may wait passed.
    TimedOut,
    /// Its objective can no longer be met, and it may be refused.
    Late,
    /// Another one took its place in a full queue: a more important one, or one of an owner with fewer there.
    Displaced,
    /// It found the queue full.
    Full,
    /// Its client left.
    ClientLeft,
    /// What it waited for cannot come any more: its model is gone, for example.
    Refused,
}

impl QueueEnd {
    /// All of them, in the order of their counters.
    pub const ALL: [Self; 7] = [
        Self::Served,
        Self::TimedOut,
        Self::Late,
        Self::Displaced,
        Self::Full,
        Self::ClientLeft,
        Self::Refused,
    ];

    /// The name in metrics.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Served => "served",
            Self::TimedOut => "timed_out",
            Self::Late => "late",
            Self::Displaced => "displaced",
            Self::Full => "full",
            Self::ClientLeft => "client_left",
            Self::Refused => "refused",
        }
    }
}

/// A queue has no place for a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct QueueFull {
    /// When it may have one; `None` before anything was served.
    pub wait: Option<Duration>,
}
