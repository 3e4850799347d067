//! Mock engines: real sockets, invented responses. They serve `penstock demo` and the tests that
//! need an engine to fail in an exact way. The module is above `api`; no lower module imports it.

mod connection;
mod deliver;
mod engine;
mod examples;
mod fault;
mod gate;
mod info;
mod library;
mod memory;
mod plan;
mod received;
mod records;
mod responses;
mod script;
mod spec;
mod wire;
mod wire_head;

pub use engine::MockEngine;
pub use examples::{EXAMPLES, Example};
pub use fault::{Cut, Fault};
pub use gate::Gate;
pub use received::{Cancelled, Malformed, Received, TrafficCounters};
pub use spec::{EngineModel, Flavour, MockSpec, Pace, fleet, replicated_fleet, traffic_fleet};

#[cfg(test)]
mod tests;
