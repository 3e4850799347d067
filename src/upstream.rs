//! Backends: connections and their pool, requests written, responses read and relayed, deadlines.

pub(crate) mod connect;
pub(crate) mod deadline;
pub(crate) mod exchange;
pub mod headers;
pub(crate) mod http2;
pub(crate) mod http2_stream;
pub(crate) mod pool;
pub(crate) mod relay;
pub(crate) mod request_writer;
pub(crate) mod response_head;
pub mod splice;
