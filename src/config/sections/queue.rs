//! `queue:` requests that wait for a backend with room.

use std::time::Duration;

use crate::config::syntax::collections::Maybe;
use crate::config::syntax::setting::{choice, section};
use crate::config::syntax::values::Positive;

section! {
    /// Requests that wait in penstock while every backend that could take them is at its limit of requests in
    /// flight or in cooldown.
    pub struct QueueConfig {
        /// The maximum number of requests that wait per model; 0: none waits.
        pub size: usize = 0,
        /// The longest that a request waits.
        pub timeout: Duration ["timeout" as Positive] = Duration::from_secs(10),
        /// The most prefill work before a request on a backend, as predicted (`routing.predict`): while prompts there
        /// take longer, or another stream would slow others below their objectives, requests wait here instead.
        pub max_backlog: Option<Duration> ["max_backlog" as Maybe<Positive>] = None,
        /// Which request of a client comes first among those without an objective.
        pub order: QueueOrder = QueueOrder::Fifo,
    }
}

choice! {
    /// Which request of a client comes first among those without an objective.
    pub enum QueueOrder {
        /// The oldest.
        Fifo = "fifo",
        /// The newest, once requests have waited for a second without a break: under a lasting overload most
        /// requests then wait for a short time and the others time out, where otherwise all wait for long.
        NewestUnderOverload = "newest_under_overload",
    }
}

choice!(@setting QueueOrder);
