//! What the rig's two ends share: arguments, the clock both can read, and plain HTTP/1.1.
//! The stand-in engine is `bin/mockllm`, the clients are `bin/loadgen`, `bin/floor.rs` is the least
//! a Pingora proxy can be.

pub mod args;
pub mod clock;
pub mod wire;
