//! `discovery:` service discovery of models.

use std::time::Duration;

use crate::config::syntax::setting::section;
use crate::config::syntax::values::Positive;

section! {
    /// Service discovery: query backends for the models they serve.
    pub struct DiscoveryConfig {
        /// Whether to query backends whose `models` are not listed.
        pub enabled: bool = true,
        /// Time between two queries.
        pub interval: Duration ["interval" as Positive] = Duration::from_secs(30),
        /// Timeout of a query.
        pub timeout: Duration ["timeout" as Positive] = Duration::from_secs(5),
    }
}
