//! Dry runs: the needs of a request, the backends that may take it, and the backend that would get
//! it. Runs the same scan and the same router as the proxy; `penstock explain` and the admin port's
//! `/explain` print the result.

mod ensemble;
mod report;
mod request;
mod text;

pub(super) use report::DecisionReport;
pub use report::{
    BudgetVerdict, ContextShiftReport, DryRunError, DryRunOutcome, DryRunReport, sorted_json,
};
pub use request::{DEFAULT_PATH, DryRunRequest, DryRunRequestError};
pub(super) use text::candidate_text;

use std::sync::Arc;

use http::header::HeaderName;
use penstock_api::content_coding::ContentCoding;
use penstock_api::units::Timestamp;
use penstock_api::{ErrorCode, Operation};
use penstock_config::Config;
use penstock_scan::{RequestProfile, ScanOptions, scan};
use penstock_scoring::{Objectives, Profile};
use rand::Rng;

use self::report::{PolicyReport, SessionReport, SplitBranch, SplitReport};
use super::explain::{CandidateReport, Explanation};
use crate::clients::{ClientIdentity, KeyTable};
use crate::fleet::{BackendId, BackendSet, Probe, Requester, Topology};
use crate::prefix::{Chain, prompt_chain};
use crate::routing::{
    EnsemblePlan, ModelAsked, PolicyClient, PolicyScope, PolicyWishes, RandomSource, Restriction,
    RouteInput, RoutedSession, Router, RoutingDecision, SessionHomes, SessionIds, SessionNames,
    Split, SplitPoint, Weighted, read_objectives,
};

/// The context of dry runs.
#[derive(Debug, Clone, Copy)]
pub struct DryRun<'a> {
    pub config: &'a Config,
    pub router: &'a Router,
    /// The fleet it decides over.
    pub topology: &'a Topology,
    /// The time of the decision.
    pub now: Timestamp,
    /// If set, the prefix index learns the destination as if the request were sent: for a series of
    /// requests over a private fleet.
    pub records_prompts: bool,
    /// The homes of sessions; `None` outside of a running process.
    pub homes: Option<&'a SessionHomes>,
    /// The keys of `auth.store`, if they are known.
    pub stored: Option<&'a KeyTable>,
    /// The client of a key or token that a running process knows.
    pub client: Option<&'a Arc<ClientIdentity>>,
}

impl DryRun<'_> {
    /// Decides about a request as the proxy would and explains the decision; that about an ensemble
    /// is the decision of its final call. Client keys are not checked.
    pub fn explain(&self, sample: &DryRunRequest, random: &mut impl RandomSource) -> DryRunReport {
        self.report(sample, random).unwrap_or_else(DryRunReport::from)
    }

    fn report(
        &self,
        sample: &DryRunRequest,
        random: &mut impl RandomSource,
    ) -> Result<DryRunReport, DryRunError> {
        let Self { config, router, topology, now, .. } = *self;
        let operation = check_head(config, sample)?;
        let options = ScanOptions { estimate: config.routing.token_estimate, arrived_at: now };
        let body = &*sample.body;
        let profile = scan(operation, sample.header("content-type"), body, options)
            .map_err(|error| DryRunError::new(error.code(), error))?;
        let requested = router
            .requested_model(&profile, body, topology)
            .map_err(|error| DryRunError::new(error.code(), error))?;
        let plan = EnsemblePlan::of(config, &router.names, topology, &requested.name);
        let model = plan.as_ref().map_or(&*requested.name, |plan| &*plan.model);
        let session = self.session(sample, &profile);
        // The calls of an ensemble go to several backends by design.
        let home = session.filter(|_| plan.is_none()).and_then(|session| self.home(session));
        let point = self.split_point(sample, model, session, random);
        let target = router.names.resolve(model, topology, point);
        let objectives = self.objectives(sample, target)?;
        let prompt = self.prompt(&profile, body, target);
        let asked = ModelAsked { name: &requested.name, fleet: topology, split: point };
        let policy = self.policy(sample, &asked)?;
        // The drafts of other models have the client's prompt, too.
        let of_final = || router.also_under(&policy, &ModelAsked { name: model, ..asked });
        let policy = plan.as_ref().map_or(policy, |_| of_final());
        let input = RouteInput {
            request: &profile,
            model,
            split: point,
            tokens: router.tokens_to_fit(&profile),
            fleet: topology,
            tried: &BackendSet::default(),
            may_probe: true,
            waited: None,
            now,
            prompt: Some(&prompt),
            session: session.map(|it| RoutedSession { id: it.root, home: home.flatten() }),
            // The client is unknown.
            requester: Requester::default(),
            objectives,
            policy,
        };
        let calls = plan.as_ref().map(|plan| self.ensemble(plan, &input, random));
        let requirements = Some(profile.to_requirements(&requested.name));
        let mut ensemble = match calls.transpose() {
            Ok(ensemble) => ensemble,
            Err(error) => return Ok(DryRunReport { requirements, ..error.into() }),
        };
        let outcome = self.outcome(&input, random);
        let last = ensemble.as_mut().and_then(|plan| plan.calls.last_mut());
        if let (Some(last), DryRunOutcome::Decided { decision }) = (last, &outcome) {
            last.backend.clone_from(&decision.backend);
        }
        let split = router.names.split(model, topology);
        Ok(DryRunReport {
            requirements,
            objectives: Some(objectives).filter(|one| *one != Objectives::default()),
            policy: self.policy_report(&policy),
            budgets: Vec::new(),
            context_shift: None,
            split: split.map(|split| SplitReport::of(split, target)),
            session: home.map(|home| self.session_report(home)),
            ensemble,
            outcome,
        })
    }

    /// Returns the blocks of the prompt, if the strategy reads them.
    fn prompt(&self, profile: &RequestProfile, body: &[u8], target: &str) -> Chain {
        let mut prompt = Chain::default();
        if let Some(weighted) = self.router.weighted() {
            let params = weighted.prefix_params(self.topology, target);
            prompt_chain(profile, body, target, params, &mut prompt);
        }
        prompt
    }

    fn outcome(&self, input: &RouteInput<'_>, random: &mut impl RandomSource) -> DryRunOutcome {
        let Self { config, router, topology, .. } = *self;
        let Explanation { result, candidates } = router.explain(input, random);
        if let (Ok(decision), Some(weighted), Some(prompt), true) =
            (&result, router.weighted(), input.prompt, self.records_prompts)
        {
            // The next request of the series then finds this prompt cached, as it would there.
            weighted.record(topology, decision, prompt);
        }
        match result {
            Ok(decision) => {
                DryRunOutcome::Decided { decision: self.decision_report(&decision, candidates) }
            }
            Err(error) => {
                // The proxy would keep such a request in its queue; nothing waits here.
                let waits = error.may_pass() && config.queue.size > 0;
                let timeout_ms = u64::try_from(config.queue.timeout.as_millis());
                DryRunOutcome::Refused {
                    error: DryRunError::new(error.code(), &error),
                    candidates: Some(candidates),
                    queue_timeout_ms: waits.then_some(timeout_ms.unwrap_or(u64::MAX)),
                }
            }
        }
    }

    fn decision_report(
        &self,
        decision: &RoutingDecision,
        candidates: Vec<CandidateReport>,
    ) -> DecisionReport {
        let Self { router, topology, now, .. } = *self;
        let serving = decision.serving(topology);
        let model = topology.model(decision.model);
        let name = model.map(|model| &*model.name);
        let upstream = serving.and_then(|serving| serving.upstream_id.as_deref()).or(name);
        let reason = model.and_then(|model| router.chosen_strategy(model, now).reason);
        let weighted = router.weighted_in(decision.strategy);
        let profile = weighted.map(Weighted::profile);
        let weights = |profile: &Profile| {
            profile.weights().map(|(name, part)| (name.to_owned(), part)).collect()
        };
        DecisionReport {
            backend: serving.map(|serving| serving.state.name.to_string()),
            model: name.map(str::to_owned),
            upstream_model: upstream.map(str::to_owned),
            fallback: decision.is_fallback,
            assumed: decision.is_assumed,
            below_tier: decision.is_below_tier,
            next_probe: decision.probe == Probe::Cooldown,
            strategy: decision.strategy.name().to_owned(),
            preset: weighted.and_then(Weighted::preset).map(str::to_owned),
            strategy_reason: reason.map(str::to_owned),
            weights: profile.map(weights),
            picker: profile.map(|profile| profile.picker().name().to_owned()),
            candidates,
        }
    }

    /// Returns the point that selects the model if `model` is an alias of several: from the headers
    /// of the request, else random.
    fn split_point(
        &self,
        sample: &DryRunRequest,
        model: &str,
        session: Option<SessionIds>,
        random: &mut impl RandomSource,
    ) -> SplitPoint {
        let Self { router, topology, .. } = *self;
        if router.names.split(model, topology).is_none() {
            // Without a split nothing is drawn: random picks draw from the same numbers.
            return SplitPoint::default();
        }
        let id = random.rng().random::<u64>().to_le_bytes();
        let client = self.client(sample);
        router.split_point(session, client.as_ref().map(|client| &*client.id), &id)
    }

    /// Returns the objectives of a request, from its headers, its key and its model.
    fn objectives(&self, sample: &DryRunRequest, model: &str) -> Result<Objectives, DryRunError> {
        let field = |name: &HeaderName| sample.header(name.as_str()).map(str::as_bytes).into_iter();
        let model = self.topology.model_named(model).map_or(model, |model| &*model.name);
        let client = self.client(sample);
        read_objectives(self.config, field, client.as_deref(), model)
            .map_err(|error| DryRunError::new(ErrorCode::InvalidRequest, error))
    }

    /// Returns the policies that a request is under.
    ///
    /// # Errors
    /// When it wishes what its client may not have.
    pub fn policy(
        &self,
        sample: &DryRunRequest,
        asked: &ModelAsked<'_>,
    ) -> Result<PolicyScope, DryRunError> {
        let client = self.client(sample);
        let field = |name: &HeaderName| sample.header(name.as_str()).map(str::as_bytes).into_iter();
        PolicyWishes::read(field)
            .and_then(|wishes| {
                self.router.policy_of(asked, &PolicyClient::of(client.as_deref()), &wishes)
            })
            .map_err(|error| DryRunError::new(ErrorCode::InvalidRequest, error))
    }

    /// Returns the report of the policies that a request is under; `None` if it may go anywhere.
    fn policy_report(&self, scope: &PolicyScope) -> Option<PolicyReport> {
        let name = scope.policy.and_then(|position| self.router.policies.name(position));
        let Restriction { zones, tier, preferred_tier, .. } = scope.restriction;
        let is_under_any = name.is_some() || scope.restriction != Restriction::default();
        let names = || self.topology.zones.names_in(zones).map(str::to_owned).collect();
        is_under_any.then(|| PolicyReport {
            name: name.map(str::to_owned),
            zones: zones.restricts().then(names),
            tier: tier.number(),
            preferred_tier: preferred_tier.number(),
        })
    }

    /// Returns the session that a request names, if decisions read it.
    fn session(&self, sample: &DryRunRequest, profile: &RequestProfile) -> Option<SessionIds> {
        let headers = |name: &str| sample.header(name).map(str::as_bytes).into_iter();
        let body = profile.session.of(&sample.body);
        let client = self.client(sample);
        let key = client.as_ref().map(|client| &*client.id);
        self.router.session(&SessionNames { headers, body, key })
    }

    /// Returns the home of a session, `Some(None)` if it has none; `None` if homes are unknown.
    fn home(&self, session: SessionIds) -> Option<Option<BackendId>> {
        let homes = self.homes.filter(|_| self.router.weighted().is_some())?;
        Some(homes.find(session, self.now))
    }

    fn session_report(&self, home: Option<BackendId>) -> SessionReport {
        let mut backends = self.topology.backends.iter();
        let home = home.and_then(|home| backends.find(|one| one.state.id == home));
        SessionReport { home: home.map(|backend| backend.state.name.to_string()) }
    }

    /// Returns the client of a request, by the key in its headers.
    pub fn client(&self, sample: &DryRunRequest) -> Option<Arc<ClientIdentity>> {
        let known = self.client.map(Arc::clone);
        known.or_else(|| sample.client(self.config, self.stored))
    }
}

impl SplitReport {
    /// The split of an alias, and the model that this request goes to.
    fn of(split: Split<'_>, model: &str) -> Self {
        let branches =
            split.branches().map(|(model, weight)| SplitBranch { model: model.to_owned(), weight });
        Self {
            alias: split.alias.to_owned(),
            model: model.to_owned(),
            branches: branches.collect(),
        }
    }
}

fn check_head(config: &Config, sample: &DryRunRequest) -> Result<Operation, DryRunError> {
    let path = sample.path.split_once('?').map_or(&*sample.path, |(path, _)| path);
    let Some(operation) = Operation::from_path(path) else {
        let message = format_args!("Unknown path: {}", path.escape_default());
        return Err(DryRunError::new(ErrorCode::UnknownPath, message));
    };
    // The body of a sample is already decoded, even if its headers come from a captured request.
    let encoding = sample.header("content-encoding").map(str::as_bytes);
    if let Err(error) = ContentCoding::of(encoding) {
        return Err(DryRunError::new(ErrorCode::UnsupportedEncoding, error));
    }
    let limit = config.limits.max_body_size;
    if sample.body.len() > limit.to_usize() {
        let message = format_args!("The body is larger than {limit} (limits.max_body_size)");
        return Err(DryRunError::new(ErrorCode::BodyTooLarge, message));
    }
    Ok(operation)
}

#[cfg(test)]
mod tests;
