//! `queue:` requests that wait for a backend with room.

use std::time::Duration;

use penstock_api::choice;

use crate::syntax::collections::Maybe;
use crate::syntax::setting::{choice_setting, section};
use crate::syntax::values::{Positive, Share};

section! {
    /// Requests that wait in penstock while every backend that could take them is at its limit of
    /// requests in flight or in cooldown.
    pub struct QueueConfig {
        /// The maximum number of requests that wait per model; 0: none waits.
        pub size: usize = 0,
        /// The longest that a request waits.
        pub timeout: Duration ["timeout" as Positive] = Duration::from_secs(10),
        /// The time that a stream waits before its client gets the head of its response and
        /// something to ignore, and the interval at which it gets more to ignore; never where it is
        /// empty. The status is 200 then: failures are events of the stream.
        pub keep_alive: Option<Duration> ["keep_alive" as Maybe<Positive>] = None,
        /// Lets tenants take turns, as `x-gateway-inference-fairness-id` names them.
        pub fairness_id: FairnessId = FairnessId::Off,
        /// The most prefill work before a request on a backend, as predicted (`routing.predict`):
        /// while prompts take longer on every backend, or another stream would slow others below
        /// their objectives, requests wait here instead.
        pub max_backlog: Option<Duration> ["max_backlog" as Maybe<Positive>] = None,
        /// The part of the room on each backend that is kept for keys that hold less than their
        /// share of the requests in flight, as far as they sent some in the last minute: of its
        /// limits, of the engine's slots and of `max_backlog`; 0: none.
        pub reserve: f64 ["reserve" as Share] = 0.125,
        /// The order of a client's requests without an objective.
        pub order: QueueOrder = QueueOrder::Fifo,
    }
}

impl QueueConfig {
    /// Returns the keys that are set although no request waits. `max_backlog` is an error then.
    pub fn unused(&self) -> impl Iterator<Item = &'static str> {
        let usual = Self::default();
        let set = [
            ("timeout", self.timeout != usual.timeout),
            ("keep_alive", self.keep_alive != usual.keep_alive),
            ("fairness_id", self.fairness_id != usual.fairness_id),
            ("reserve", self.reserve != usual.reserve),
            ("order", self.order != usual.order),
        ];
        let has_queue = self.size > 0;
        set.into_iter().filter(move |(_, is_set)| *is_set && !has_queue).map(|(key, _)| key)
    }
}

choice! {
    /// The order of a client's requests without an objective.
    pub enum QueueOrder {
        /// The oldest.
        Fifo = "fifo",
        /// The newest, once requests have waited for a second without a break: under a lasting
        /// overload most requests then wait for a short time and the others time out, where
        /// otherwise all wait for long.
        NewestUnderOverload = "newest_under_overload",
    }
}

choice_setting!(QueueOrder);

choice! {
    /// The clients whose header `x-gateway-inference-fairness-id` counts.
    pub enum FairnessId {
        /// It does not: keys take turns, or else addresses.
        Off = "off",
        /// It names the tenant that a request belongs to: tenants take turns. For clients that are
        /// trusted, such as a gateway: a client that sets it can claim to be many.
        Header = "header",
    }
}

choice_setting!(FairnessId);
