//! The decision: which backend takes a request. Pure and synchronous; time, fleet, tried backends,
//! rotation and randomness come in as arguments. The proxy, `explain` and the tests call the same
//! function. Reading order: [`Router::route`], then `filters`, then `strategy`.

mod capture;
mod card;
mod error;
mod explain;
mod filters;
mod generation;
mod notes;
mod observer;
mod readings;
mod replay;
mod resolve;
mod scratch;
mod strategy;
mod weighted;

pub use capture::{Capture, DecisionRecord, Lease};
pub use card::{Legend, ScoreCard, Told};
pub use error::RouteError;
pub use explain::{CandidateReport, Explanation};
pub use filters::{Fit, RejectReason};
pub use generation::Generation;
pub use notes::{Notes, Noting};
pub use observer::{About, AttemptEnded, RequestObserver, RequestOutcome, Routed};
pub use replay::{CaptureError, Replayed};
pub use resolve::Names;
pub use scratch::Scratch;
pub use weighted::{SessionField, Weighted};

use std::sync::atomic::Ordering;

use rand::rngs::SmallRng;

use crate::config::{RoutingConfig, Strategy, Weights};
use crate::fleet::{BackendId, BackendSet, Health, Model, ModelId, Probe, Serving, Topology};
use crate::prefix::Chain;
use crate::scan::RequestProfile;
use crate::units::{Timestamp, TokenCount};
use filters::{Terms, Who};
use strategy::{Choice, Picked};

/// Everything a decision reads.
#[derive(Debug, Clone, Copy)]
pub struct RouteInput<'a> {
    /// What the request needs.
    pub request: &'a RequestProfile,
    /// The model asked for, decoded.
    pub model: &'a str,
    /// The tokens that must fit a context: the estimate, with the reserved output where configured.
    pub tokens: TokenCount,
    /// Who serves what.
    pub fleet: &'a Topology,
    /// Backends earlier attempts of this request failed on.
    pub tried: &'a BackendSet,
    /// The time of the decision.
    pub now: Timestamp,
    /// The prompt in blocks, where the strategy asks for it.
    pub prompt: Option<&'a Chain>,
    /// A hash of what names the request's session.
    pub session: Option<u64>,
}

/// Rotation and randomness of one decision.
pub trait Chance {
    /// The model's turn, and one step on.
    fn turn(&mut self, model: ModelId) -> u64;
    /// The generator random picks draw from.
    fn rng(&mut self) -> &mut SmallRng;
    /// Whether what is decided is done, so that later decisions may build on it.
    fn is_acted_on(&self) -> bool;
    /// Where what the decision reads is written down; nowhere, unless it is captured.
    #[inline(always)]
    fn notes(&mut self) -> Option<&mut Notes> {
        None
    }
}

/// Chance for decisions that are acted on: the turn moves on.
#[derive(Debug)]
pub struct Live<'a> {
    /// Whose turns.
    pub topology: &'a Topology,
    /// Seeded by the caller.
    pub rng: &'a mut SmallRng,
}

impl Chance for Live<'_> {
    fn turn(&mut self, model: ModelId) -> u64 {
        self.topology.model(model).map_or(0, |model| model.turn.fetch_add(1, Ordering::Relaxed))
    }

    fn rng(&mut self) -> &mut SmallRng {
        self.rng
    }

    fn is_acted_on(&self) -> bool {
        true
    }
}

/// Chance for dry runs: the turn is read and stays where it is.
#[derive(Debug)]
pub struct Peek<'a> {
    /// Whose turns.
    pub topology: &'a Topology,
    /// Seeded by the caller.
    pub rng: SmallRng,
}

impl Chance for Peek<'_> {
    fn turn(&mut self, model: ModelId) -> u64 {
        self.topology.model(model).map_or(0, |model| model.turn.load(Ordering::Relaxed))
    }

    fn rng(&mut self) -> &mut SmallRng {
        &mut self.rng
    }

    fn is_acted_on(&self) -> bool {
        false
    }
}

/// Where a request goes.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct RoutingDecision {
    /// The backend.
    pub backend: BackendId,
    /// The model it is asked for.
    pub model: ModelId,
    /// The backend's row of that model.
    pub row: u32,
    /// The strategy that picked it.
    pub strategy: Strategy,
    /// Whether a fallback stands in for the model asked for.
    pub is_fallback: bool,
    /// Whether a capability was assumed, because no candidate is known to have it.
    pub is_assumed: bool,
    /// Whether backends counted that their checks call unhealthy, because too few are healthy.
    pub in_panic: bool,
    /// How many candidates there were to pick from.
    pub candidates: u32,
    /// The slot the attempt must take along.
    pub probe: Probe,
    /// What the scorers of the weighted strategy made of it.
    pub card: Option<ScoreCard>,
}

impl RoutingDecision {
    /// The candidate that was picked, in the topology the decision was made on.
    pub fn serving<'a>(&self, topology: &'a Topology) -> Option<&'a Serving> {
        topology.serving(self.model, self.row)
    }
}

/// Decides by one configuration.
#[derive(Debug)]
pub struct Router {
    /// Aliases and fallbacks.
    pub names: Names,
    strategy: Strategy,
    weights: Weights,
    fallback_on_saturation: bool,
    reserve_output: bool,
    panic_threshold: f64,
    weighted: Option<Weighted>,
}

impl Router {
    /// The router of a configuration's `routing` section.
    pub fn new(config: &RoutingConfig) -> Self {
        Self {
            names: Names::new(&config.aliases, &config.fallbacks),
            strategy: config.strategy,
            weights: config.weights.clone(),
            fallback_on_saturation: config.fallback_on_saturation,
            reserve_output: config.reserve_output,
            panic_threshold: config.panic_threshold,
            weighted: (config.strategy == Strategy::Weighted)
                .then(|| Weighted::new(config))
                .flatten(),
        }
    }

    /// The weighted strategy, where it is in use.
    pub fn weighted(&self) -> Option<&Weighted> {
        self.weighted.as_ref()
    }

    /// The strategy in use.
    pub fn strategy(&self) -> Strategy {
        self.strategy
    }

    /// The tokens of `request` that must fit a context.
    pub fn tokens_to_fit(&self, request: &RequestProfile) -> TokenCount {
        let reserved = request.max_tokens.filter(|_| self.reserve_output).unwrap_or_default();
        TokenCount(request.estimated_tokens.0.saturating_add(reserved.0))
    }

    /// Picks the backend for a request: the model behind its name first, then the fallbacks in
    /// order. Allocates nothing unless it fails.
    ///
    /// # Errors
    /// Why no backend can take it, as an honest answer to the client.
    pub fn route(
        &self,
        input: &RouteInput<'_>,
        chance: &mut impl Chance,
        scratch: &mut Scratch,
    ) -> Result<RoutingDecision, RouteError> {
        let target = self.names.resolve(input.model);
        if let Some(decision) = self.pick(target, input, chance, scratch) {
            return Ok(decision);
        }
        if let Some(decision) = self.pick_first_due(target, input, chance) {
            return Ok(decision);
        }
        let chain = self.names.chain(input.model).unwrap_or_default();
        let error = RouteError::explain(target, input, chain);
        if !self.may_fall_back(&error) {
            return Err(error);
        }
        for entry in chain {
            let target = self.names.resolve(entry);
            if let Some(decision) = self.pick(target, input, chance, scratch) {
                return Ok(RoutingDecision { is_fallback: true, ..decision });
            }
        }
        Err(error.with_chain_exhausted(target, chain))
    }

    fn may_fall_back(&self, error: &RouteError) -> bool {
        match error {
            RouteError::Saturated { .. } | RouteError::CoolingDown { .. } => {
                self.fallback_on_saturation
            }
            RouteError::ModelNotFound { .. }
            | RouteError::NoHealthyBackend { .. }
            | RouteError::CapabilityMismatch { .. }
            | RouteError::FallbackChainExhausted { .. }
            | RouteError::DiscoveryPending { .. }
            | RouteError::AllTried { .. } => true,
        }
    }

    fn pick(
        &self,
        name: &str,
        input: &RouteInput<'_>,
        chance: &mut impl Chance,
        scratch: &mut Scratch,
    ) -> Option<RoutingDecision> {
        let topology = input.fleet;
        let id = topology.model_id(name)?;
        let model = topology.model(id)?;
        let weighted = self.weighted.as_ref();
        let choice = Choice { input, model, id, weights: &self.weights, weighted };
        let in_panic = self.is_in_panic(model);
        let mut pick = |who| {
            let terms = Terms { who, in_panic, at_once: false };
            let picked = choice.pick(self.strategy, terms, (&mut *chance, &mut *scratch));
            // Where there is nobody else, backends on their way back take what comes.
            let is_easing = || model.serving.iter().any(|one| one.state.is_in_slow_start());
            if picked.is_none() && is_easing() {
                let terms = Terms { at_once: true, ..terms };
                return choice.pick(self.strategy, terms, (&mut *chance, &mut *scratch));
            }
            picked
        };
        // Assumed capabilities only when nobody is known to have them.
        let known = pick(Who::Known);
        let is_assumed = known.is_none();
        let picked = known.or_else(|| pick(Who::Usable));
        let Picked { row, candidates, card } = picked?;
        let backend = model.serving.get(row as usize)?;
        let probe = if backend.state.breaker.is_closed() { Probe::None } else { Probe::Breaker };
        Some(RoutingDecision {
            backend: backend.id,
            model: id,
            row,
            strategy: self.strategy,
            is_fallback: false,
            is_assumed: is_assumed && !input.request.needs.is_empty(),
            in_panic,
            candidates,
            probe,
            card,
        })
    }

    /// Whether so few of the model's backends are healthy that their checks are not believed: rather
    /// all of them a little than the last ones to death. Off unless configured.
    fn is_in_panic(&self, model: &Model) -> bool {
        if self.panic_threshold <= 0.0 {
            return false;
        }
        let (mut healthy, mut all) = (0_u32, 0_u32);
        for candidate in &model.serving {
            match candidate.state.status() {
                Health::Healthy => (healthy, all) = (healthy + 1, all + 1),
                Health::Unhealthy => all += 1,
                Health::Unknown | Health::Draining => {}
            }
        }
        f64::from(healthy) < self.panic_threshold * f64::from(all)
    }

    // When every candidate rests after its own 429 or 503, one request at a time finds out whether
    // the one that is due first is back.
    fn pick_first_due(
        &self,
        name: &str,
        input: &RouteInput<'_>,
        chance: &mut impl Chance,
    ) -> Option<RoutingDecision> {
        let topology = input.fleet;
        let id = topology.model_id(name)?;
        let model = topology.model(id)?;
        let rows = (0_u32..).zip(&model.serving);
        let verdicts = rows.map(|(row, candidate)| (row, filters::check(input, candidate)));
        let row = match chance.notes() {
            None => filters::first_due(verdicts),
            Some(notes) => {
                let verdicts: Vec<_> = verdicts.collect();
                notes.take_rests((input, model, id), &verdicts);
                filters::first_due(verdicts.into_iter())
            }
        }?;
        let backend = topology.serving(id, row)?.id;
        let is_probed = topology.serving(id, row)?.state.cooldown.is_probed();
        (!is_probed).then_some(RoutingDecision {
            backend,
            model: id,
            row,
            strategy: self.strategy,
            is_fallback: false,
            is_assumed: false,
            in_panic: false,
            candidates: 1,
            probe: Probe::Cooldown,
            card: None,
        })
    }
}

#[cfg(test)]
mod tests;
