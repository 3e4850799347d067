//! The `Retry-After` of a request that no backend can take: the time at which the first one can,
//! spread over the requests that are refused meanwhile.

use std::time::Duration;

use penstock_clock::now;
use penstock_core::admission::returns::Fingerprint;
use penstock_core::fleet::{BackendSet, Openings, Topology};
use penstock_core::routing::{ReturnLine, RouteError, RoutingDecision};

use crate::proxy::Proxy;
use crate::proxy::decision::route_input;
use crate::proxy::request::RequestView;

/// The wait after which a request that was refused with `error` should return; `None` if no wait is
/// known to help.
pub(crate) fn return_time(
    proxy: &Proxy,
    view: RequestView<'_>,
    error: &RouteError,
) -> Option<Duration> {
    match error {
        RouteError::ObjectiveMissed { wait, interval, .. } => {
            let openings = Openings::at_rate(*wait, *interval);
            let tried = BackendSet::default();
            let input = route_input(view, &tried, None);
            let line = view.ctx.generation.router.return_line(&input, false);
            Some(proxy.returns.after(line, fingerprint(view), &openings, input.now))
        }
        RouteError::FallbackChainExhausted { .. } => time_of_room(proxy, view, true),
        RouteError::Saturated { .. }
        | RouteError::CoolingDown { .. }
        | RouteError::NoHealthyBackend { .. }
        | RouteError::AllTried { .. } => time_of_room(proxy, view, false),
        RouteError::NoBackendInZone { is_final, .. } if !is_final => {
            time_of_room(proxy, view, false)
        }
        RouteError::NoBackendInZone { .. }
        | RouteError::ModelNotFound { .. }
        | RouteError::CapabilityMismatch { .. }
        | RouteError::DiscoveryPending { .. } => None,
    }
}

/// The wait after which a refused request finds room on a backend of its model, or with `in_chain`
/// of a fallback; `None` if it never does.
pub(crate) fn time_of_room(
    proxy: &Proxy,
    view: RequestView<'_>,
    in_chain: bool,
) -> Option<Duration> {
    // It returns as a new request: no backend counts as tried.
    let tried = BackendSet::default();
    let input = route_input(view, &tried, None);
    let router = &view.ctx.generation.router;
    let openings = router.openings(&input, in_chain)?;
    let line = router.return_line(&input, in_chain);
    Some(proxy.returns.after(line, fingerprint(view), &openings, input.now))
}

/// The wait after which a request for the backend of a decision finds room there; `None` if it is
/// not one of `fleet`. `request`: identifies it when it comes again.
pub(crate) fn time_of_backend(
    proxy: &Proxy,
    fleet: &Topology,
    decision: &RoutingDecision,
    request: Option<Fingerprint>,
) -> Option<Duration> {
    let serving = decision.serving(fleet)?;
    let backend = fleet.backends.get(usize::from(serving.backend))?;
    let mut backends = BackendSet::default();
    backends.insert(serving.id);
    let now = now();
    let openings = serving.openings(&backend.config.health, now);
    Some(proxy.returns.after(ReturnLine::Backends(backends), request, &openings, now))
}

/// Identifies a request that its client sends again; `None` once its body is released.
pub(crate) fn fingerprint(view: RequestView<'_>) -> Option<Fingerprint> {
    let body = view.request.body.as_ref()?;
    Some(Fingerprint::of(view.ctx.requester.client, &body.bytes))
}
