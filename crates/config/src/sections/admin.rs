//! `admin:` the port for operators.

use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::time::Duration;

use crate::syntax::collections::{Off, Or};
use crate::syntax::secret::{Secret, SecretFile};
use crate::syntax::setting::section;
use crate::syntax::values::{AtLeastOne, Positive};

section! {
    /// The admin port: metrics, health, fleet, explain.
    pub struct AdminConfig {
        /// The address to listen on, or off. A token is required unless the address is loopback.
        pub listen: Option<SocketAddr> ["listen" as Or<Off, SocketAddr>] =
            Some(SocketAddr::new(IpAddr::V4(Ipv4Addr::LOCALHOST), 9090)),
        /// The maximum number of connections at one time.
        pub connections: usize ["connections" as AtLeastOne<usize>] = 256,
        /// Time to receive a request head, from the connection or the previous response on, and to
        /// drain a body that no endpoint expects.
        pub header_timeout: Duration ["header_timeout" as Positive] = Duration::from_secs(10),
        /// A file with the token that callers send as `Authorization: Bearer`.
        pub token: Option<Secret> ["token_file" as SecretFile] = None,
    }
}
