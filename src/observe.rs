//! What penstock reports about itself and its traffic: metrics, access log, decision log and traces.
//! Each is an observer of requests; bounded queues keep slow sinks away from the hot path.

pub mod access_log;
pub mod decision_log;
pub mod metrics;
pub mod otlp;
pub mod queue;
