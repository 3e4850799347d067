//! Decisions as a whole, over fleets built from configurations as users write them. Each concern
//! has its file; names alone are tested in `resolve`, the formula in `smart`.

mod allocations;
mod auto;
mod cached_predictions;
mod captures;
mod deployment;
mod errors;
mod explanations;
mod fallbacks;
mod filtering;
mod live_fleet;
mod openings;
mod policies;
mod policy_bounds;
mod reserve;
mod strategies;
mod sweep;
mod weighted;
mod work_limit;

use std::path::Path;

use penstock_api::units::{ByteSpan, Timestamp, TokenCount};
use penstock_api::{Capabilities, Operation};
use penstock_config::{Config, Environment};
use penstock_scan::{ModelForm, PromptLimit, PromptPlaces, RequestProfile, StoredIds};
use penstock_scoring::Objectives;
use rand::SeedableRng;
use rand::rngs::SmallRng;

use super::{
    Live, ModelAsked, NoRecord, PolicyClient, PolicyWishes, RouteError, RouteInput, Router,
    RoutingDecision, Scratch, Waited,
};
use crate::fleet::{
    BackendSet, Fleet as LiveFleet, Health, Owner, Requester, SharedBackend, Topology,
};

/// A moment with room before and after it.
const NOW: Timestamp = Timestamp(1_000_000_000);

/// The request of a test; `TestRequest::of` is a plain chat request.
#[derive(Debug, Clone, Copy)]
pub(super) struct TestRequest<'a> {
    model: &'a str,
    needs: Capabilities,
    tokens: u32,
    max_tokens: Option<u32>,
    cut_to: Option<TokenCount>,
    context_length: Option<TokenCount>,
    operation: Operation,
    streaming: bool,
    objectives: Objectives,
    owner: Owner,
    client: PolicyClient<'a>,
    wishes: PolicyWishes<'a>,
    waited: Option<Waited>,
}

impl<'a> TestRequest<'a> {
    pub(super) fn of(model: &'a str) -> Self {
        Self {
            model,
            needs: Capabilities::NONE,
            tokens: 10,
            max_tokens: None,
            cut_to: None,
            context_length: None,
            operation: Operation::Chat,
            streaming: false,
            objectives: Objectives::default(),
            owner: Owner::default(),
            client: PolicyClient::default(),
            wishes: PolicyWishes::default(),
            waited: None,
        }
    }

    pub(super) fn profile(&self) -> RequestProfile {
        RequestProfile {
            arrived_at: NOW,
            operation: self.operation,
            dialect: self.operation.row().dialect,
            model: ByteSpan::default(),
            names_further_models: false,
            model_form: ModelForm::Plain,
            streaming: self.streaming,
            estimated_tokens: TokenCount(self.tokens),
            prompt_tokens: TokenCount(self.tokens),
            outside_context: TokenCount::default(),
            cut_to: self.cut_to,
            max_tokens: self.max_tokens.map(TokenCount),
            context_length: self.context_length,
            residency_change: None,
            usage_edit: None,
            needs: self.needs,
            prompt: PromptPlaces::default(),
            stored: StoredIds::default(),
            output_limit: self.max_tokens.map(TokenCount),
            choices: 1,
            prompt_limit: PromptLimit::default(),
            session: ByteSpan::default(),
        }
    }
}

/// A fleet and its router, used by one test alone.
pub(super) struct Fleet {
    pub(super) live: LiveFleet,
    pub(super) router: Router,
    rng: SmallRng,
    scratch: Scratch,
    pub(super) tried: BackendSet,
    now: Timestamp,
}

impl Fleet {
    /// The fleet of a configuration, every backend healthy and idle.
    pub(super) fn of(yaml: &str) -> Self {
        let environment = Environment::default();
        let config = Config::parse(yaml, "test.yaml", Path::new(""), &environment);
        let config = config.unwrap_or_else(|error| panic!("{yaml}\n{error}"));
        let fleet = Self {
            live: LiveFleet::new(&config),
            router: Router::of(&config),
            rng: SmallRng::seed_from_u64(7),
            scratch: Scratch::default(),
            tried: BackendSet::default(),
            now: NOW,
        };
        for backend in &fleet.live.topology().backends {
            backend.state.health.set(Health::Healthy);
        }
        fleet
    }

    fn state(&self, backend: &str) -> SharedBackend {
        let snapshot = self.live.topology();
        SharedBackend::clone(&snapshot.backend(backend).unwrap().state)
    }

    fn set_health(&self, backend: &str, health: Health) {
        self.state(backend).health.set(health);
    }

    fn try_again(&mut self, failed: &str) {
        self.tried.insert(self.state(failed).id);
    }

    fn route(&mut self, ask: TestRequest<'_>) -> Result<RoutingDecision, RouteError> {
        let snapshot = self.live.topology();
        let profile = ask.profile();
        let Self { router, tried, now, rng, scratch, .. } = self;
        let input = RouteInput { now: *now, ..input_of(&profile, ask, router, tried, &snapshot) };
        let mut random = Live { topology: &snapshot, rng };
        router.route(&input, &mut random, scratch, &mut NoRecord)
    }

    /// Routes a request; returns the names of the backend and of the model sent to it.
    fn taken(&mut self, ask: TestRequest<'_>) -> Result<(String, String), RouteError> {
        let decision = self.route(ask)?;
        let topology = &self.live.topology();
        let row = decision.serving(topology).unwrap();
        assert_eq!(row.id, decision.backend, "the row belongs to the chosen backend");
        let model = topology.model(decision.model).unwrap();
        Ok((row.state.name.to_string(), model.name.to_string()))
    }

    pub(super) fn backend_for(&mut self, ask: TestRequest<'_>) -> String {
        self.taken(ask).unwrap_or_else(|error| panic!("{ask:?}: {error}")).0
    }

    fn error_for(&mut self, ask: TestRequest<'_>) -> RouteError {
        match self.route(ask) {
            Ok(decision) => panic!("{ask:?} goes to {decision:?}"),
            Err(error) => error,
        }
    }
}

/// Returns the input of a decision about a request.
pub(super) fn input_of<'a>(
    profile: &'a RequestProfile,
    ask: TestRequest<'a>,
    router: &Router,
    tried: &'a BackendSet,
    topology: &'a Topology,
) -> RouteInput<'a> {
    RouteInput {
        split: crate::routing::SplitPoint::default(),
        request: profile,
        model: ask.model,
        tokens: router.tokens_to_fit(profile),
        fleet: topology,
        tried,
        may_probe: true,
        waited: ask.waited,
        now: NOW,
        prompt: None,
        session: None,
        requester: Requester { owner: ask.owner, ..Requester::default() },
        objectives: ask.objectives,
        policy: {
            let split = crate::routing::SplitPoint::default();
            let asked = ModelAsked { name: ask.model, fleet: topology, split };
            router.policy_of(&asked, &ask.client, &ask.wishes).unwrap()
        },
    }
}

/// Returns the input of a decision about a request for `m` by a client without a key, a session,
/// objectives and policies.
pub(in crate::routing) fn plain_input<'a>(
    request: &'a RequestProfile,
    fleet: &'a Topology,
    tried: &'a BackendSet,
) -> RouteInput<'a> {
    RouteInput {
        split: crate::routing::SplitPoint::default(),
        request,
        model: "m",
        tokens: request.prompt_tokens,
        fleet,
        tried,
        may_probe: true,
        waited: None,
        now: NOW,
        prompt: None,
        session: None,
        requester: Requester::default(),
        objectives: Objectives::default(),
        policy: crate::routing::PolicyScope::default(),
    }
}

/// A backend as a line of YAML: `name: { key: value, … }` with what follows the URL.
pub(super) fn backend(name: &str, port: usize, rest: &str) -> String {
    format!("  - {{ name: {name}, url: \"http://10.0.0.1:{port}\", {rest} }}\n")
}

/// Backends `b0`, `b1`, … that serve `models`.
fn alike(count: usize, models: &str) -> String {
    let lines: String = (0..count)
        .map(|n| backend(&format!("b{n}"), 8000 + n, &format!("models: [{models}]")))
        .collect();
    format!("backends:\n{lines}")
}
