//! Admission: which requests may go on, as data structures that are given the time. The proxy queries
//! them before it routes a request.

pub mod queue;
pub mod rate_limits;
pub mod returns;
