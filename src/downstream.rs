//! Clients: listeners, TLS and the PROXY protocol, HTTP/1.1 and HTTP/2, the check of request heads
//! and the reading of bodies. Passes each request to a Pingora application that the owner chooses,
//! so nothing here knows the proxy.
//!
//! A connection passes `acceptor` (connection limit) → `listener` (PROXY header, TLS, HTTP version)
//! → `http1` or `http2`, which call the application once per request. The application reaches its
//! client through `client`: it reads the body with `body_reader` and watches for a disconnect.

pub(crate) mod acceptor;
pub(crate) mod body;
pub(crate) mod body_reader;
pub(crate) mod body_stream;
pub(crate) mod certificate;
pub(crate) mod client;
pub mod clients;
pub(crate) mod connection_limit;
pub(crate) mod counted;
pub mod encoded_body;
pub mod head_check;
pub(crate) mod http1;
pub mod http2;
pub(crate) mod limits;
pub(crate) mod listener;
pub(crate) mod origin;
pub mod port_tls;
mod prefixed_stream;
pub mod proxy_protocol;
pub(crate) mod response_writer;
