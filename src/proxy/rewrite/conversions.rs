//! Requests for a backend that does not serve their operation: converted to one that it serves, and
//! their responses back. `conversion` holds the result for retries.

use std::time::Duration;

use http::header::{self, HeaderValue};
use penstock_api::Operation;
use penstock_clock::{now, unix_seconds};
use penstock_dialect::{ReplyContext, ResponseLimits};

use crate::downstream::body::BodyClaim;
use crate::proxy::attempt::Attempt;
use crate::proxy::conversion::{
    Conversion, ConversionFailure, ConversionTerms, Converter, WayBack,
};
use crate::proxy::flow::Flow;
use crate::proxy::request::{RequestView, ScannedRequest};
use crate::upstream::response_head::{BodyEnd, ResponseHead};

/// Converts the request to the operation `target`, which the attempt's backend serves.
pub(super) fn convert(
    flow: &Flow<'_>,
    request: &mut ScannedRequest,
    attempt: &mut Attempt<'_>,
    target: Operation,
) -> Result<(), ConversionFailure> {
    let from = request.profile.operation;
    let model = attempt.sent_model(request).into();
    let num_ctx = attempt.serving.num_ctx.map(|length| length.0);
    let terms = ConversionTerms { target, engine: attempt.engine(), model, num_ctx };
    let conversion = match request.conversion.take() {
        // Kept from an earlier attempt.
        Some(kept) if kept.fits(&terms) => kept,
        _ => {
            let limit = flow.ctx.generation.config.limits.buffered_bodies.to_usize();
            Box::new(Conversion::new(from, request.body(), terms, |bytes| {
                BodyClaim::take(&flow.proxy.bodies, bytes, limit)
            })?)
        }
    };
    attempt.conversion = Some((from, conversion.operation()));
    request.conversion = Some(conversion);
    Ok(())
}

/// The converter of a stream, whose `head` describes what the client gets.
pub(super) fn stream_converter(
    flow: &Flow<'_>,
    request: &ScannedRequest,
    head: &mut ResponseHead,
    way_back: WayBack,
) -> pingora::Result<Converter> {
    let claim = flow.proxy.claim_response();
    let converter = converter(way_back, request.view(flow.ctx)).with_claim(claim);
    describe(head, converter.content_type())?;
    Ok(converter)
}

/// The converter of the response to a request.
pub(crate) fn converter(way_back: WayBack, view: RequestView<'_>) -> Converter {
    let RequestView { ctx, request } = view;
    let since_arrival = now().since(ctx.arrived_at);
    let context = ReplyContext {
        model: request.model.to_string(),
        request_id: ctx.request_id().to_owned(),
        arrived_at: Duration::from_secs(unix_seconds()).saturating_sub(since_arrival),
        reasoning: ctx.generation.config.server.reasoning_field,
        limits: ResponseLimits {
            whole: ctx.generation.config.limits.converted_response.to_usize(),
            ..ResponseLimits::default()
        },
    };
    way_back.into_converter(request.profile.operation, context, ctx.arrived_at)
}

/// Makes the head describe a converted body, of a length that is not known.
pub(crate) fn describe(head: &mut ResponseHead, content_type: &'static str) -> pingora::Result<()> {
    head.framing = match head.framing {
        BodyEnd::UntilClose => BodyEnd::UntilClose,
        BodyEnd::Empty | BodyEnd::Length(_) | BodyEnd::Chunked => BodyEnd::Chunked,
    };
    head.header.remove_header(&header::CONTENT_LENGTH);
    head.header.insert_header(header::CONTENT_TYPE, HeaderValue::from_static(content_type))
}
