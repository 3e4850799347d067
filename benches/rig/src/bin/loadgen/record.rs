//! The clients' results as counts and quantiles.

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::time::Duration;

use serde_json::{Value, json};

/// The counts of all connections.
#[derive(Default)]
pub(crate) struct Record {
    latencies: RefCell<Vec<u64>>,
    ways: RefCell<Vec<u64>>,
    errors: Cell<u64>,
    kinds: RefCell<BTreeMap<String, u64>>,
}

impl Record {
    /// Records a request that ended well after `latency` nanoseconds.
    pub(crate) fn finished(&self, latency: u64) {
        self.latencies.borrow_mut().push(latency);
    }

    /// Records an event's duration in nanoseconds.
    pub(crate) fn event(&self, way: u64) {
        self.ways.borrow_mut().push(way);
    }

    /// A request ended otherwise.
    pub(crate) fn failed(&self, name: String) {
        self.errors.set(self.errors.get() + 1);
        *self.kinds.borrow_mut().entry(name).or_default() += 1;
    }

    /// Everything; times in microseconds.
    pub(crate) fn report(&self, time: Duration) -> Value {
        let (latencies, ways) = (&mut *self.latencies.borrow_mut(), &mut *self.ways.borrow_mut());
        json!({
            "requests": latencies.len(),
            "events": ways.len(),
            "errors": self.errors.get(),
            "error_kinds": *self.kinds.borrow(),
            "seconds": time.as_secs_f64(),
            "latency_us": quantiles(latencies),
            "event_way_us": quantiles(ways),
        })
    }
}

fn quantiles(times: &mut [u64]) -> Value {
    times.sort_unstable();
    let at = |thousandth: usize| {
        let index = (times.len() * thousandth).div_ceil(1000).saturating_sub(1);
        times.get(index).map(|nanoseconds| nanoseconds / 1000)
    };
    json!({"p50": at(500), "p99": at(990), "max": at(1000)})
}
