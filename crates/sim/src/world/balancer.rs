//! A balancer: the generation of a configuration, and the state that the proxy keeps alongside it.

use std::sync::Arc;

use penstock_api::Operation;
use penstock_api::mix::mix;
use penstock_api::units::{Timestamp, TokenCount};
use penstock_config::{RoutingConfig, Strategy};
use penstock_core::admission::budgets::AdmittedTerms;
use penstock_core::admission::queue::{ModelQueue, PassedTurn};
use penstock_core::fleet::{
    BackendSet, EngineDetails, InflightGuard, Owner, Requester, Topology, dump,
};
use penstock_core::prefix::Chain;
use penstock_core::routing::{
    AwaitedRoom, Generation, Live as LiveSource, ModelAsked, NoRecord, Peek, PolicyClient,
    PolicyScope, PolicyWishes, RetryCredit, RouteError, RouteInput, RoutedSession, Router,
    RoutingDecision, Scratch, ServiceTime, SessionHomes, SessionIds, SplitPoint, Waited, Weighted,
};
use penstock_scan::RequestProfile;
use penstock_scoring::Objectives;
use rand::SeedableRng;
use rand::rngs::SmallRng;

use super::engines::SimEngine;
use super::scrapes::Scrapes;
use super::{START, WorldSpec};
use crate::engine::{BLOCK_TOKENS, EngineSpec};
use crate::random::{Purpose, RandomStream};
use crate::workload::{Request, Workload};

#[derive(Debug)]
pub(super) struct Balancer {
    pub(super) generation: Generation,
    pub(super) topology: Arc<Topology>,
    pub(super) credit: RetryCredit,
    /// The scrapes of each backend; `None` if its engine is not scraped.
    scrapes: Vec<Option<Scrapes>>,
    scratch: Scratch,
    /// The maximum number of prompt blocks used; `None` if prompts are not read.
    max_blocks: Option<u32>,
    /// The homes of sessions; `None` if the strategy reads none.
    homes: Option<SessionHomes>,
    seed: u64,
    engines: Vec<EngineSpec>,
    /// The objectives of every request, except for its priority.
    objectives: Objectives,
    /// The queued requests, by model.
    pub(super) queues: Vec<ModelQueue>,
}

/// A request at a balancer.
#[derive(Debug, Clone, Copy)]
pub(super) struct Arrived<'a> {
    pub(super) id: u32,
    pub(super) request: &'a Request,
    pub(super) workload: &'a Workload,
    pub(super) tried: &'a BackendSet,
    /// The terms that its budgets set; `None` without budgets.
    pub(super) terms: Option<&'a AdmittedTerms>,
    pub(super) attempt: u16,
    /// The time spent in a queue, in milliseconds; `None` if it has not waited.
    pub(super) queued_ms: Option<f64>,
    pub(super) now: Timestamp,
}

impl<'a> Arrived<'a> {
    /// Returns the requested model, or the one that a budget put in its place.
    pub(super) fn model(&self) -> &'a str {
        let requested = || {
            let index = usize::from(self.request.model);
            self.workload.models.get(index).map_or("", String::as_str)
        };
        self.terms.and_then(|terms| terms.instead.as_deref()).unwrap_or_else(requested)
    }

    pub(super) fn split(&self) -> SplitPoint {
        SplitPoint(mix(u64::from(self.id) + 1))
    }
}

/// The decision about a request, with its permit at the backend.
pub(super) struct PermittedDecision {
    pub(super) decision: RoutingDecision,
    pub(super) permit: InflightGuard,
}

impl Balancer {
    /// Returns whether decisions consider which prompts the backends have cached.
    pub(super) fn reads_prompts(&self) -> bool {
        self.max_blocks.is_some()
    }

    pub(super) fn new(spec: &WorldSpec, workload: &Workload, number: u32) -> Self {
        let generation = Generation::new(spec.config.clone());
        dump::assume_healthy(&generation.fleet);
        let topology = generation.fleet.topology();
        let wants_scrapes = spec.config.wants_telemetry();
        let scrapes = (0_u64..).zip(&spec.config.backends).map(|(index, backend)| {
            let id = index << 32 | u64::from(number);
            (wants_scrapes && backend.telemetry.enabled).then(|| {
                let interval = spec.config.telemetry.interval;
                Scrapes::new(interval, spec.delays.scrape, spec.seed, id, START)
            })
        });
        let weighted = generation.router.weighted();
        let reader = weighted.filter(|weighted| weighted.profile().reads_prompts());
        let model = workload.models.first().map_or("", String::as_str);
        let balancer = Self {
            credit: RetryCredit::new(&spec.config.routing.retry_budget),
            scrapes: scrapes.collect(),
            scratch: Scratch::default(),
            max_blocks: reader.map(|reader| reader.prefix_params(&topology, model).max_blocks),
            homes: weighted.map(|_| SessionHomes::default()),
            seed: mix(spec.seed ^ mix(u64::from(number))),
            engines: spec.engines.clone(),
            objectives: spec.objectives,
            // Further ones for the models that budgets put in place of others.
            queues: (0..workload.models.len() + spec.config.budgets.len())
                .map(|_| ModelQueue::default())
                .collect(),
            topology,
            generation,
        };
        for index in 0..spec.engines.len() {
            balancer.learn_start(index, 0.0);
        }
        balancer
    }

    /// Computes the results of scrapes of a backend up to `now`, before its state changes.
    pub(super) fn capture(&mut self, index: usize, engine: &SimEngine, now: u64) {
        let scrapes = self.scrapes.get_mut(index).and_then(Option::as_mut);
        if let Some((scrapes, backend)) = scrapes.zip(self.topology.backends.get(index)) {
            scrapes.capture(engine, backend.state.load.in_flight(), now);
        }
    }

    /// Publishes the samples that have arrived at `now`.
    pub(super) fn publish(&mut self, engines: &[SimEngine], now: u64) {
        let backends = self.scrapes.iter_mut().zip(&self.topology.backends).zip(engines);
        for ((scrapes, backend), engine) in backends {
            if let Some(scrapes) = scrapes {
                scrapes.publish(engine, &backend.state, now);
            }
        }
    }

    /// Publishes what the engine of a backend reports at its start, if it reports anything.
    pub(super) fn learn_start(&self, index: usize, starts: f64) {
        let Some((backend, spec)) = self.topology.backends.get(index).zip(self.engines.get(index))
        else {
            return;
        };
        if self.scrapes.get(index).is_none_or(Option::is_none) {
            return;
        }
        let details = EngineDetails {
            block_size: Some(BLOCK_TOKENS),
            blocks: Some(spec.kv_blocks.into()),
            started_at: Some(starts),
            ..EngineDetails::default()
        };
        if self.generation.fleet.learn_details(&backend.state, &details) {
            self.generation.fleet.forget_process(backend.state.id);
        }
    }

    /// Returns the weighted strategy if it predicts caches.
    pub(super) fn weighted(&self) -> Option<&Weighted> {
        self.generation.router.weighted()
    }

    /// Returns the set of all backends except `only`.
    pub(super) fn all_but(&self, only: usize) -> BackendSet {
        let mut others = BackendSet::default();
        for (index, backend) in self.topology.backends.iter().enumerate() {
            if index != only {
                others.insert(backend.state.id);
            }
        }
        others
    }

    /// Returns the backend that each scorer of the weighted strategy would choose alone.
    pub(super) fn single_picks(&mut self, arrived: &Arrived<'_>) -> Vec<(String, usize)> {
        let routing = &self.generation.config.routing;
        let specs = if routing.strategy == Strategy::Weighted {
            routing.scorer_specs()
        } else {
            Vec::new()
        };
        let routers = specs.into_iter().map(|spec| {
            let alone =
                RoutingConfig { scorers: vec![spec.clone()], preset: None, ..routing.clone() };
            (spec.name, Router::new(&alone))
        });
        let routers: Vec<(String, Router)> = routers.collect();
        let profile = profile_of(arrived.request, arrived.now);
        let prompt = self.prompt_of(arrived);
        let input = self.input(arrived, &profile, prompt.as_ref());
        // With the same random numbers as the decision itself, so that only the scorers differ.
        let mut picks = Vec::new();
        let mut scratch = Scratch::default();
        for (name, router) in routers {
            let rng = self.rng_of(arrived);
            let mut random = Peek { topology: &self.topology, rng };
            let decision = router.route(&input, &mut random, &mut scratch, &mut NoRecord);
            let serving = decision.ok().and_then(|decision| {
                decision.serving(&self.topology).map(|serving| usize::from(serving.backend))
            });
            picks.extend(serving.map(|index| (name, index)));
        }
        picks
    }

    fn prompt_of(&self, arrived: &Arrived<'_>) -> Option<Chain> {
        let most = self.max_blocks?;
        let Arrived { workload, request, .. } = arrived;
        let hashes = workload.prefix_of(request).iter().take(most as usize);
        let chain = Chain::of(hashes.copied().collect(), workload.block_tokens);
        // The simulated engines cache the tokens of blocks, and nothing behind the last one.
        let in_blocks = u64::from(chain.blocks() + 1) * u64::from(workload.block_tokens);
        Some(chain.with_cut(u64::from(request.input_tokens) > in_blocks))
    }

    // Separate numbers for each attempt: what was decided before does not change them, so that
    // two configurations differ by their decisions alone.
    fn rng_of(&self, arrived: &Arrived<'_>) -> SmallRng {
        let stream = u64::from(arrived.id) << 16 | u64::from(arrived.attempt);
        SmallRng::seed_from_u64(RandomStream::new(self.seed, Purpose::Decisions, stream).bits())
    }

    fn input<'a>(
        &'a self,
        arrived: &Arrived<'a>,
        profile: &'a RequestProfile,
        prompt: Option<&'a Chain>,
    ) -> RouteInput<'a> {
        let Arrived { request, tried, now, .. } = *arrived;
        let objectives = self.objectives_of(request);
        RouteInput {
            request: profile,
            model: arrived.model(),
            split: arrived.split(),
            tokens: self.generation.router.tokens_to_fit(profile),
            fleet: &self.topology,
            tried,
            may_probe: true,
            waited: arrived.queued_ms.map(|_| Waited { ttft_ms: objectives.ttft_ms }),
            now,
            prompt,
            session: self.session_of(request, now),
            requester: requester_of(request),
            objectives: objectives.after(arrived.queued_ms.unwrap_or(0.0)),
            policy: self.policy_of(arrived),
        }
    }

    /// Returns the session of a request with its home.
    fn session_of(&self, request: &Request, now: Timestamp) -> Option<RoutedSession> {
        let homes = self.homes.as_ref().filter(|_| request.session != 0)?;
        let ids = SessionIds::plain(mix(request.session));
        Some(RoutedSession { id: request.session, home: homes.find(ids, now) })
    }

    /// Returns the policies that a request is under: its client's name is that of its key.
    pub(super) fn policy_of(&self, arrived: &Arrived<'_>) -> PolicyScope {
        let Arrived { request, workload, terms, .. } = *arrived;
        let router = &self.generation.router;
        if let Some(terms) = terms {
            return terms.policy;
        }
        if router.policies.is_empty() {
            return PolicyScope::default();
        }
        let client = workload.clients.get(request.client as usize).map(String::as_str);
        let client = PolicyClient { key: client, ..PolicyClient::default() };
        let (name, split) = (arrived.model(), arrived.split());
        let asked = ModelAsked { name, fleet: &self.topology, split };
        // Without wishes there is no error.
        router.policy_of(&asked, &client, &PolicyWishes::default()).unwrap_or_default()
    }

    pub(super) fn objectives_of(&self, request: &Request) -> Objectives {
        Objectives { priority: request.priority.into(), ..self.objectives }
    }

    /// Returns the capacity that a request waits for when every backend is full.
    pub(super) fn awaited(&self, arrived: &Arrived<'_>) -> Option<PassedTurn> {
        let profile = profile_of(arrived.request, arrived.now);
        let prompt = self.prompt_of(arrived);
        let input = self.input(arrived, &profile, prompt.as_ref());
        let AwaitedRoom { backends, is_held_back, .. } = self.generation.router.awaited(&input)?;
        Some(PassedTurn { backends, is_held_back })
    }

    /// Returns the time that the first token of a request takes once a backend accepts it.
    pub(super) fn service_time(&self, arrived: &Arrived<'_>) -> ServiceTime {
        let profile = profile_of(arrived.request, arrived.now);
        let prompt = self.prompt_of(arrived);
        self.generation.router.service_time(&self.input(arrived, &profile, prompt.as_ref()))
    }

    /// Decides, and reserves the permit for the decision.
    pub(super) fn decide(
        &mut self,
        arrived: &Arrived<'_>,
    ) -> Result<PermittedDecision, RouteError> {
        let now = arrived.now;
        let profile = profile_of(arrived.request, now);
        let prompt = self.prompt_of(arrived);
        let mut rng = self.rng_of(arrived);
        let mut scratch = std::mem::take(&mut self.scratch);
        let input = self.input(arrived, &profile, prompt.as_ref());
        let mut random = LiveSource { topology: &self.topology, rng: &mut rng };
        let router = &self.generation.router;
        let decision = router.route(&input, &mut random, &mut scratch, &mut NoRecord);
        let reserved = decision.and_then(|decision| {
            let objectives = self.objectives_of(arrived.request);
            let permit = router.reserve(&decision, &input, &objectives);
            let saturated = || RouteError::Saturated { model: arrived.model().to_owned() };
            Ok(PermittedDecision { permit: permit.ok_or_else(saturated)?, decision })
        });
        self.scratch = scratch;
        let decided = reserved?;
        let decision = &decided.decision;
        if let Some(homes) = self.homes.as_ref().filter(|_| arrived.request.session != 0) {
            let limit = self.generation.config.limits.session_homes;
            let ids = SessionIds::plain(mix(arrived.request.session));
            homes.visit(ids, decision.backend, |_| false, limit, now);
        }
        if let (Some(weighted), Some(prompt)) = (self.weighted(), &prompt) {
            weighted.record(&self.topology, decision, prompt);
        }
        Ok(decided)
    }
}

/// Returns the profile that the scanner would have produced.
pub(super) fn profile_of(request: &Request, now: Timestamp) -> RequestProfile {
    let limit = Some(TokenCount(request.max_tokens)).filter(|most| most.0 > 0);
    RequestProfile {
        streaming: request.is_streamed,
        estimated_tokens: TokenCount(request.input_tokens),
        prompt_tokens: TokenCount(request.input_tokens),
        max_tokens: limit,
        output_limit: limit,
        ..RequestProfile::opaque(Operation::Chat, now)
    }
}

/// Returns the client that sends a request.
pub(super) fn requester_of(request: &Request) -> Requester {
    let client = mix(u64::from(request.client) + 1);
    Requester { client, credential: 1, owner: Owner { id: client, weight: 1 } }
}
