//! `timeouts:` of attempts and requests. Global, per model and per backend.

use std::time::Duration;

use crate::syntax::collections::{Maybe, Never, Or};
use crate::syntax::setting::section;
use crate::syntax::values::Positive;

section! {
    /// Timeouts of one attempt, and of the request.
    pub struct TimeoutsConfig {
        /// Until the connection to the backend is established.
        pub connect: Duration ["connect" as Positive] = Duration::from_secs(2),
        /// Until the first token of a stream.
        pub first_token: Duration ["first_token" as Positive] = Duration::from_secs(120),
        /// Between two tokens of a stream.
        pub between_tokens: Duration ["between_tokens" as Positive] = Duration::from_secs(60),
        /// Until the end of a response that is not a stream.
        pub response: Duration ["response" as Positive] = Duration::from_secs(600),
        /// For the whole request, with all retries and streaming; or none.
        pub total: Option<Duration> ["total" as Or<Never, Positive>] = None,
    }
}

section! {
    /// Overrides of the global timeouts. A backend's override a model's.
    pub struct TimeoutOverrides {
        /// Until the connection to the backend is established.
        pub connect: Option<Duration> ["connect" as Maybe<Positive>] = None,
        /// Until the first token of a stream.
        pub first_token: Option<Duration> ["first_token" as Maybe<Positive>] = None,
        /// Between two tokens of a stream.
        pub between_tokens: Option<Duration> ["between_tokens" as Maybe<Positive>] = None,
        /// Until the end of a response that is not a stream.
        pub response: Option<Duration> ["response" as Maybe<Positive>] = None,
        /// For the whole request, with all retries and streaming; or none.
        pub total: Option<Option<Duration>> ["total" as Maybe<Or<Never, Positive>>] = None,
    }
}

impl TimeoutsConfig {
    /// These timeouts with `overrides` applied.
    #[must_use]
    pub fn with(&self, overrides: &TimeoutOverrides) -> Self {
        Self {
            connect: overrides.connect.unwrap_or(self.connect),
            first_token: overrides.first_token.unwrap_or(self.first_token),
            between_tokens: overrides.between_tokens.unwrap_or(self.between_tokens),
            response: overrides.response.unwrap_or(self.response),
            total: overrides.total.unwrap_or(self.total),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn overrides_replace_only_what_they_name() {
        let global = TimeoutsConfig { total: Some(Duration::from_secs(9)), ..Default::default() };
        let overrides = TimeoutOverrides {
            first_token: Some(Duration::from_secs(300)),
            total: Some(None),
            ..Default::default()
        };
        let merged = global.with(&overrides);
        assert_eq!(merged.first_token, Duration::from_secs(300));
        assert_eq!(merged.total, None, "none takes the global limit away");
        assert_eq!(merged.connect, global.connect);
    }
}
