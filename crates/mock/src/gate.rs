//! A gate at which an engine waits until a test opens it: tests force an order of events without
//! sleeping.

use std::sync::Arc;

use tokio::sync::watch;

/// Holds requests until it is opened. Clones share the same gate.
#[derive(Debug, Clone)]
pub struct Gate(Arc<watch::Sender<GateState>>);

#[derive(Debug, Clone, Copy, Default)]
struct GateState {
    is_open: bool,
    arrived: usize,
}

impl Gate {
    /// Creates a closed gate.
    pub fn new() -> Self {
        Self(Arc::new(watch::Sender::default()))
    }

    /// Opens the gate for all waiting and all later requests.
    pub fn open(&self) {
        self.0.send_modify(|state| state.is_open = true);
    }

    /// Returns once `count` requests in total have reached the gate, including those that passed.
    pub async fn reached_by(&self, count: usize) {
        self.wait(|state| state.arrived >= count).await;
    }

    /// The number of requests that have reached the gate, including those that passed.
    pub fn arrivals(&self) -> usize {
        self.0.borrow().arrived
    }

    pub(super) async fn pass(&self) {
        self.0.send_modify(|state| state.arrived += 1);
        self.wait(|state| state.is_open).await;
    }

    async fn wait(&self, condition: impl Fn(&GateState) -> bool) {
        let mut watched = self.0.subscribe();
        // `self` holds the sender, so waiting cannot fail.
        let outcome = watched.wait_for(condition).await.map(|_state| ());
        debug_assert!(outcome.is_ok(), "a gate outlives those who wait at it");
    }
}

impl Default for Gate {
    fn default() -> Self {
        Self::new()
    }
}
