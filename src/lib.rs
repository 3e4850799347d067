//! penstock: a load balancer for LLM servers.

pub mod api;
pub mod clock;
pub mod units;
