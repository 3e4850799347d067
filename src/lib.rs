//! penstock: a load balancer for LLM servers on Pingora.
//!
//! Imports go downwards through the layers that `tests/architecture.rs` lists and
//! `docs/architecture.md` draws. Reading guide: [`penstock_scan`] extracts the properties of a
//! request, [`penstock_core::routing`] decides which backend serves it, [`proxy`] carries it there
//! and back through [`downstream`] and [`upstream`].

pub mod admin;
pub mod auth;
pub mod cli;
pub mod data_port;
mod direct;
pub mod discovery;
pub mod downstream;
mod ensemble;
mod http_client;
pub mod key_store;
pub mod lifecycle;
pub mod observe;
mod ollama;
pub mod proxy;
mod seeds;
pub mod server;
pub mod shared_state;
mod sqlite;
pub mod tokens;
pub mod upstream;
pub mod wire;
