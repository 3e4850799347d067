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
        /// Time between two name resolutions of a backend; 2s at most while it is not healthy or its name
        /// does not resolve.
        pub dns_interval: Duration ["dns_interval" as Positive] = Duration::from_secs(10),
        /// Timeout of a query.
        pub timeout: Duration ["timeout" as Positive] = Duration::from_secs(5),
        /// How long an unknown model is a 503 while a backend has never reported its models; then it is a
        /// 404 that names those backends.
        pub give_up: Duration = Duration::from_secs(30),
    }
}
