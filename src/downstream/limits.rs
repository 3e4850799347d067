//! The limits of one client connection, read from the configuration in force when it is accepted.

use std::time::Duration;

use penstock_api::units::ByteSize;
use penstock_config::Config;

/// Bounds on one request head over HTTP/1.1.
#[derive(Debug, Clone, Copy)]
pub(crate) struct HeadLimits {
    pub(crate) max_size: usize,
    pub(crate) max_fields: usize,
    /// The longest time from its first byte to its last.
    pub(crate) timeout: Duration,
}

/// Bounds on one client connection.
#[derive(Debug, Clone, Copy)]
pub(crate) struct ConnectionLimits {
    pub(crate) head: HeadLimits,
    /// The longest time for which a connection waits for a request.
    pub(crate) idle_timeout: Duration,
    /// The most connections at one time.
    pub(crate) max_connections: usize,
    /// The size of the socket's send buffer; `None` leaves it to the system.
    pub(crate) send_buffer: Option<usize>,
}

impl ConnectionLimits {
    /// The limits of a configuration.
    pub(crate) fn of(config: &Config) -> Self {
        let limits = &config.limits;
        Self {
            head: HeadLimits {
                max_size: limits.max_head_size.to_usize(),
                max_fields: limits.max_headers,
                timeout: limits.header_timeout,
            },
            idle_timeout: config.server.keep_alive,
            max_connections: limits.connections,
            send_buffer: limits.client_send_buffer.map(ByteSize::to_usize),
        }
    }
}
