//! The reports of penstock about itself and its traffic: metrics, access log, decision log, traces,
//! the token ledger and live usage. Each is an observer of requests; bounded queues keep slow sinks
//! away from the hot path.

pub mod access_log;
pub mod debug_log;
pub mod decision_log;
pub mod ledger;
pub mod metrics;
mod names;
pub mod otlp;
pub mod queue;
pub mod recent;
mod series;
pub mod usage;
