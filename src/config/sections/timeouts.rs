//! `timeouts:` how long an attempt may take. Global, per model and per backend.

use std::time::Duration;

use crate::config::syntax::collections::{Maybe, Never, Or};
use crate::config::syntax::setting::section;
use crate::config::syntax::values::Positive;

section! {
    /// How long an attempt may take.
    pub struct TimeoutsConfig {
        /// Until the backend accepts the connection.
        pub connect: Duration ["connect" as Positive] = Duration::from_secs(2),
        /// Until a stream's first token.
        pub first_token: Duration ["first_token" as Positive] = Duration::from_secs(120),
        /// Between a stream's tokens.
        pub between_tokens: Duration ["between_tokens" as Positive] = Duration::from_secs(60),
        /// Until the whole response, when it is not a stream.
        pub response: Duration ["response" as Positive] = Duration::from_secs(600),
        /// Until the end of everything, repeats and streams included; or none.
        pub total: Option<Duration> ["total" as Or<Never, Positive>] = None,
    }
}

section! {
    /// Timeouts that differ from the global ones; those of a backend win over those of a model.
    pub struct TimeoutOverrides {
        /// Until the backend accepts the connection.
        pub connect: Option<Duration> ["connect" as Maybe<Positive>] = None,
        /// Until a stream's first token.
        pub first_token: Option<Duration> ["first_token" as Maybe<Positive>] = None,
        /// Between a stream's tokens.
        pub between_tokens: Option<Duration> ["between_tokens" as Maybe<Positive>] = None,
        /// Until the whole response, when it is not a stream.
        pub response: Option<Duration> ["response" as Maybe<Positive>] = None,
        /// Until the end of everything, repeats and streams included; or none.
        pub total: Option<Option<Duration>> ["total" as Maybe<Or<Never, Positive>>] = None,
    }
}

impl TimeoutsConfig {
    /// These timeouts, where `overrides` does not say otherwise.
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
