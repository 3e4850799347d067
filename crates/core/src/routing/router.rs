//! The router of one configuration: names, filters, strategy, fallbacks, in this order.

mod awaited;
mod cost;
mod passes;
mod probes;
mod reservation;
mod under_policies;
mod work_limits;

pub use awaited::{AwaitedRoom, Cooling, ReturnLine, ServiceTime};
pub use cost::RequestSize;

use penstock_api::units::{Timestamp, TokenCount};
use penstock_config::{Config, DefaultModel, RoutingConfig, SplitBy, Strategy, Weights};
use penstock_scan::RequestProfile;
use penstock_scoring::Needs;

use super::error::RouteError;
use super::filters::{Candidacy, Conditions};
use super::passthrough::Passthrough;
use super::policies::Policies;
use super::random::RandomSource;
use super::recorder::Recorder;
use super::resolve::Names;
use super::scratch::{RouteContext, Scratch};
use super::session::{SessionField, SessionIds, SessionNames};
use super::split::SplitPoint;
use super::weighted::Weighted;
use super::{RouteInput, RoutingDecision};
use crate::fleet::{Health, Model, ModelId, Topology};
use awaited::Awaited;
use probes::probe_of;

/// Decides by one configuration.
#[derive(Debug)]
pub struct Router {
    pub names: Names,
    /// The policies of the configuration.
    pub policies: Policies,
    strategy: Strategy,
    /// The reason for the strategy, if a key of the configuration other than its name selects it.
    pub(super) strategy_reason: Option<&'static str>,
    weights: Weights,
    pub passthrough: Passthrough,
    pub(super) default_model: DefaultModel,
    split_by: SplitBy,
    sessions: SessionField,
    fallback_on_saturation: bool,
    spills: bool,
    reserve_output: bool,
    panic_threshold: f64,
    predicts: bool,
    weighted: Option<Weighted>,
}

/// A model whose backends are candidates of a request.
#[derive(Debug, Clone, Copy)]
struct Considered<'a> {
    input: &'a RouteInput<'a>,
    model: &'a Model,
    id: ModelId,
    strategy: Strategy,
}

impl Router {
    /// Builds the router of a configuration.
    pub fn of(config: &Config) -> Self {
        Self { policies: Policies::new(config), ..Self::new(&config.routing) }
    }

    /// Builds the router of a `routing` section, without policies.
    pub fn new(config: &RoutingConfig) -> Self {
        Self {
            names: Names::new(&config.aliases, &config.fallbacks),
            policies: Policies::default(),
            strategy: config.strategy,
            strategy_reason: config.strategy_reason,
            weights: config.weights.clone(),
            default_model: config.default_model.clone(),
            passthrough: Passthrough::new(&config.passthrough),
            split_by: config.split_by,
            sessions: SessionField::configured(config),
            fallback_on_saturation: config.fallback_on_saturation,
            spills: config.spill,
            reserve_output: config.reserve_output,
            panic_threshold: config.panic_threshold,
            predicts: config.predicts(),
            weighted: config.has_scorers().then(|| Weighted::new(config)).flatten(),
        }
    }

    /// Returns the weighted strategy, if some models may use it.
    pub fn weighted(&self) -> Option<&Weighted> {
        self.weighted.as_ref()
    }

    /// Returns the weighted strategy, if `strategy` decides by it.
    #[inline(always)]
    pub(super) fn weighted_in(&self, strategy: Strategy) -> Option<&Weighted> {
        self.weighted.as_ref().filter(|_| strategy.has_scorers())
    }

    /// Returns whether `strategy` weighs predictions.
    fn weighs_predictions(&self, strategy: Strategy) -> bool {
        let needs = self.weighted_in(strategy).map(|weighted| weighted.profile().needs());
        needs.is_some_and(|needs| needs.contains(Needs::PREDICTIONS))
    }

    /// Returns the weighted strategy, if it decides about this model.
    pub fn weighted_for(&self, fleet: &Topology, model: &str, now: Timestamp) -> Option<&Weighted> {
        if self.strategy != Strategy::Auto {
            return self.weighted.as_ref();
        }
        let model = fleet.model_named(model)?;
        self.weighted_in(self.strategy_of(model, now))
    }

    fn consider<'a>(&self, input: &'a RouteInput<'a>, name: &str) -> Option<Considered<'a>> {
        let id = input.fleet.model_id(name)?;
        let model = input.fleet.model(id)?;
        Some(Considered { input, model, id, strategy: self.strategy_of(model, input.now) })
    }

    /// Returns the session that a request names, if decisions read it.
    pub fn session<'a, V, F>(&self, names: &SessionNames<'a, F>) -> Option<SessionIds>
    where
        V: Iterator<Item = &'a [u8]>,
        F: Fn(&str) -> V,
    {
        let is_read = self.weighted.is_some() || self.names.has_splits();
        if is_read { self.sessions.read(names) } else { None }
    }

    /// Returns the point that selects the branch of a split: from the request's session, its key,
    /// or `id`, which is unique to it.
    pub fn split_point(
        &self,
        session: Option<SessionIds>,
        key: Option<&str>,
        id: &[u8],
    ) -> SplitPoint {
        let sticky = match (self.split_by, key) {
            (SplitBy::Request, _) => None,
            (SplitBy::Key, Some(key)) => Some(SplitPoint::of(key.as_bytes())),
            (SplitBy::Key, None) | (SplitBy::Session, _) => {
                session.map(|session| SplitPoint(session.root))
            }
        };
        sticky.unwrap_or_else(|| SplitPoint::of(id))
    }

    pub fn strategy(&self) -> Strategy {
        self.strategy
    }

    /// Returns whether latencies are predicted for the requests that it decides about.
    pub fn predicts(&self) -> bool {
        self.predicts
    }

    /// Returns the weights of the strategy `smart`.
    pub(super) fn weights(&self) -> &Weights {
        &self.weights
    }

    /// Returns the tokens of `request` that must fit a context; none if the model does not run.
    pub fn tokens_to_fit(&self, request: &RequestProfile) -> TokenCount {
        let reserved = request.max_tokens.filter(|_| self.reserve_output).unwrap_or_default();
        TokenCount(request.context_tokens().0.saturating_add(reserved.0))
    }

    /// Picks the backend for a request: from the model that its name resolves to, then from the
    /// fallbacks in order. Allocates nothing unless it fails or the recorder allocates.
    ///
    /// # Errors
    /// [`RouteError`] if no backend can take it, with the facts for an honest response to the
    /// client.
    pub fn route(
        &self,
        input: &RouteInput<'_>,
        random: &mut impl RandomSource,
        scratch: &mut Scratch,
        recorder: &mut impl Recorder,
    ) -> Result<RoutingDecision, RouteError> {
        let context = &mut RouteContext { random, scratch, recorder };
        let target = self.names.resolve(input.model, input.fleet, input.split);
        let mut shed = None;
        if let Some(decision) = self.pick(target, input, context) {
            match self.check_objectives(target, input, &decision) {
                Ok(()) => return Ok(decision),
                Err(error) => shed = Some(error),
            }
        // Before any fallback: the client requested this model, and a backend of it may have
        // recovered.
        } else if input.may_probe
            && let Some(decision) = self.pick_next_probe(target, input, context.recorder)
        {
            return Ok(decision);
        }
        let chain = self.names.chain(input.model, input.fleet, input.split);
        let is_shed = shed.is_some();
        let error = shed.unwrap_or_else(|| RouteError::explain(target, input, chain));
        if !self.may_fall_back(&error) {
            return Err(error);
        }
        for entry in chain {
            let (target, input) = self.fall_back(input, entry);
            if let Some(decision) = self.pick(target, &input, context)
                && self.check_objectives(target, &input, &decision).is_ok()
            {
                return Ok(RoutingDecision { is_fallback: true, ..decision });
            }
        }
        if is_shed {
            // It says when the objective can be met.
            return Err(error);
        }
        let errors = chain.iter().map(|entry| {
            let (target, input) = self.fall_back(input, entry);
            RouteError::explain(target, &input, &[])
        });
        Err(error.with_chain_exhausted(target, chain, errors))
    }

    /// Refuses a sheddable request if the picked backend would miss its objectives, or those of the
    /// streams there. Another one that would meet them costs the requests there more: in simulated
    /// overloads up to 13 points fewer requests of priority 0 are in time if it takes them instead.
    fn check_objectives(
        &self,
        model: &str,
        input: &RouteInput<'_>,
        decision: &RoutingDecision,
    ) -> Result<(), RouteError> {
        if self.strategy != Strategy::Slo
            || !input.objectives.is_sheddable()
            || !input.tried.is_empty()
        {
            return Ok(());
        }
        let prediction = decision.scores.and_then(|scores| scores.prediction);
        let Some(prediction) = prediction.filter(|one| one.is_trusted) else { return Ok(()) };
        let headroom = input.objectives.headroom(&prediction);
        if headroom.is_none_or(|headroom| headroom.is_met()) {
            return Ok(());
        }
        let serving = input.fleet.serving(decision.model, decision.row);
        // Only a request can show that an idle backend has recovered.
        if serving.is_some_and(|serving| serving.model_state.load.of_all() == 0) {
            return Ok(());
        }
        let awaited = Awaited::of(input, decision.model);
        Err(RouteError::ObjectiveMissed {
            model: model.to_owned(),
            predicted_ms: whole_ms(prediction.ttft_p90.into()),
            per_token_ms: whole_ms(prediction.tpot.into()),
            wait: awaited.wait(),
            interval: awaited.interval,
            can_be_met: awaited.until_met.is_some(),
        })
    }

    fn may_fall_back(&self, error: &RouteError) -> bool {
        match error {
            RouteError::Saturated { .. }
            | RouteError::CoolingDown { .. }
            | RouteError::ObjectiveMissed { .. } => self.fallback_on_saturation,
            RouteError::ModelNotFound { .. }
            | RouteError::NoBackendInZone { .. }
            | RouteError::NoHealthyBackend { .. }
            | RouteError::CapabilityMismatch { .. }
            | RouteError::FallbackChainExhausted { .. }
            | RouteError::DiscoveryPending { .. }
            | RouteError::AllTried { .. } => true,
        }
    }

    /// Picks a backend of one model; `None` when none may take the request.
    pub(super) fn pick(
        &self,
        name: &str,
        input: &RouteInput<'_>,
        context: &mut RouteContext<'_, impl RandomSource, impl Recorder>,
    ) -> Option<RoutingDecision> {
        if input.policy.restriction.has_preferences() {
            return self.pick_preferred(name, input, context);
        }
        self.pick_among(name, input, context)
    }

    fn pick_among(
        &self,
        name: &str,
        input: &RouteInput<'_>,
        context: &mut RouteContext<'_, impl RandomSource, impl Recorder>,
    ) -> Option<RoutingDecision> {
        let considered = self.consider(input, name)?;
        let Considered { model, id, strategy, .. } = considered;
        let in_panic = self.is_in_panic(model);
        let strict = Conditions { in_panic, ..Conditions::STRICT };
        // Backends that are assumed to have a capability count only if none is known to have it.
        let known = self.pick_of(considered, strict, context);
        let (picked, conditions) = match known {
            Some(picked) => (picked, strict),
            None => self.pick_assumed_or_spill(considered, strict, context)?,
        };
        let is_assumed =
            conditions.candidacy == Candidacy::Usable && !input.request.needs.is_empty();
        let backend = model.serving.get(picked.row as usize)?;
        let probe = probe_of(backend, input);
        Some(RoutingDecision {
            backend: backend.id,
            model: id,
            row: picked.row,
            strategy,
            is_fallback: false,
            is_assumed,
            in_panic,
            spills: conditions.spills,
            is_below_tier: false,
            is_quality_probe: false,
            candidates: picked.candidates,
            probe,
            scores: picked.scores.map(|scores| scores.with_prompt(input.prompt)),
        })
    }

    /// Returns whether so few of the model's backends are healthy that the checks are not believed
    /// (Envoy's panic threshold): some errors from all backends are better than all requests on the
    /// last healthy ones. Off unless configured.
    fn is_in_panic(&self, model: &Model) -> bool {
        if self.panic_threshold <= 0.0 {
            return false;
        }
        let (mut healthy, mut all) = (0_u32, 0_u32);
        for candidate in &model.serving {
            match candidate.state.status() {
                Health::Healthy => (healthy, all) = (healthy + 1, all + 1),
                Health::Unhealthy => all += 1,
                // Neither was judged by a check: they are no reason to doubt the checks.
                Health::Unknown | Health::Draining => {}
            }
        }
        f64::from(healthy) < self.panic_threshold * f64::from(all)
    }
}

/// Rounds up to whole milliseconds.
#[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "it saturates")]
fn whole_ms(ms: f64) -> u64 {
    ms.max(0.0).ceil() as u64
}
