//! `discovery:` asking backends which models they serve.

use std::time::Duration;

use crate::config::syntax::setting::section;
use crate::config::syntax::values::Positive;

section! {
    /// Asking backends which models they serve.
    pub struct DiscoveryConfig {
        /// Whether to ask those that do not list their models here.
        pub enabled: bool = true,
        /// Time between two questions.
        pub interval: Duration ["interval" as Positive] = Duration::from_secs(30),
        /// How long an answer may take.
        pub timeout: Duration ["timeout" as Positive] = Duration::from_secs(5),
    }
}
