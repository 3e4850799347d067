//! penstock: a load balancer for LLM servers on Pingora.
//!
//! Layers, each importing only from those before it:
//! `units`, `hex`, `clock`, `outbox`, `systemd`, `scoring` < `api`, `tls` < `config` < `fleet` <
//! `dial`, `scan` < `routing`, `probe` < `shadow` < `generation` < `proxy` < `explain`, `fleet`, `metrics`, `decisions`,
//! `access_log`, `spans` < `life` < `admin`, `demo` < `server` < `cli`.
//!
//! Reading guide: [`scan`] finds out what a request needs, [`routing`] decides who takes it,
//! [`proxy`] gets it there and back. `proxy/mod.rs` tells the life of a request.

pub mod admin;
pub mod api;
pub mod cli;
pub mod clock;
pub mod config;
pub mod discovery;
pub mod downstream;
pub mod explain;
pub mod fleet;
pub mod lifecycle;
pub mod mock;
pub mod observe;
pub mod prefix;
pub mod proxy;
pub mod routing;
pub mod scan;
pub mod scoring;
pub mod shadow;
pub mod tls;
pub mod units;
pub mod upstream;
pub mod wire;
