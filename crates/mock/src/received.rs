//! Records of the requests a mock engine received, for tests.

use std::time::Duration;

use bytes::Bytes;
use penstock_api::units::Timestamp;

use super::fault::Fault;
use super::wire_head::values;

/// A request, recorded from the arrival of its head.
#[derive(Debug, Clone)]
pub struct Received {
    /// The number of its connection, counted from 1.
    pub connection: u64,
    /// The method, such as `POST`.
    pub method: String,
    /// The path with its query, as sent.
    pub target: String,
    /// The head as sent, including the empty line.
    pub head: Bytes,
    /// The headers in order, names as sent, values trimmed.
    pub headers: Vec<(String, String)>,
    /// The body without its framing; `None` while incomplete, or if bodies are not kept.
    pub body: Option<Bytes>,
    /// True if the complete request arrived.
    pub complete: bool,
    /// The time at which the head was complete.
    pub arrived_at: Timestamp,
    /// The fault with which the engine failed it.
    pub fault: Option<Fault>,
}

impl Received {
    /// Returns the value of the first header named `name`, case-insensitive.
    pub fn header(&self, name: &str) -> Option<&str> {
        values(&self.headers, name).next()
    }

    /// Returns the path without its query.
    pub fn path(&self) -> &str {
        path_of(&self.target)
    }
}

pub(super) fn path_of(target: &str) -> &str {
    target.split_once('?').map_or(target, |(path, _)| path)
}

/// A client that left before its response was complete.
#[derive(Debug, Clone)]
pub struct Cancelled {
    /// The path of the request line.
    pub target: String,
    /// The time from the arrival of the head to the departure.
    pub after: Duration,
    /// The time at which the engine noticed.
    pub at: Timestamp,
    /// The number of stream events sent to it.
    pub events: u32,
}

/// Bytes that are not a strictly well-formed request: nothing that penstock forwards may end up
/// here.
#[derive(Debug, Clone)]
pub struct Malformed {
    /// The reason why they are malformed.
    pub why: &'static str,
    /// The bytes that had arrived and were not part of an earlier request or head.
    pub bytes: Bytes,
}

/// The counters of an engine. Probes are information requests (GET, HEAD and `/api/show`), counted
/// under `probes` only.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct TrafficCounters {
    /// The number of accepted connections.
    pub connections: usize,
    /// The number of connections open now.
    pub open_connections: usize,
    /// The number of requests whose head arrived.
    pub requests: usize,
    /// The number of requests whose head arrived and which have not ended.
    pub open_requests: usize,
    /// The number of requests that arrived completely.
    pub complete: usize,
    /// The number of requests that broke off within the body.
    pub incomplete: usize,
    /// The number of responses sent to their end.
    pub responded: usize,
    /// The number of clients that left before the end of their response.
    pub cancelled: usize,
    /// The number of faults carried out.
    pub faults: usize,
    /// The number of stream events written.
    pub events: usize,
    /// The number of models loaded because they were not in memory; only with
    /// [`super::EngineSpec::memory`].
    pub loads: usize,
    /// The number of information requests.
    pub probes: usize,
    /// The number of inputs that were not a well-formed request.
    pub malformed: usize,
}
