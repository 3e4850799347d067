//! Backends: connections and their pool, requests written, responses read and relayed, deadlines,
//! and the rules for which failures are
//! safe to retry and what happens to a response.
//!
//! Nothing here knows clients or routing: [`http1::Exchange`] receives what may interrupt it as
//! [`interrupt::Interrupts`], and [`relay`] reports to a [`relay::RelayObserver`].

pub(crate) mod beginning;
pub(crate) mod body_decoder;
pub(crate) mod connect;
pub(crate) mod connection;
pub(crate) mod deadline;
pub(crate) mod disposition;
pub(crate) mod engine_exchange;
pub(crate) mod failure;
pub mod headers;
pub(crate) mod http1;
pub(crate) mod http2;
pub(crate) mod interrupt;
pub(crate) mod named_resource;
pub(crate) mod own_key;
pub(crate) mod pool;
pub(crate) mod query_model;
pub(crate) mod relay;
pub mod request_writer;
pub mod response_head;
pub(crate) mod response_monitor;
pub(crate) mod retry_after;
pub(crate) mod retry_safety;
pub(crate) mod shortage;
pub mod splice;
