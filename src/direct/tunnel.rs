//! Requests to switch protocols (`Upgrade`): their detection and their forwarding.

use http::Method;
use http::header::{self, HeaderValue};
use penstock_api::{ErrorCode, Operation};
use penstock_core::fleet::{InflightGuard, PermitRequest};
use penstock_core::routing::Way;
use pingora::http::RequestHeader;

use crate::direct::end_directly;
use crate::direct::passthrough::{by_model, decide_by_name, is_busy};
use crate::direct::switched::Switch;
use crate::downstream::body::HeldBody;
use crate::proxy::budgets;
use crate::proxy::decision::{DecisionFailure, decide, record_rejections};
use crate::proxy::failure::OwnError;
use crate::proxy::flow::{Flow, Served};
use crate::proxy::forward::{Recipient, make_attempt};
use crate::proxy::own_response::send_error;
use crate::proxy::request::{Decided, ScannedRequest};
use crate::proxy::retry::route_error;
use crate::proxy::return_time::time_of_backend;

/// The only protocol that clients may switch to: with another one, a client would speak to the
/// engine with penstock's own key.
const WEBSOCKET: HeaderValue = HeaderValue::from_static("websocket");

/// Returns the WebSocket protocol if the client requests a switch to it. A request with another
/// protocol, or a list of several, is an ordinary one.
pub(crate) fn requested_websocket(head: &RequestHeader) -> Option<HeaderValue> {
    // RFC 6455 §4.1; HTTP/2 has another way to switch (RFC 8441).
    if head.method != Method::GET || head.version != http::Version::HTTP_11 {
        return None;
    }
    let is_listed = head.headers.get_all(header::CONNECTION).iter().any(names_upgrade);
    let mut protocols = head.headers.get_all(header::UPGRADE).iter();
    // Of several the engine would choose, and the choice may not be WebSocket.
    let only = protocols.next().filter(|_| protocols.next().is_none() && is_listed)?;
    let is_websocket = only.as_bytes().trim_ascii().eq_ignore_ascii_case(WEBSOCKET.as_bytes());
    is_websocket.then_some(WEBSOCKET)
}

fn names_upgrade(value: &HeaderValue) -> bool {
    let mut options = value.as_bytes().split(|byte| *byte == b',');
    options.any(|option| option.trim_ascii().eq_ignore_ascii_case(b"upgrade"))
}

/// A request to switch protocols.
pub(crate) struct Upgrade<'a> {
    pub(crate) way: &'a Way,
    pub(crate) protocol: HeaderValue,
}

/// Forwards a request to switch protocols along its way, and then the bytes of both sides.
pub(crate) async fn serve_tunnel(
    flow: &mut Flow<'_>,
    upgrade: Upgrade<'_>,
    no_body: HeldBody,
) -> Served {
    let Upgrade { way, protocol } = upgrade;
    let (mut request, decided) = match reserve(flow, way, no_body).await {
        Ok(reserved) => reserved,
        Err(Some(error)) => return send_error(flow, error).await,
        Err(None) => return flow.ctx.end_cancelled(),
    };
    let fleet = std::sync::Arc::clone(&request.fleet);
    let serving = decided.decision.serving(&fleet);
    let backend = serving.and_then(|serving| fleet.backends.get(usize::from(serving.backend)));
    if backend.is_some_and(|backend| backend.config.http2) {
        let message = "The backend is reached over HTTP/2, which cannot switch protocols";
        let error = OwnError::new(ErrorCode::CapabilityMismatch, message);
        return send_error(flow, error).await;
    }
    request.upgrade = Some(protocol.clone());
    let to = Recipient::Other(&Switch { protocol });
    let end = make_attempt(flow, to, &mut request, decided).await;
    end_directly(flow, end).await
}

/// Reserves the backend, and returns its permit; the error is `None` if the client is gone.
async fn reserve(
    flow: &mut Flow<'_>,
    way: &Way,
    no_body: HeldBody,
) -> Result<(Box<ScannedRequest>, Box<Decided>), Option<OwnError>> {
    let name = match way {
        Way::ByModel => {
            let request = by_model(flow, no_body).await?;
            let decided = decide(flow, &request).map_err(|failure| match failure {
                DecisionFailure::NoRoute(error) => {
                    record_rejections(flow.ctx, &request);
                    Some(route_error(flow.proxy, request.view(flow.ctx), &error))
                }
                DecisionFailure::ClientGone => None,
            })?;
            return Ok((request, decided));
        }
        Way::Backend(name) => name,
    };
    let fleet = flow.ctx.generation.fleet.topology();
    let (decision, policy) = decide_by_name(flow, &fleet, name)?;
    budgets::reserve_unread(flow, &fleet, decision.backend).await?;
    let busy = || is_busy(name, time_of_backend(flow.proxy, &fleet, &decision, None));
    let serving = decision.serving(&fleet).ok_or_else(busy)?;
    let permit = InflightGuard::try_reserve(
        &serving.state,
        serving.max_in_flight,
        &PermitRequest::default(),
    );
    let permit = permit.ok_or_else(busy)?;
    // `decide` counts the attempt on the way by model.
    flow.ctx.record.routing.attempts += 1;
    let (at, operation) = (flow.ctx.arrived_at, Operation::Passthrough);
    let request = ScannedRequest::direct(at, operation, fleet, no_body, policy);
    Ok((request, Box::new(Decided { decision, permit })))
}
