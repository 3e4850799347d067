//! penstock: a load balancer for LLM servers on Pingora.
//!
//! Layers, each importing only from those before it:
//! `units`, `clock` < `api` < `config` < `registry` < `scan` < `routing`, `probe` < `generation` <
//! `proxy` < `metrics`, `decisions` < `admin`, `demo` < `server` < `cli`.
//!
//! Reading guide: [`scan`] finds out what a request needs, [`routing`] decides who takes it,
//! [`proxy`] gets it there and back. `proxy/mod.rs` tells the life of a request.

pub mod api;
pub mod clock;
pub mod config;
pub mod demo;
pub mod generation;
pub mod probe;
pub mod proxy;
pub mod registry;
pub mod routing;
pub mod scan;
pub mod units;
