//! The fields that few responses have, such as the decision, changes to the request, and the
//! ensemble behind it.

use std::fmt::Write as _;

use http::header::HeaderName;
use penstock_api::{Operation, TIMING};
use penstock_core::routing::{
    CONTEXT_SHIFT, EditFacts, EnsembleParts, ModelAsked, RoutingDecision,
};
use penstock_predict::Prediction;
use pingora::http::ResponseHeader;

use crate::proxy::attempt::Attempt;
use crate::proxy::flow::{Flow, RequestContext};
use crate::proxy::own_response::DECISION;
use crate::proxy::request::{RequestView, ScannedRequest};
use crate::upstream::relay::ServerTiming;

/// The tier of a backend that is below the one that the request's policy prefers.
const TIER: HeaderName = HeaderName::from_static("x-penstock-tier");
const BACKEND: HeaderName = HeaderName::from_static("x-penstock-backend");
const ENSEMBLE: HeaderName = HeaderName::from_static("x-penstock-ensemble");
/// The capabilities removed from the request because a model lacks them.
const RETRIED_WITHOUT: HeaderName = HeaderName::from_static("x-penstock-retried-without");

/// Adds the backend and the decision for it.
pub(super) fn add_decision(
    header: &mut ResponseHeader,
    RequestView { ctx, request }: RequestView<'_>,
    attempt: &Attempt<'_>,
) -> pingora::Result<()> {
    header.insert_header(BACKEND, &*attempt.serving.state.name)?;
    if let Some(decision) = &request.decision {
        header.insert_header(DECISION, decision_text(ctx, decision, attempt))?;
    }
    Ok(())
}

/// The decision and its prediction, as `x-penstock-decision` carries them.
fn decision_text(
    ctx: &RequestContext,
    decision: &RoutingDecision,
    attempt: &Attempt<'_>,
) -> String {
    let mut text = format!(
        "{};candidates={};attempt={}{}{}{}{}{}",
        decision.strategy.name(),
        decision.candidates,
        ctx.record.routing.attempts,
        if decision.is_fallback { ";fallback" } else { "" },
        if decision.is_assumed { ";assumed" } else { "" },
        if decision.is_below_tier { ";below_tier" } else { "" },
        if attempt.conversion.is_some() { ";converted=" } else { "" },
        attempt.converted_to().map_or("", Operation::name),
    );
    if let Some(name) = &ctx.record.routing.policy {
        text += &format!(";policy={name}");
    }
    if let Some(weighted) = ctx.generation.router.weighted() {
        text.extend(decision.scores.map(|scores| weighted.to_text(&scores)));
    }
    if let Some(Prediction { ttft_us: ttft, ttft_p90_us: ttft_p90, tpot_us: tpot, .. }) =
        ctx.record.routing.prediction
    {
        let [ttft, ttft_p90, tpot] = [ttft, ttft_p90, tpot].map(|micros| micros / 1000.0);
        text += &format!(";ttft-ms={ttft:.0};ttft-p90-ms={ttft_p90:.0};tpot-ms={tpot:.1}");
    }
    text
}

/// Adds the tier of a backend that is below the one that policies prefer for the model it serves.
pub(super) fn add_tier(
    header: &mut ResponseHeader,
    RequestView { ctx, request }: RequestView<'_>,
    decision: &RoutingDecision,
) -> pingora::Result<()> {
    let ScannedRequest { fleet, split, policy, .. } = request;
    let fallback = fleet.model(decision.model).filter(|_| decision.is_fallback);
    let policy = fallback.map_or(*policy, |model| {
        let asked = ModelAsked { name: &model.name, fleet, split: *split };
        ctx.generation.router.also_under(policy, &asked)
    });
    let least = policy.restriction.preferred_tier.number();
    let own = decision.serving(fleet).map_or(0, |serving| serving.tier.number());
    header.insert_header(TIER, format!("{own};min={least}"))
}

/// Adds fields for the changes to the request, and for the ensemble behind it.
pub(crate) fn add_edits(header: &mut ResponseHeader, edits: &EditFacts) -> pingora::Result<()> {
    if let Some(dropped) = edits.dropped_messages {
        header.insert_header(CONTEXT_SHIFT, format!("dropped={dropped}"))?;
    }
    if let Some(parts) = edits.ensemble_parts {
        header.insert_header(ENSEMBLE, ensemble_text(parts))?;
    }
    if !edits.retried_without.is_empty() {
        let names: Vec<&str> = edits.retried_without.names().collect();
        header.insert_header(RETRIED_WITHOUT, names.join(", "))?;
    }
    Ok(())
}

/// The counts behind an ensemble's response, as a field carries them.
fn ensemble_text(parts: EnsembleParts) -> String {
    let EnsembleParts { drafts, critiques, input_tokens, output_tokens } = parts;
    format!(
        "drafts={drafts};critiques={critiques};input_tokens={input_tokens};output_tokens={output_tokens}"
    )
}

/// `server-timing` as known before the first token, if the client requests it: the wait in the
/// queue, and the prediction.
pub(super) fn requested_timing(flow: &Flow<'_>) -> Option<ServerTiming> {
    if !flow.client.head().headers.contains_key(&TIMING) {
        return None;
    }
    let mut known = String::new();
    if let Some(wait) = flow.ctx.record.queue.wait {
        add_metric(&mut known, "queue", wait.as_secs_f64() * 1000.0);
    }
    if let Some(predicted) = &flow.ctx.record.routing.prediction {
        add_metric(&mut known, "predicted-ttft", predicted.ttft_us / 1000.0);
        add_metric(&mut known, "predicted-ttft-p90", predicted.ttft_p90_us / 1000.0);
        add_metric(&mut known, "predicted-tpot", predicted.tpot_us / 1000.0);
        add_metric(&mut known, "predicted-tpot-p90", predicted.tpot_p90_us / 1000.0);
    }
    Some(ServerTiming { since: flow.ctx.arrived_at, known })
}

fn add_metric(metrics: &mut String, name: &str, millis: f64) {
    // Writing to a string does not fail.
    let _written = write!(metrics, "{name};dur={millis:.1}, ");
}
