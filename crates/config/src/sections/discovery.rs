//! `discovery:` service discovery of models and of addresses.

use std::net::SocketAddr;
use std::time::Duration;

use crate::syntax::collections::List;
use crate::syntax::setting::section;
use crate::syntax::values::{AtLeastOne, NameServer, Positive};

section! {
    /// Service discovery: query backends for the models they serve.
    pub struct DiscoveryConfig {
        /// Whether to query backends whose `models` are not listed.
        pub enabled: bool = true,
        /// Time between two queries of the list of models.
        pub interval: Duration ["interval" as Positive] = Duration::from_secs(30),
        /// Time between two queries of what is in memory, of engines that load models on demand.
        pub loaded_interval: Duration ["loaded_interval" as Positive] = Duration::from_secs(30),
        /// Time until a query that failed is repeated, if that is sooner.
        pub error_interval: Duration ["error_interval" as Positive] = Duration::from_secs(10),
        /// Time between two name resolutions of a backend; 2s at most while it is not healthy or
        /// its name does not resolve.
        pub dns_interval: Duration ["dns_interval" as Positive] = Duration::from_secs(10),
        /// DNS servers that resolve the names of backends, such as 10.0.0.10 or 127.0.0.1:8600.
        /// Default: the system's resolver.
        pub dns_servers: Vec<SocketAddr> ["dns_servers" as List<NameServer>] = Vec::new(),
        /// The maximum number of backends that one name becomes with `resolve: each` or `srv`.
        pub max_addresses: u32 ["max_addresses" as AtLeastOne<u32>] = 128,
        /// Timeout of a query.
        pub timeout: Duration ["timeout" as Positive] = Duration::from_secs(5),
        /// The time in which an unknown model is a 503 while a backend has never reported its
        /// models; then it is a 404 that names those backends.
        pub give_up: Duration = Duration::from_secs(30),
    }
}
