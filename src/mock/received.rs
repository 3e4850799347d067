//! Records of the requests a mock engine received, for tests.

use std::time::Duration;

use bytes::Bytes;

use super::fault::Fault;
use crate::units::Timestamp;

/// A request, from the moment its head had arrived.
#[derive(Debug, Clone)]
pub struct Received {
    /// Which connection it came on, counted from 1.
    pub connection: u64,
    /// `POST`
    pub method: String,
    /// The path with its query, as sent.
    pub target: String,
    /// The head as sent, up to and with the empty line.
    pub head: Bytes,
    /// The headers in order, names as sent, values trimmed.
    pub headers: Vec<(String, String)>,
    /// The body without its framing; `None` while it is incomplete, or when it is not kept.
    pub body: Option<Bytes>,
    /// Whether the whole request arrived.
    pub complete: bool,
    /// When the head was complete.
    pub arrived_at: Timestamp,
    /// How the engine failed it.
    pub fault: Option<Fault>,
}

impl Received {
    /// The value of the first header named `name`, case-insensitive.
    pub fn header(&self, name: &str) -> Option<&str> {
        self.headers
            .iter()
            .find(|(known, _)| known.eq_ignore_ascii_case(name))
            .map(|(_, value)| value.as_str())
    }

    /// The path without its query.
    pub fn path(&self) -> &str {
        path_of(&self.target)
    }
}

pub(super) fn path_of(target: &str) -> &str {
    target.split_once('?').map_or(target, |(path, _)| path)
}

/// A client that went away before its response was complete.
#[derive(Debug, Clone)]
pub struct Cancelled {
    /// The request line's path.
    pub target: String,
    /// How long after its request's head.
    pub after: Duration,
    /// When the engine noticed.
    pub at: Timestamp,
    /// How many events of a stream it had been sent.
    pub events: u32,
}

/// Bytes that are not a strictly well-formed request: nothing penstock forwards may end here.
#[derive(Debug, Clone)]
pub struct Malformed {
    /// Why they are malformed.
    pub why: &'static str,
    /// What had arrived and was not read as an earlier request or head.
    pub bytes: Bytes,
}

/// What an engine has counted. Probes are information requests (GET, HEAD and `/api/show`) and
/// appear under `probes` only.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Counters {
    /// Connections accepted.
    pub connections: usize,
    /// Connections open now.
    pub open_connections: usize,
    /// Requests whose head arrived.
    pub requests: usize,
    /// Requests whose head arrived and which are not over.
    pub open_requests: usize,
    /// Requests that arrived whole.
    pub complete: usize,
    /// Requests that broke off within the body.
    pub incomplete: usize,
    /// Responses sent to their end.
    pub answered: usize,
    /// Clients that left before.
    pub cancelled: usize,
    /// Faults acted out.
    pub faults: usize,
    /// Events of streams written.
    pub events: usize,
    /// Models loaded because they were not in memory; only with [`super::EngineSpec::memory`].
    pub loads: usize,
    /// Information requests.
    pub probes: usize,
    /// Requests that were not well-formed.
    pub malformed: usize,
}
