//! Clients: listeners, TLS and PROXY protocol, HTTP/1.1 and HTTP/2, the check of request heads and the
//! reading of bodies.

pub(crate) mod accept;
pub(crate) mod body;
pub(crate) mod client;
pub mod close_reasons;
pub(crate) mod connection_limit;
pub(crate) mod guard;
pub mod head_check;
pub(crate) mod http1;
pub(crate) mod http2;
pub(crate) mod listener;
pub(crate) mod origin;
pub(crate) mod pingora_io;
pub(crate) mod proxy_protocol;
