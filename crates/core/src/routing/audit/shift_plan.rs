//! The context shift in a dry run: the number of messages that a request would lose before any
//! backend is sent it, and the backend for the remainder. Decides with the same functions as the
//! proxy. Contexts that engines reported in refusals count like declared ones.

use penstock_api::{ErrorCode, Operation};
use penstock_dialect::ShiftConversation;
use penstock_scan::{ScanOptions, scan};

use super::dry_run::{ContextShiftReport, DryRun, DryRunOutcome, DryRunReport, DryRunRequest};
use crate::fleet::BackendSet;
use crate::routing::context_shift::{ShiftTerms, forbids_shift};
use crate::routing::{RandomSource, SplitPoint};

/// Errors that say nothing about the length of a request.
const OTHER_ERRORS: [ErrorCode; 4] = [
    ErrorCode::AllBackendsBusy,
    ErrorCode::BackendsCoolingDown,
    ErrorCode::ModelNotFound,
    ErrorCode::DiscoveryPending,
];

impl DryRun<'_> {
    /// Explains a request as [`DryRun::explain`] does. If only a shortened request fits, explains
    /// the shortened request; `context_shift` says what it loses.
    pub fn explain_with_shift(
        &self,
        sample: &DryRunRequest,
        random: &mut impl RandomSource,
    ) -> DryRunReport {
        let whole = self.explain(sample, random);
        let may_be_too_long = match &whole.outcome {
            DryRunOutcome::Refused { error, .. } => {
                OTHER_ERRORS.iter().all(|other| error.code != other.row().name)
            }
            DryRunOutcome::Decided { .. } => false,
        };
        let Some(plan) = ShiftPlan::of(self, sample).filter(|_| may_be_too_long) else {
            return whole;
        };
        let shorter = DryRunRequest { body: plan.body, ..sample.clone() };
        DryRunReport {
            context_shift: Some(ContextShiftReport {
                dropped_messages: plan.dropped,
                whole_prompt_tokens: plan.whole_tokens,
            }),
            ..self.explain(&shorter, random)
        }
    }
}

/// The plan for a shortened request.
struct ShiftPlan {
    body: Vec<u8>,
    dropped: u32,
    /// The estimated tokens of the whole prompt.
    whole_tokens: u32,
}

impl ShiftPlan {
    fn of(dry_run: &DryRun<'_>, sample: &DryRunRequest) -> Option<Self> {
        let DryRun { config, router, topology, now, .. } = *dry_run;
        let path = sample.path.split_once('?').map_or(&*sample.path, |(path, _)| path);
        let operation = Operation::from_path(path)?;
        let options = ScanOptions { estimate: config.routing.token_estimate, arrived_at: now };
        let body = &*sample.body;
        let profile = scan(operation, sample.header("content-type"), body, options).ok()?;
        let requested = router.requested_model(&profile, body, topology).ok()?;
        let target = router.names.resolve(&requested.name, topology, SplitPoint::default());
        let model = topology.model_named(target)?;
        let client = dry_run.client(sample);
        let of_client = client.and_then(|client| client.context_shift);
        let terms = ShiftTerms {
            operation,
            model: config.models.get(&model.name),
            of_client,
            context: profile.context_length,
        };
        let headers = sample.headers.iter().map(|(name, value)| (&**name, value.as_bytes()));
        let shift = terms.shift().filter(|_| !forbids_shift(headers))?;
        let estimated = profile.prompt_tokens.0;
        let to_fit = router.tokens_to_fit(&profile).0;
        let none = BackendSet::default();
        let target = shift.target(model.serving.iter(), &none, estimated, to_fit)?;
        let conversation = ShiftConversation::read(operation, body)?;
        let cut = conversation.shift(conversation.share(target, estimated), false)?;
        Some(Self { body: cut.apply(body), dropped: cut.dropped(), whole_tokens: estimated })
    }
}
