//! Requests to read a backend's model list or its loaded models ahead of the schedule, because
//! something showed that the known state is outdated.
//!
//! Requests before the next probe are merged into one. The order of flag and waker is that of
//! [`super::check_request`].

use std::sync::atomic::{AtomicU8, Ordering};
use std::task::{Context, Poll};

use atomic_waker::AtomicWaker;

const MODELS: u8 = 1;
const LOADED: u8 = 1 << 1;

/// The parts of the catalogue to read again.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct OutdatedCatalogue {
    /// The list of models.
    pub models: bool,
    /// The models in memory.
    pub loaded: bool,
}

/// The requested parts that are not read yet.
#[derive(Debug, Default)]
pub(super) struct CatalogueRequest {
    pending: AtomicU8,
    waker: AtomicWaker,
}

impl CatalogueRequest {
    /// Requests the list and the loaded models.
    pub(super) fn set_all(&self) {
        self.set(MODELS | LOADED);
    }

    pub(super) fn set_loaded(&self) {
        self.set(LOADED);
    }

    fn set(&self, what: u8) {
        // What was pending before has woken the waiter already.
        if self.pending.fetch_or(what, Ordering::AcqRel) & what != what {
            self.waker.wake();
        }
    }

    /// Returns ready once something is requested, and consumes the request.
    pub(super) fn poll_take(&self, cx: &Context<'_>) -> Poll<OutdatedCatalogue> {
        self.waker.register(cx.waker());
        match self.pending.swap(0, Ordering::AcqRel) {
            0 => Poll::Pending,
            what => Poll::Ready(OutdatedCatalogue {
                models: what & MODELS != 0,
                loaded: what & LOADED != 0,
            }),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::task::Waker;

    use super::*;

    #[test]
    fn requests_before_a_probe_are_one() {
        let request = CatalogueRequest::default();
        let cx = Context::from_waker(Waker::noop());
        assert!(request.poll_take(&cx).is_pending());
        request.set_loaded();
        let loaded = OutdatedCatalogue { models: false, loaded: true };
        assert_eq!(request.poll_take(&cx), Poll::Ready(loaded));
        request.set_loaded();
        request.set_all();
        let all = OutdatedCatalogue { models: true, loaded: true };
        assert_eq!(request.poll_take(&cx), Poll::Ready(all));
        assert!(request.poll_take(&cx).is_pending(), "the request is taken");
    }
}
