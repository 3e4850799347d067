//! The observations of an engine: requests byte for byte, clients that left, and counters that a
//! test can wait for.

use std::collections::VecDeque;
use std::io;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use bytes::Bytes;
use penstock_api::units::Timestamp;
use tokio::sync::watch;

use super::fault::Fault;
use super::received::{Cancelled, Malformed, Received, TrafficCounters};
use super::wire_head::RequestHead;

/// The number of requests kept, so that a long-lived engine does not grow.
const REMEMBERED: usize = 256;

/// A timeout far beyond any successful wait, so that a test fails instead of hanging.
const PATIENCE: Duration = Duration::from_secs(10);

/// The memory of one engine.
#[derive(Debug)]
pub(super) struct Records {
    counters: watch::Sender<TrafficCounters>,
    seen: Mutex<RecordedTraffic>,
    keep_bodies: bool,
}

#[derive(Debug, Default)]
struct RecordedTraffic {
    next: u64,
    requests: VecDeque<(u64, Received)>,
    probes: VecDeque<Received>,
    cancelled: VecDeque<Cancelled>,
    malformed: VecDeque<Malformed>,
}

impl Records {
    pub(super) fn new(keep_bodies: bool) -> Self {
        Self { counters: watch::Sender::default(), seen: Mutex::default(), keep_bodies }
    }

    pub(super) fn counters(&self) -> TrafficCounters {
        *self.counters.borrow()
    }

    pub(super) fn received(&self) -> Vec<Received> {
        self.lock().requests.iter().map(|(_, request)| request.clone()).collect()
    }

    pub(super) fn probes(&self) -> Vec<Received> {
        self.lock().probes.iter().cloned().collect()
    }

    pub(super) fn cancelled(&self) -> Vec<Cancelled> {
        self.lock().cancelled.iter().cloned().collect()
    }

    pub(super) fn malformed(&self) -> Vec<Malformed> {
        self.lock().malformed.iter().cloned().collect()
    }

    pub(super) fn clear(&self) {
        let mut seen = self.lock();
        // Numbers go on: a request from before must not be found under the number of a new one.
        *seen = RecordedTraffic { next: seen.next, ..RecordedTraffic::default() };
        self.count(|counters| {
            *counters = TrafficCounters {
                open_connections: counters.open_connections,
                open_requests: counters.open_requests,
                ..TrafficCounters::default()
            };
        });
    }

    pub(super) async fn wait_for(
        &self,
        mut predicate: impl FnMut(&TrafficCounters) -> bool,
    ) -> io::Result<TrafficCounters> {
        let mut watched = self.counters.subscribe();
        let waiting = watched.wait_for(|counters| predicate(counters));
        match tokio::time::timeout(PATIENCE, waiting).await {
            Ok(Ok(counters)) => Ok(*counters),
            Ok(Err(_)) | Err(_) => {
                let message = format!("waited in vain, at {:?}", self.counters());
                Err(io::Error::new(io::ErrorKind::TimedOut, message))
            }
        }
    }

    pub(super) fn count(&self, change: impl FnOnce(&mut TrafficCounters)) {
        self.counters.send_modify(change);
    }

    pub(super) fn connection_opened(&self) -> OpenConnection<'_> {
        self.count(|counters| {
            counters.connections += 1;
            counters.open_connections += 1;
        });
        OpenConnection(self)
    }

    pub(super) fn add_malformed(&self, why: &'static str, bytes: Bytes) {
        remember(&mut self.lock().malformed, Malformed { why, bytes });
        self.count(|counters| counters.malformed += 1);
    }

    pub(super) fn request_arrived(
        &self,
        head: &RequestHead,
        connection: u64,
        is_probe: bool,
        fault: Option<Fault>,
    ) -> OpenRequest<'_> {
        let request = Received {
            connection,
            method: head.method.clone(),
            target: head.target.clone(),
            head: head.raw.clone(),
            headers: head.headers.clone(),
            body: None,
            complete: is_probe,
            arrived_at: penstock_clock::now(),
            fault,
        };
        let (arrived_at, target) = (request.arrived_at, request.target.clone());
        let mut seen = self.lock();
        let number = seen.next;
        seen.next += 1;
        if is_probe {
            remember(&mut seen.probes, request);
        } else {
            remember(&mut seen.requests, (number, request));
        }
        drop(seen);
        self.count(|counters| {
            if is_probe {
                counters.probes += 1;
            } else {
                counters.requests += 1;
                counters.open_requests += 1;
            }
        });
        OpenRequest { records: self, number, is_probe, arrived_at, target, ending: |_| () }
    }

    fn lock(&self) -> MutexGuard<'_, RecordedTraffic> {
        self.seen.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn remember<T>(list: &mut VecDeque<T>, item: T) {
    if list.len() == REMEMBERED {
        list.pop_front();
    }
    list.push_back(item);
}

/// A guard that counts a connection as open until it is dropped.
#[derive(Debug)]
pub(super) struct OpenConnection<'a>(&'a Records);

impl Drop for OpenConnection<'_> {
    fn drop(&mut self) {
        self.0.count(|counters| counters.open_connections -= 1);
    }
}

/// A guard that counts a request as open until it is dropped.
#[derive(Debug)]
pub(super) struct OpenRequest<'a> {
    records: &'a Records,
    number: u64,
    is_probe: bool,
    arrived_at: Timestamp,
    target: String,
    // The counter of the request's outcome changes together with the open count, so a waiting test
    // sees both or neither.
    ending: fn(&mut TrafficCounters),
}

impl OpenRequest<'_> {
    pub(super) fn set_body(&self, body: Bytes) {
        if self.is_probe {
            return;
        }
        let mut seen = self.records.lock();
        // From the end, since it arrived lately; it is gone if 256 others came while its body did.
        let found = seen.requests.iter_mut().rev().find(|(number, _)| *number == self.number);
        if let Some((_, request)) = found {
            request.complete = true;
            request.body = self.records.keep_bodies.then_some(body);
        }
        drop(seen);
        self.records.count(|counters| counters.complete += 1);
    }

    pub(super) fn broke_off(self) {
        self.end(|counters| counters.incomplete += 1);
    }

    pub(super) fn responded(self) {
        self.end(|counters| counters.responded += 1);
    }

    pub(super) fn cancelled(self, events: u32) {
        if !self.is_probe {
            let at = penstock_clock::now();
            let after = at.since(self.arrived_at);
            let cancelled = Cancelled { target: self.target.clone(), after, at, events };
            remember(&mut self.records.lock().cancelled, cancelled);
        }
        self.end(|counters| counters.cancelled += 1);
    }

    fn end(mut self, ending: fn(&mut TrafficCounters)) {
        self.ending = ending;
    }
}

impl Drop for OpenRequest<'_> {
    fn drop(&mut self) {
        if !self.is_probe {
            self.records.count(|counters| {
                counters.open_requests -= 1;
                (self.ending)(counters);
            });
        }
    }
}
