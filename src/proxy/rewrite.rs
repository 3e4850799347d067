//! Changes that some requests need and most do not, in their order:
//!
//! 1. Before a decision, for a conversation that may be shortened: backends whose context is too
//!    short are passed over, or, if none is left, it is shortened (`context_shift`).
//! 2. Before an attempt at a backend that does not serve the operation, [`adapt`]: a model is
//!    loaded or unloaded (`residency`), tokens are counted in steps (`token_count`), or the request
//!    is converted (`conversions`).
//! 3. After a refusal, between two attempts: fewer messages (`context_shift`), or none of what the
//!    engine cannot use ([`remove_unsupported`]).
//! 4. On the response, [`change_of`]: it is converted back, or loses the usage that only penstock
//!    requested (`usage_filter`).
//!
//! A plain request pays a comparison where each of them would begin.

pub(crate) mod context_shift;
pub(crate) mod conversions;
mod residency;
mod token_count;
mod usage_filter;

use http::header;
use penstock_api::{Capabilities, Operation, StreamFraming};
use penstock_dialect::without;

use crate::proxy::attempt::{Attempt, AttemptEnd, Elsewhere};
use crate::proxy::conversion::WayBack;
use crate::proxy::flow::{Flow, RequestContext};
use crate::proxy::request::ScannedRequest;
use crate::upstream::relay::Transform;
use crate::upstream::response_head::ResponseHead;
use conversions::{convert, stream_converter};
use usage_filter::UsageFilter;

/// The change of a response on its way to the client.
pub(crate) enum ResponseChange {
    /// Changes its payload, as it passes.
    Payload(Box<dyn Transform>),
    /// Converts all of it before the client gets a byte.
    Whole(WayBack),
}

/// Prepares a request for a backend that serves `target` and not its own operation. Returns the end
/// of the attempt if other requests were sent in its place, or none can be sent.
pub(crate) async fn adapt(
    flow: &mut Flow<'_>,
    request: &mut ScannedRequest,
    attempt: &mut Attempt<'_>,
    target: Operation,
) -> Option<AttemptEnd> {
    if let Some(change) = request.profile.residency_change {
        return Some(residency::respond(flow, request, attempt, change).await);
    }
    if request.profile.operation == Operation::CountTokens {
        return Some(token_count::respond(flow, request, attempt, target).await);
    }
    let reason = convert(flow, request, attempt, target).err()?;
    Some(AttemptEnd::Elsewhere(Elsewhere::Conversion(reason)))
}

/// Changes the head of the response to a request that was changed, and returns the change of its
/// payload.
///
/// # Errors
/// When the head cannot be written.
pub(crate) fn change_of(
    flow: &Flow<'_>,
    request: &mut ScannedRequest,
    head: &mut ResponseHead,
) -> pingora::Result<Option<ResponseChange>> {
    if let Some(conversion) = request.conversion.take() {
        let is_whole = head.stream.is_none();
        let way_back = conversion.into_way_back().for_response(is_whole);
        if is_whole || !way_back.is_stream() {
            return Ok(Some(ResponseChange::Whole(way_back)));
        }
        let converter = stream_converter(flow, request, head, way_back)?;
        return Ok(Some(ResponseChange::Payload(Box::new(converter))));
    }
    if !request.adds_usage || head.stream != Some(StreamFraming::Events) {
        return Ok(None);
    }
    // The length may count the event that is taken out.
    head.header.remove_header(&header::CONTENT_LENGTH);
    let filter = UsageFilter::new(request.profile.operation);
    Ok(Some(ResponseChange::Payload(Box::new(filter))))
}

/// Removes tools or images that an engine has refused because its model cannot use them, if
/// `routing.retry_without` allows that. The request is then sent again without them, once for each
/// capability. Returns whether there were any.
pub(crate) fn remove_unsupported(
    ctx: &mut RequestContext,
    request: &mut ScannedRequest,
    what: Capabilities,
) -> bool {
    let changed = without(request.profile.operation, request.body(), what);
    let is_changed = changed.and_then(|changed| request.replace_body(ctx, changed)).is_some();
    if is_changed {
        ctx.record.edits.retried_without = ctx.record.edits.retried_without.union(what);
    }
    is_changed
}
