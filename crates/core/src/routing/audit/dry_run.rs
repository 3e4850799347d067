//! Dry runs: the needs of a request, the backends that may take it, and the backend that would get
//! it. Runs the same scan and the same router as the proxy; `penstock explain` and the admin port's
//! `/explain` print the result.

mod ensemble;
mod request;
mod text;

pub use request::{DEFAULT_PATH, DryRunRequest, DryRunRequestError};
pub use text::render_text;
pub(super) use text::{candidate_lines, number, text};

use http::header::HeaderName;
use penstock_api::content_coding::ContentCoding;
use penstock_api::units::Timestamp;
use penstock_api::{ErrorCode, Operation};
use penstock_config::Config;
use penstock_scan::{RequestProfile, ScanOptions, scan};
use penstock_scoring::Objectives;
use rand::Rng;
use serde_json::{Map, Value, json};

use super::explain::CandidateReport;
use crate::fleet::{BackendId, BackendSet, Probe, Requester, Topology};
use crate::prefix::{Chain, prompt_chain};
use crate::routing::{
    EnsemblePlan, RandomSource, RouteInput, RoutedSession, Router, RoutingDecision, SessionHomes,
    SessionIds, SessionNames, Split, SplitPoint, read_objectives,
};

/// The context of dry runs.
#[derive(Debug, Clone, Copy)]
pub struct DryRun<'a> {
    /// Limits and estimates.
    pub config: &'a Config,
    /// The router that decides.
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
}

impl DryRun<'_> {
    /// Decides about a request as the proxy would and explains the decision: `{"requirements",
    /// "decision"}`, or `{"requirements"?, "error", "candidates"?}`, with `"queue_timeout_ms"` if
    /// it would wait for room instead. For an ensemble the plan is added, and the decision is that
    /// of its final call. Client keys are not checked.
    pub fn explain(&self, sample: &DryRunRequest, random: &mut impl RandomSource) -> Value {
        let Self { config, router, topology, now, .. } = *self;
        let operation = match check_head(config, sample) {
            Ok(operation) => operation,
            Err(error) => return json!({ "error": error }),
        };
        let options = ScanOptions { estimate: config.routing.token_estimate, arrived_at: now };
        let body = &*sample.body;
        let profile = match scan(operation, sample.header("content-type"), body, options) {
            Ok(profile) => profile,
            Err(error) => return json!({ "error": error_value(error.code(), &error.to_string()) }),
        };
        let requested = match router.requested_model(&profile, body, topology) {
            Ok(requested) => requested,
            Err(error) => return json!({ "error": error_value(error.code(), &error.to_string()) }),
        };
        let name = requested.name;
        let plan = EnsemblePlan::of(config, &router.names, topology, &name);
        let model = plan.as_ref().map_or(&*name, |plan| &*plan.model);
        let session = self.session(sample, &profile);
        // The calls of an ensemble go to several backends by design.
        let home = session.filter(|_| plan.is_none()).and_then(|session| self.home(session));
        let point = self.split_point(sample, (model, session), random);
        let target = router.names.resolve(model, topology, point);
        let split = router.names.split(model, topology).map(|split| split_value(split, target));
        let objectives = match objectives(config, sample, target) {
            Ok(objectives) => objectives,
            Err(error) => return json!({ "error": error }),
        };
        let prompt = self.prompt(&profile, body, target);
        let input = RouteInput {
            request: &profile,
            model,
            split: point,
            tokens: router.tokens_to_fit(&profile),
            fleet: topology,
            tried: &BackendSet::default(),
            may_probe: true,
            now,
            prompt: Some(&prompt),
            session: session.map(|it| RoutedSession { id: it.root, home: home.flatten() }),
            // The client is unknown.
            requester: Requester::default(),
            objectives,
        };
        let calls = plan.as_ref().map(|plan| self.ensemble(plan, (&profile, &prompt), random));
        if let Some(Err(error)) = calls {
            return json!({ "requirements": profile.to_requirements(&name), "error": error });
        }
        let mut value = self.decide_and_explain(&input, &name, random);
        let mut calls = calls.and_then(Result::ok);
        if let (Some(backend), Some(last)) = (
            value.pointer("/decision/backend").cloned(),
            calls.as_mut().and_then(|calls| calls.pointer_mut("/calls/6")),
        ) {
            ensemble::add(last, "backend", Some(backend));
        }
        ensemble::add(&mut value, "split", split);
        ensemble::add(&mut value, "ensemble", calls);
        ensemble::add(&mut value, "objectives", objectives_value(&objectives));
        ensemble::add(&mut value, "session", home.map(|home| self.session_value(home)));
        value
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

    /// Decides about a request; `name` is the model as the request names it.
    fn decide_and_explain(
        &self,
        input: &RouteInput<'_>,
        name: &str,
        random: &mut impl RandomSource,
    ) -> Value {
        let Self { config, router, topology, .. } = *self;
        let explanation = router.explain(input, random);
        if let (Ok(decision), Some(weighted), Some(prompt), true) =
            (&explanation.result, router.weighted(), input.prompt, self.records_prompts)
        {
            weighted.record(topology, decision, prompt);
        }
        let requirements = input.request.to_requirements(name);
        match explanation.result {
            Ok(decision) => json!({
                "requirements": requirements,
                "decision": decision_value(
                    router,
                    topology,
                    &decision,
                    &explanation.candidates,
                    input.now,
                ),
            }),
            Err(error) => {
                let mut value = json!({
                    "requirements": requirements,
                    "error": error_value(error.code(), &error.to_string()),
                    "candidates": explanation.candidates,
                });
                let waits = error.may_pass() && config.queue.size > 0;
                if let Some(fields) = value.as_object_mut().filter(|_| waits) {
                    let timeout = json!(config.queue.timeout.as_millis());
                    fields.insert("queue_timeout_ms".to_owned(), timeout);
                }
                value
            }
        }
    }

    /// Returns the point that selects the model if `model` is an alias of several: from the headers
    /// of the request, else random.
    fn split_point(
        &self,
        sample: &DryRunRequest,
        (model, session): (&str, Option<SessionIds>),
        random: &mut impl RandomSource,
    ) -> SplitPoint {
        let Self { router, topology, .. } = *self;
        if router.names.split(model, topology).is_none() {
            // Without a split nothing is drawn: random picks draw from the same numbers.
            return SplitPoint::default();
        }
        let id = random.rng().random::<u64>().to_le_bytes();
        router.split_point(session, self.key(sample), &id)
    }

    /// Returns the session that a request names, if decisions read it.
    fn session(&self, sample: &DryRunRequest, profile: &RequestProfile) -> Option<SessionIds> {
        let headers = |name: &str| sample.header(name).map(str::as_bytes).into_iter();
        let body = profile.session.of(&sample.body);
        self.router.session(&SessionNames { headers, body, key: self.key(sample) })
    }

    /// Returns the home of a session, `Some(None)` if it has none; `None` if homes are unknown.
    fn home(&self, session: SessionIds) -> Option<Option<BackendId>> {
        let homes = self.homes.filter(|_| self.router.weighted().is_some())?;
        Some(homes.find(session, self.now))
    }

    fn session_value(&self, home: Option<BackendId>) -> Value {
        let mut backends = self.topology.backends.iter();
        let home = home.and_then(|home| backends.find(|one| one.state.id == home));
        json!({ "home": home.map(|backend| &*backend.state.name) })
    }

    /// Returns the name of the client key of a request.
    fn key(&self, sample: &DryRunRequest) -> Option<&str> {
        let position = sample.client_key(self.config)?;
        self.config.auth.keys.get(position).map(|key| &*key.name)
    }
}

/// Returns the split of an alias, and the model that this request goes to.
fn split_value(split: Split<'_>, model: &str) -> Value {
    let branches =
        split.branches().map(|(model, weight)| json!({ "model": model, "weight": weight }));
    json!({ "alias": split.alias, "model": model, "branches": branches.collect::<Vec<_>>() })
}

/// Returns the objectives of the request, from its headers, its key and its model.
fn objectives(config: &Config, sample: &DryRunRequest, model: &str) -> Result<Objectives, Value> {
    let field = |name: &HeaderName| sample.header(name.as_str()).map(str::as_bytes).into_iter();
    read_objectives(config, field, sample.client_key(config), model)
        .map_err(|error| error_value(ErrorCode::InvalidRequest, &error.to_string()))
}

/// Returns the objectives; `None` for a request without any.
fn objectives_value(objectives: &Objectives) -> Option<Value> {
    let Objectives { ttft_ms, tpot_ms, priority } = *objectives;
    let value = json!({ "ttft_ms": ttft_ms, "tpot_ms": tpot_ms, "priority": priority });
    (*objectives != Objectives::default()).then_some(value)
}

/// Returns an error as `explain` shows it; also for requests that cannot be read.
pub fn error_value(code: ErrorCode, message: &str) -> Value {
    let row = code.row();
    json!({ "status": row.status, "code": row.name, "message": message })
}

fn check_head(config: &Config, sample: &DryRunRequest) -> Result<Operation, Value> {
    let path = sample.path.split_once('?').map_or(&*sample.path, |(path, _)| path);
    let Some(operation) = Operation::from_path(path) else {
        let message = format!("Unknown path: {}", path.escape_default());
        return Err(error_value(ErrorCode::UnknownPath, &message));
    };
    // The body of a sample is already decoded, even if its headers come from a captured request.
    let encoding = sample.header("content-encoding").map(str::as_bytes);
    if let Err(error) = ContentCoding::of(encoding) {
        return Err(error_value(ErrorCode::UnsupportedEncoding, &error.to_string()));
    }
    let limit = config.limits.max_body_size;
    if sample.body.len() > limit.to_usize() {
        let message = format!("The body is larger than {limit} (limits.max_body_size)");
        return Err(error_value(ErrorCode::BodyTooLarge, &message));
    }
    Ok(operation)
}

fn decision_value(
    router: &Router,
    topology: &Topology,
    decision: &RoutingDecision,
    candidates: &[CandidateReport],
    now: Timestamp,
) -> Value {
    let serving = decision.serving(topology);
    let model = topology.model(decision.model).map(|model| &*model.name);
    let mut value = json!({
        "backend": serving.map(|serving| &*serving.state.name),
        "model": model,
        "upstream_model": serving.and_then(|serving| serving.upstream_id.as_deref()).or(model),
        "fallback": decision.is_fallback,
        "assumed": decision.is_assumed,
        "next_probe": decision.probe == Probe::Cooldown,
        "strategy": decision.strategy.name(),
        "candidates": candidates,
    });
    let model = topology.model(decision.model);
    if let (Some(fields), Some(chosen)) =
        (value.as_object_mut(), model.and_then(|model| router.chosen_strategy(model, now)))
    {
        fields.insert("strategy_reason".to_owned(), json!(chosen.reason));
    }
    let weighted = router.weighted_in(decision.strategy);
    if let (Some(fields), Some(weighted)) = (value.as_object_mut(), weighted) {
        let weights = weighted.profile().weights();
        let weights: Map<String, Value> =
            weights.map(|(name, part)| (name.to_owned(), json!(part))).collect();
        fields.insert("weights".to_owned(), weights.into());
        fields.insert("picker".to_owned(), json!(weighted.profile().picker().name()));
    }
    value
}

#[cfg(test)]
mod tests;
