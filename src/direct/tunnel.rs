//! Requests to switch protocols (`Upgrade`): their detection and their forwarding.

use http::Method;
use http::header::{self, HeaderValue};
use penstock_api::ErrorCode;
use penstock_core::routing::Way;
use pingora::http::RequestHeader;

use crate::direct::passthrough::{by_model, decide_by_name, is_busy};
use crate::direct::switched::Switch;
use crate::direct::{end_directly, reserve_directly};
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
use crate::upstream::headers::WEBSOCKET;

/// Returns whether the client requests to switch to WebSocket. A request with another protocol, or
/// a list of several, is an ordinary one.
pub(crate) fn requests_websocket(head: &RequestHeader) -> bool {
    // RFC 6455 §4.1; HTTP/2 has another way to switch (RFC 8441).
    if head.method != Method::GET || head.version != http::Version::HTTP_11 {
        return false;
    }
    let is_listed = head.headers.get_all(header::CONNECTION).iter().any(names_upgrade);
    let mut protocols = head.headers.get_all(header::UPGRADE).iter();
    // Of several the engine would choose, and the choice may not be WebSocket.
    let only = protocols.next().filter(|_| protocols.next().is_none() && is_listed);
    only.is_some_and(|one| one.as_bytes().trim_ascii().eq_ignore_ascii_case(WEBSOCKET.as_bytes()))
}

fn names_upgrade(value: &HeaderValue) -> bool {
    let mut options = value.as_bytes().split(|byte| *byte == b',');
    options.any(|option| option.trim_ascii().eq_ignore_ascii_case(b"upgrade"))
}

/// Forwards a request to switch protocols along its way, and then the bytes of both sides.
pub(crate) async fn serve_tunnel(flow: &mut Flow<'_>, way: &Way, no_body: HeldBody) -> Served {
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
    request.is_websocket = true;
    let to = Recipient::Other(&Switch);
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
    let decided = reserve_directly(flow, &fleet, decision, true).ok_or_else(busy)?;
    Ok((ScannedRequest::direct(flow.ctx.arrived_at, fleet, no_body, policy), decided))
}
