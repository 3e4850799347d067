//! `limits:` what one client, or all of them together, may make this process hold.

use std::time::Duration;

use crate::config::syntax::collections::{Or, Word};
use crate::config::syntax::document::Node;
use crate::config::syntax::dump::Dump;
use crate::config::syntax::reader::Reader;
use crate::config::syntax::setting::{Setting, section};
use crate::config::syntax::shape::Shape;
use crate::config::syntax::values::{AtLeastOne, PerSecond, Positive};
use crate::units::ByteSize;

section! {
    /// Bounds on what clients may send and this process may hold.
    pub struct LimitsConfig {
        /// The largest request body.
        pub max_body_size: ByteSize ["max_body_size" as BodyLimit] = ByteSize::mib(32),
        /// The prefix indexes of all models, which the weighted strategy keeps.
        pub prefix_memory: ByteSize = ByteSize::mib(256),
        /// All request bodies held at one time.
        pub buffered_bodies: ByteSize = ByteSize::mib(1024),
        /// How long a request head, or a TLS handshake, may take to arrive.
        pub header_timeout: Duration ["header_timeout" as Positive] = Duration::from_secs(30),
        /// How long a request body may take to arrive.
        pub body_read_timeout: Duration ["body_read_timeout" as Positive] = Duration::from_secs(60),
        /// The slowest a request body may arrive; 0B/s turns the check off.
        pub min_body_rate: ByteSize ["min_body_rate" as PerSecond] = ByteSize::kib(1),
        /// The longest a client may take no byte of its answer.
        pub client_write_timeout: Duration ["client_write_timeout" as Positive] = Duration::from_secs(60),
        /// The most of an answer the system keeps for a client that reads slowly, or what it likes.
        pub client_send_buffer: Option<ByteSize> ["client_send_buffer" as Or<System, ByteSize>] =
            Some(ByteSize::kib(256)),
        /// The largest request head.
        pub max_head_size: ByteSize = ByteSize::kib(64),
        /// The most headers in a request.
        pub max_headers: usize ["max_headers" as AtLeastOne<usize>] = 100,
        /// The most client connections at one time.
        pub connections: usize ["connections" as AtLeastOne<usize>] = 65536,
        /// Bounds on connections that speak HTTP/2.
        pub http2: Http2Limits = Http2Limits::default(),
        /// The most idle connections kept to each backend.
        pub idle_connections: usize = 1024,
        /// How long an idle connection to a backend is reused; many engines close theirs after 5s.
        pub idle_timeout: Duration = Duration::from_secs(4),
        /// The most models with metrics of their own; further ones are counted together.
        pub metric_models: usize = 100,
    }
}

/// Leaves it to the operating system.
struct System;

impl Word for System {
    const WORD: &'static str = "system";
}

section! {
    /// Bounds on one connection that speaks HTTP/2.
    pub struct Http2Limits {
        /// The most requests at one time.
        pub streams: u32 ["streams" as AtLeastOne<u32>] = 128,
        /// The most requests a client may reset within 10s before its connection is closed.
        pub resets: u32 ["resets" as AtLeastOne<u32>] = 100,
        /// What a client may send of one request before it has been read.
        pub window: ByteSize ["window" as Http2Size] = ByteSize::kib(256),
        /// What a client may send of all its requests before they have been read.
        pub connection_window: ByteSize ["connection_window" as Http2Size] = ByteSize::mib(1),
    }
}

/// A size HTTP/2 can speak of; below 16KiB not even one frame would fit.
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

/// The largest body; offsets into one are 32 bits wide.
struct BodyLimit;

impl Setting for BodyLimit {
    type Value = ByteSize;

    fn read(node: &Node, reader: &mut Reader) -> Option<ByteSize> {
        let size = ByteSize::read(node, reader)?;
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
