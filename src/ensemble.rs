//! Ensembles: a request for `moe-MODEL` becomes three drafts, a critique of each, and a final
//! request made of them. The calls before the final one are requests like others, each with its own
//! decision, permit, retries and record; only their responses are held instead of relayed. The
//! final one goes the usual way. A call that fails is left out; one draft is enough. All run in the
//! client's task, so that they end when the client leaves.

mod call;
mod gathered;
mod stage;

use std::sync::Arc;

use bytes::Bytes;
use penstock_api::units::Timestamp;
use penstock_api::{ErrorCode, Operation};
use penstock_clock::now;
use penstock_core::fleet::Outcome;
use penstock_core::routing::{EnsembleCall, EnsemblePlan, EnsembleStage};
use penstock_dialect::{EnsembleRequest, critique_body};
use penstock_scan::{RequestProfile, ScanOptions, scan};

use crate::downstream::body::{BodyClaim, HeldBody};
use crate::ensemble::call::{CallReport, FailedCall, RunningCall};
use crate::ensemble::stage::{StageEnd, run_stage};
use crate::proxy::admission::admit;
use crate::proxy::attempt::HeldText;
use crate::proxy::ensemble_slots::EnsembleEnd;
use crate::proxy::failure::OwnError;
use crate::proxy::flow::{Flow, RequestContext, Served};
use crate::proxy::own_response::{send_error, send_held};
use crate::proxy::request::{Named, ScannedRequest, scan_error};
use crate::proxy::retry::serve;
use crate::proxy::{Proxy, policies};
use penstock_core::routing::EnsembleParts;

/// The plan of a request for a model, if that is an ensemble.
pub(crate) fn plan_of(ctx: &RequestContext, model: &str) -> Option<EnsemblePlan> {
    let fleet = ctx.generation.fleet.topology();
    EnsemblePlan::of(&ctx.generation.config, &ctx.generation.router.names, &fleet, model)
}

/// Makes the calls of an ensemble, and serves the final request that is made of them.
pub(crate) async fn serve_ensemble(
    flow: &mut Flow<'_>,
    plan: EnsemblePlan,
    named: Named,
    body: HeldBody,
) -> Served {
    let name = Arc::clone(&named.model);
    flow.ctx.record.request.requested_model = Some(Arc::clone(&name));
    flow.ctx.record.request.is_streaming = named.profile.streaming;
    flow.ctx.record.request.ensemble = Some(EnsembleCall::FINAL);
    let operation = named.profile.operation;
    // A reference to the same bytes, which the calls are made of.
    let original = body.bytes.clone();
    let source = match EnsembleRequest::read(operation, &original) {
        Ok(source) => source,
        Err(error) => {
            let own = OwnError::new(ErrorCode::InvalidRequest, error.to_string());
            return send_error(flow, own.about(error.field())).await;
        }
    };
    let headers = &flow.client.head().headers;
    let names = [&*name, &*plan.model];
    if let Err(error) = policies::admit_ensemble(flow.ctx, headers, names) {
        return send_error(flow, error).await;
    }
    let slot = match flow.proxy.ensembles.take(flow.ctx) {
        Ok(slot) => slot,
        Err(error) => {
            flow.proxy.ensembles.figures.count(EnsembleEnd::Refused);
            return send_error(flow, error).await;
        }
    };
    let ensemble = Ensemble { proxy: flow.proxy, plan, operation, source };
    let served = match ensemble.gather(flow).await {
        Ok(GatheredParts { prompt, parts }) => {
            flow.ctx.record.edits.ensemble_parts = Some(parts);
            match ensemble.final_request(flow, &prompt).await {
                Ok(request) => {
                    flow.ctx.record.request.requested_model = Some(name);
                    // The prompt is part of that request now.
                    drop(prompt);
                    serve(flow, request).await
                }
                Err(error) => send_error(flow, error).await,
            }
        }
        Err(DraftFailure::ClientGone) => flow.ctx.end_cancelled(),
        Err(DraftFailure::Failed(FailedCall::Own(error))) => send_error(flow, error).await,
        Err(DraftFailure::Failed(FailedCall::Held(held, outcome))) => {
            flow.ctx.record.response.outcome = Some(outcome);
            send_held(flow, held).await
        }
    };
    flow.proxy.ensembles.figures.count(end_of(flow.ctx));
    // Not before the final response has been sent: the limit is on whole ensembles.
    drop(slot);
    served
}

fn end_of(ctx: &RequestContext) -> EnsembleEnd {
    match (ctx.record.response.outcome, ctx.record.response.status) {
        (Some(Outcome::Cancel), _) => EnsembleEnd::Cancelled,
        (None | Some(Outcome::Ok), 200..=299) if ctx.record.response.code.is_none() => {
            EnsembleEnd::Served
        }
        _ => EnsembleEnd::Failed,
    }
}

/// The reason why there is no draft for a final request.
enum DraftFailure {
    ClientGone,
    /// The failure of the last draft.
    Failed(FailedCall),
}

/// The result of the drafts and critiques.
struct GatheredParts {
    prompt: String,
    parts: EnsembleParts,
}

/// A draft, with its critique if there is one.
struct CritiquedDraft {
    draft: HeldText,
    critique: Option<HeldText>,
}

struct Ensemble<'a> {
    proxy: &'a Proxy,
    plan: EnsemblePlan,
    operation: Operation,
    source: EnsembleRequest<'a>,
}

impl Ensemble<'_> {
    /// Makes all calls before the final one.
    async fn gather(&self, flow: &Flow<'_>) -> Result<GatheredParts, DraftFailure> {
        let mut parts = EnsembleParts::default();
        let drafts = self.run(flow, EnsembleStage::Draft, |ensemble, call, _| {
            Some((ensemble.operation, ensemble.source.draft(ensemble.plan.member(call))))
        });
        let (drafts, last_failure) = sum(drafts.await?, &mut parts);
        parts.drafts = drafts.len();
        if drafts.is_empty() {
            // A stage without a response has a failure.
            let none = || FailedCall::Own(OwnError::new(ErrorCode::InternalError, "No draft"));
            return Err(DraftFailure::Failed(last_failure.unwrap_or_else(none)));
        }
        let config = &flow.ctx.generation.config.ensembles;
        let critiques = self.run(flow, EnsembleStage::Critique, |ensemble, call, number| {
            let (_, draft) = drafts.get(number)?;
            let place = (number + 1).to_string();
            let values = [
                ("query", ensemble.source.query()),
                ("number", &*place),
                ("response", &*draft.text),
            ];
            let model = ensemble.plan.member(call);
            Some((
                Operation::Chat,
                critique_body(model, &config.critique_prompt.fill(&values), config.critique_tokens),
            ))
        });
        let (mut critiques, _) = sum(critiques.await?, &mut parts);
        parts.critiques = critiques.len();
        let candidates = (1_u8..).zip(drafts).map(|(number, (_, draft))| {
            let of = critiques.iter().position(|(call, _)| call.number == number);
            CritiquedDraft { draft, critique: of.map(|at| critiques.swap_remove(at).1) }
        });
        let candidates = candidates_text(&candidates.collect::<Vec<_>>());
        let values = [("query", self.source.query()), ("candidates", &*candidates)];
        let prompt = config.final_prompt.fill(&values);
        Ok(GatheredParts { prompt, parts })
    }

    /// Makes the calls of a stage for which `body` returns one.
    async fn run(
        &self,
        flow: &Flow<'_>,
        stage: EnsembleStage,
        body: impl Fn(&Self, EnsembleCall, usize) -> Option<(Operation, Vec<u8>)>,
    ) -> Result<Vec<CallReport>, DraftFailure> {
        let stage_end = stage_end(flow.ctx);
        let of_stage = EnsemblePlan::calls().filter(|call| call.stage == stage);
        let (mut calls, mut reports) = (Vec::new(), Vec::new());
        for (number, call) in of_stage.enumerate() {
            let Some((operation, bytes)) = body(self, call, number) else { continue };
            let model = self.plan.member(call).into();
            let prepared = match self.held(flow.ctx, operation, bytes.into()) {
                Ok((profile, held)) => {
                    let named = Named { profile, model, inserts_model: false };
                    Box::pin(RunningCall::new(flow, call, named, held, stage_end)).await
                }
                Err(error) => Err(error),
            };
            match prepared {
                Ok(call) => calls.push(call),
                Err(error) => reports.push(CallReport::failed(call, FailedCall::Own(error))),
            }
        }
        match run_stage(flow, calls).await {
            StageEnd::ClientGone => Err(DraftFailure::ClientGone),
            StageEnd::Done(mut done) => {
                reports.append(&mut done);
                // Those of calls that could not start were made first.
                reports.sort_by_key(|report| report.call.number);
                for report in &reports {
                    self.proxy.ensembles.figures.count_call(stage, report.text.is_ok());
                }
                Ok(reports)
            }
        }
    }

    /// Makes the request whose response the client gets.
    async fn final_request(
        &self,
        flow: &mut Flow<'_>,
        prompt: &str,
    ) -> Result<Box<ScannedRequest>, OwnError> {
        let bytes = self.source.with_prompt(&self.plan.model, prompt);
        let (profile, held) = self.held(flow.ctx, self.operation, bytes.into())?;
        let model = self.plan.model.as_str().into();
        let named = Named { profile, model, inserts_model: false };
        admit(flow, named, held).await
    }

    /// Scans a body, and takes memory for it.
    fn held(
        &self,
        ctx: &RequestContext,
        operation: Operation,
        bytes: Bytes,
    ) -> Result<(RequestProfile, HeldBody), OwnError> {
        let config = &ctx.generation.config;
        let limit = config.limits.buffered_bodies.to_usize();
        let _claim = BodyClaim::take(&self.proxy.bodies, bytes.len(), limit).ok_or_else(|| {
            OwnError::new(ErrorCode::BodyMemoryFull, "No memory for the calls of the ensemble")
        })?;
        let options =
            ScanOptions { estimate: config.routing.token_estimate, arrived_at: ctx.arrived_at };
        let profile = scan(operation, Some("application/json"), &bytes, options);
        let profile = profile.map_err(|error| scan_error(&error))?;
        Ok((profile, HeldBody { bytes, _claim }))
    }
}

/// The time by which the calls of a stage that starts now must end.
fn stage_end(ctx: &RequestContext) -> Timestamp {
    let config = &ctx.generation.config;
    let end = now().after(config.ensembles.stage_timeout);
    let total = config.timeouts.total.map(|limit| ctx.arrived_at.after(limit));
    total.map_or(end, |total| total.min(end))
}

/// Returns the texts and the last failure, and adds the tokens to `parts`.
fn sum(
    reports: Vec<CallReport>,
    parts: &mut EnsembleParts,
) -> (Vec<(EnsembleCall, HeldText)>, Option<FailedCall>) {
    let (mut texts, mut last_failure) = (Vec::new(), None);
    for CallReport { call, text, usage } in reports {
        parts.input_tokens += usage.and_then(|usage| usage.prompt_tokens).map_or(0, u64::from);
        parts.output_tokens += usage.and_then(|usage| usage.completion_tokens).map_or(0, u64::from);
        match text {
            Ok(text) => texts.push((call, text)),
            Err(failure) => last_failure = Some(failure),
        }
    }
    (texts, last_failure)
}

fn candidates_text(candidates: &[CritiquedDraft]) -> String {
    let blocks =
        candidates.iter().enumerate().map(|(index, CritiquedDraft { draft, critique })| {
            let number = index + 1;
            let block = format!("<candidate_{number}>\n{}\n</candidate_{number}>", draft.text);
            match critique {
                Some(HeldText { text: critique, .. }) => {
                    format!("{block}\n<review_{number}>\n{critique}\n</review_{number}>")
                }
                None => block,
            }
        });
    blocks.collect::<Vec<_>>().join("\n\n")
}
