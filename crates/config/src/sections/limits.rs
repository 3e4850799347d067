//! `limits:` bounds on what clients may send and on the memory of this process.

use std::time::Duration;

use penstock_api::units::ByteSize;

use super::auth::RateLimits;
use crate::syntax::collections::{Or, Word};
use crate::syntax::document::Node;
use crate::syntax::dump::Dump;
use crate::syntax::reader::Reader;
use crate::syntax::setting::{Setting, section};
use crate::syntax::shape::Shape;
use crate::syntax::values::{AtLeastOne, NonZeroSize, PerSecond, Positive};

section! {
    /// Limits on what clients may send and on the memory of this process.
    pub struct LimitsConfig {
        /// The largest request body.
        pub max_body_size: ByteSize ["max_body_size" as BodyLimit] = ByteSize::mib(32),
        /// The ratio to its size that an encoded body (`Content-Encoding`) may expand to, beyond
        /// the first 1MiB.
        pub max_body_ratio: u32 ["max_body_ratio" as AtLeastOne<u32>] = 100,
        /// Memory for the prefix indexes of all models (strategy weighted).
        pub prefix_memory: ByteSize = ByteSize::mib(256),
        /// Stored responses (`/v1/responses/{id}`) whose backend is remembered; 0 is none.
        pub response_ids: usize = 65_536,
        /// Sessions whose last backend is remembered (strategies weighted and slo); 0 is none.
        pub session_homes: usize = 65_536,
        /// Memory for all request bodies held at one time.
        pub buffered_bodies: ByteSize = ByteSize::mib(1024),
        /// Memory for all responses held at one time: converted whole, drafts of ensembles,
        /// refusals.
        pub buffered_responses: ByteSize = ByteSize::mib(1024),
        /// The largest response that is converted whole, from one API to another.
        pub converted_response: ByteSize = ByteSize::mib(64),
        /// Time to receive a request head or to finish a TLS handshake.
        pub header_timeout: Duration ["header_timeout" as Positive] = Duration::from_secs(30),
        /// Time to receive a request body.
        pub body_read_timeout: Duration ["body_read_timeout" as Positive] = Duration::from_secs(60),
        /// The slowest upload of a request body; 0B/s is off.
        pub min_body_rate: ByteSize ["min_body_rate" as PerSecond] = ByteSize::kib(1),
        /// Time a client may go without reading a byte of its response.
        pub client_write_timeout: Duration ["client_write_timeout" as Positive] = Duration::from_secs(60),
        /// The socket send buffer of a client connection; `system` leaves it to the kernel.
        pub client_send_buffer: Option<ByteSize> ["client_send_buffer" as Or<System, ByteSize>] =
            Some(ByteSize::kib(256)),
        /// The largest request head.
        pub max_head_size: ByteSize ["max_head_size" as NonZeroSize] = ByteSize::kib(64),
        /// The maximum number of headers in a request.
        pub max_headers: usize ["max_headers" as AtLeastOne<usize>] = 100,
        /// The maximum number of client connections at one time.
        pub connections: usize ["connections" as AtLeastOne<usize>] = 65536,
        /// Limits per HTTP/2 client connection.
        pub http2: Http2Limits = Http2Limits::default(),
        /// The maximum number of idle connections kept open to each backend.
        pub idle_connections: usize = 1024,
        /// Time an idle backend connection is reused; many engines close theirs after 5s.
        pub idle_timeout: Duration = Duration::from_secs(4),
        /// The maximum number of models with separate metrics; the others share one label.
        pub metric_models: usize = 100,
        /// The limits of each client address, also with a key; of IPv6 each /64 network.
        pub per_client: RateLimits = RateLimits::default(),
        /// The client addresses that are remembered for `per_client`; the least recently used is
        /// evicted.
        pub client_addresses: usize ["client_addresses" as AtLeastOne<usize>] = 65_536,
    }
}

/// Leaves the value to the operating system.
struct System;

impl Word for System {
    const WORD: &'static str = "system";
}

section! {
    /// Limits per HTTP/2 client connection.
    pub struct Http2Limits {
        /// The maximum number of concurrent streams.
        pub streams: u32 ["streams" as AtLeastOne<u32>] = 128,
        /// Stream resets within 10s after which the connection closes.
        pub resets: u32 ["resets" as AtLeastOne<u32>] = 100,
        /// The flow control window of a stream.
        pub window: ByteSize ["window" as Http2Size] = ByteSize::kib(256),
        /// The flow control window of the connection.
        pub connection_window: ByteSize ["connection_window" as Http2Size] = ByteSize::mib(1),
    }
}

/// A flow control window; one below 16KiB does not hold a single frame.
struct Http2Size;

impl Setting for Http2Size {
    type Value = ByteSize;

    fn read(node: &Node, reader: &mut Reader) -> Option<ByteSize> {
        let size = ByteSize::read(node, reader)?;
        if size < ByteSize::kib(16) || size > ByteSize::mib(1024) {
            return reader.refuse_value(node, &size.to_string(), "16KiB to 1GiB");
        }
        Some(size)
    }

    fn dump(value: &ByteSize) -> Dump {
        ByteSize::dump(value)
    }

    fn shape() -> Shape {
        ByteSize::shape()
    }
}

/// The largest body; offsets into a body have 32 bits.
struct BodyLimit;

impl Setting for BodyLimit {
    type Value = ByteSize;

    fn read(node: &Node, reader: &mut Reader) -> Option<ByteSize> {
        let size = NonZeroSize::read(node, reader)?;
        if size > ByteSize::mib(4095) {
            return reader.refuse_value(node, &size.to_string(), "at most 4095MiB");
        }
        Some(size)
    }

    fn dump(value: &ByteSize) -> Dump {
        ByteSize::dump(value)
    }

    fn shape() -> Shape {
        ByteSize::shape()
    }
}
