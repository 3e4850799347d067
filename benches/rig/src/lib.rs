//! Shared by both ends of the rig: arguments, the monotonic clock, connections, and HTTP/1.1 on
//! them. The mock engine is `bin/mockllm`, the clients are `bin/loadgen`, `bin/floor.rs` is the
//! least a Pingora proxy can be, `bin/certificate.rs` makes what all proxies show.

pub mod args;
pub mod clock;
pub mod link;
pub mod wire;
