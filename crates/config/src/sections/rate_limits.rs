//! `auth.limits`, `auth.keys[].limits` and `limits.per_client`: the limits of one client.

use crate::syntax::collections::{Never, Or};
use crate::syntax::setting::section;
use crate::syntax::values::AtLeastOne;

section! {
    /// The limits of one client; `none` is no limit.
    pub struct RateLimits {
        /// Requests per minute: a token bucket that holds as many and is refilled evenly.
        pub requests_per_minute: Option<u32> ["requests_per_minute" as Or<Never, AtLeastOne<u32>>] = None,
        /// Tokens per minute, of prompts and responses: such a bucket, too.
        pub tokens_per_minute: Option<u32> ["tokens_per_minute" as Or<Never, AtLeastOne<u32>>] = None,
        /// Tokens per day (UTC), of prompts and responses.
        pub tokens_per_day: Option<usize> ["tokens_per_day" as Or<Never, AtLeastOne<usize>>] = None,
        /// Requests in flight at one time.
        pub in_flight: Option<u32> ["in_flight" as Or<Never, AtLeastOne<u32>>] = None,
    }
}

impl RateLimits {
    /// Returns whether nothing is limited.
    pub fn is_unlimited(&self) -> bool {
        self.requests_per_minute.is_none() && self.in_flight.is_none() && !self.counts_tokens()
    }

    /// Returns whether tokens are limited.
    pub fn counts_tokens(&self) -> bool {
        self.tokens_per_minute.is_some() || self.tokens_per_day.is_some()
    }
}
