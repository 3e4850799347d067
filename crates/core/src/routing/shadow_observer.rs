//! Feeds decisions to the shadow strategy (`routing.shadow`).

use std::cell::RefCell;
use std::sync::Arc;

use http::header::HeaderValue;

use super::audit::{ObservedDecision, Shadow};
use super::observer::{RequestObserver, Routed};
use super::session::SessionNames;
use crate::fleet::Probe;

/// Passes each first attempt to the shadow of its generation, if any. A retry is left out, because
/// the failure limits its candidates.
#[derive(Debug, Clone, Copy, Default)]
pub struct ShadowObserver;

impl RequestObserver for ShadowObserver {
    fn routed(&self, event: &Routed<'_>) {
        let Some(shadow) = event.generation.shadow.as_deref() else { return };
        let recorded = event.body.zip(event.trace).filter(|_| event.attempt == 1);
        let Some((body, trace)) = recorded else { return };
        shadow.observe(ObservedDecision {
            at: event.at,
            request: *event.request,
            // Shares the bytes instead of copying them.
            body: body.clone(),
            session: session_of(event, shadow, body),
            topology: Arc::clone(event.fleet),
            model: event.decision.model,
            row: event.decision.row,
            is_next_probe: event.decision.probe == Probe::Cooldown,
            trace: RefCell::take(trace),
        });
    }
}

/// Returns the session that the request names, if the shadow's strategy reads it.
fn session_of(event: &Routed<'_>, shadow: &Shadow, body: &[u8]) -> Option<u64> {
    let headers = |name: &str| event.headers.get_all(name).iter().map(HeaderValue::as_bytes);
    let body = event.request.session.of(body);
    let session = shadow.session_field()?.read(&SessionNames { headers, body, key: event.key })?;
    Some(session.root)
}
