//! The script of faults: the queue in which an engine's faults wait for their request.

use std::collections::{BTreeMap, VecDeque};
use std::sync::{Mutex, MutexGuard, PoisonError};

use super::Fault;

/// The pending faults of one engine.
#[derive(Debug)]
pub(super) struct FaultScript(Mutex<FaultPlan>);

#[derive(Debug)]
struct FaultPlan {
    accepts: VecDeque<Fault>,
    requests: VecDeque<Fault>,
    always: Option<Fault>,
    probes: Option<Fault>,
    /// The faults of requests whose body contains a text.
    of_bodies: Vec<(String, Fault)>,
    health: u16,
    pages: BTreeMap<String, String>,
}

impl FaultScript {
    pub(super) fn new() -> Self {
        Self(Mutex::new(FaultPlan {
            accepts: VecDeque::new(),
            requests: VecDeque::new(),
            always: None,
            probes: None,
            of_bodies: Vec::new(),
            health: 200,
            pages: BTreeMap::new(),
        }))
    }

    pub(super) fn queue(&self, faults: impl IntoIterator<Item = Fault>) {
        let mut plan = self.lock();
        for fault in faults {
            let queue = if fault.is_at_accept() { &mut plan.accepts } else { &mut plan.requests };
            queue.push_back(fault);
        }
    }

    pub(super) fn set_always(&self, fault: Option<Fault>) {
        self.lock().always = fault;
    }

    pub(super) fn fail_on(&self, text: &str, fault: Fault) {
        self.lock().of_bodies.push((text.to_owned(), fault));
    }

    /// Returns the fault of a request with that body.
    pub(super) fn fault_of_body(&self, body: &[u8]) -> Option<Fault> {
        let plan = self.lock();
        let contains = |text: &String| memchr::memmem::find(body, text.as_bytes()).is_some();
        plan.of_bodies.iter().find(|(text, _)| contains(text)).map(|(_, fault)| fault.clone())
    }

    pub(super) fn set_probes(&self, fault: Option<Fault>) {
        self.lock().probes = fault;
    }

    pub(super) fn set_health(&self, status: u16) {
        self.lock().health = status;
    }

    pub(super) fn set_page(&self, path: &str, text: Option<&str>) {
        let pages = &mut self.lock().pages;
        match text {
            Some(text) => _ = pages.insert(path.to_owned(), text.to_owned()),
            None => _ = pages.remove(path),
        }
    }

    /// Returns the page that was set at `path`.
    pub(super) fn page(&self, path: &str) -> Option<String> {
        self.lock().pages.get(path).cloned()
    }

    pub(super) fn health(&self) -> u16 {
        self.lock().health
    }

    pub(super) fn left(&self) -> usize {
        let plan = self.lock();
        plan.accepts.len() + plan.requests.len()
    }

    /// Takes the fault of a connection that was just accepted.
    pub(super) fn take_at_accept(&self) -> Option<Fault> {
        let mut plan = self.lock();
        // One fault for every request is of one of both kinds: the other moment must not get it.
        let always = plan.always.clone().filter(Fault::is_at_accept);
        plan.accepts.pop_front().or(always)
    }

    /// Returns whether the next request is to be left unread; a queued fault for that is taken.
    pub(super) fn take_unread(&self) -> bool {
        let mut plan = self.lock();
        match (plan.requests.front(), &plan.always) {
            // Decided before the head is read, and so without taking the fault of another kind.
            (Some(Fault::CloseUnread), _) => plan.requests.pop_front().is_some(),
            (None, Some(Fault::CloseUnread)) => true,
            _ => false,
        }
    }

    /// Takes the fault of a request whose head has arrived.
    pub(super) fn take(&self, is_probe: bool) -> Option<Fault> {
        let mut plan = self.lock();
        if is_probe {
            return plan.probes.clone();
        }
        let always = plan.always.clone().filter(|fault| !fault.is_at_accept());
        // `Pass` takes a turn in the queue, so that a later request fails; it is no fault itself.
        plan.requests.pop_front().or(always).filter(|fault| !matches!(fault, Fault::Pass))
    }

    fn lock(&self) -> MutexGuard<'_, FaultPlan> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
