//! penstock: a load balancer for LLM servers on Pingora.
//!
//! Imports go downwards through the layers that `tests/architecture.rs` lists and
//! `docs/architecture.md` draws. Reading guide: [`scan`] extracts the properties of a request,
//! [`routing`] decides which backend serves it, [`proxy`] carries it there and back through
//! [`downstream`] and [`upstream`].

pub mod admin;
pub mod admission;
pub mod api;
pub mod cli;
pub mod clock;
pub mod config;
pub mod dialect;
pub mod discovery;
pub mod downstream;
pub mod fleet;
mod http_client;
pub mod lifecycle;
pub mod mix;
pub mod mock;
pub mod observe;
pub mod predict;
pub mod prefix;
pub mod proxy;
pub mod routing;
pub mod scan;
pub mod scoring;
pub mod server;
pub mod shared_state;
pub mod sim;
pub mod slices;
pub mod tls;
pub mod units;
pub mod upstream;
pub mod wire;
