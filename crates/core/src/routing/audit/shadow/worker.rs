//! The shadow's thread: takes live decisions from the queue, lets the shadow's strategy decide by
//! the recorded readings, and counts how the two compare.

use std::sync::Arc;
use std::sync::mpsc::Receiver;
use std::time::Duration;

use penstock_api::mix::{GOLDEN_GAMMA, mix};
use penstock_api::units::Timestamp;
use penstock_scoring::{PrefixParams, RequestFeatures};
use rand::rngs::SmallRng;
use rand::{Rng, SeedableRng};

use super::counts::{Compared, Counters};
use super::sides::{Side, Tracking};
use super::{ObservedDecision, QueuedDecision};
use crate::fleet::{Model, Topology};
use crate::prefix::{Chain, MemoryBudget, prompt_chain};
use crate::routing::random::ReplaySource;
use crate::routing::readings::prompt_features;
use crate::routing::recorder::NoRecord;
use crate::routing::scratch::RouteContext;
use crate::routing::{Router, Scratch, Weighted};

/// The seed of the shadow's random picks: fixed, because they need not be unpredictable.
const SEED: u64 = 0x5eed;

/// Decides again, and counts how the decisions compare.
#[derive(Debug)]
pub(super) struct Worker {
    router: Router,
    tracking: Tracking,
    /// The topology that both sides follow.
    topology: Arc<Topology>,
    live: Side,
    shadow: Side,
    counters: Arc<Counters>,
    rng: SmallRng,
    scratch: Scratch,
    chain: Chain,
}

impl Worker {
    /// Creates a worker for `router`. Prompts are cut as `router` cuts them, else as `live` does.
    pub(super) fn new(
        router: Router,
        live: &Router,
        sample: f64,
        [live_pool, shadow_pool]: [Arc<MemoryBudget>; 2],
        counters: Arc<Counters>,
    ) -> Self {
        let weighted = router.weighted().or(live.weighted());
        let params = weighted
            .map(|weighted| weighted.prefix_params(&Topology::default(), ""))
            .unwrap_or_default();
        Self {
            router,
            tracking: Tracking { params, sample },
            topology: Arc::default(),
            live: Side::new(live_pool),
            shadow: Side::new(shadow_pool),
            counters,
            rng: SmallRng::seed_from_u64(SEED),
            scratch: Scratch::default(),
            chain: Chain::default(),
        }
    }

    /// Compares until the shadow is dropped.
    pub(super) fn run(mut self, receiver: &Receiver<QueuedDecision>, now: fn() -> Timestamp) {
        while let Ok(QueuedDecision { decision, _claim }) = receiver.recv() {
            self.compare(&decision, now().since(decision.at));
        }
    }

    /// Compares one decision, made `lag` ago.
    pub(super) fn compare(&mut self, live: &ObservedDecision, lag: Duration) {
        let Some(model) = live.topology.model(live.model) else { return };
        if !self.is_sampled(live, model) {
            self.counters.count_not_sampled();
            return;
        }
        self.cut(live, model, self.tracking.params);
        self.follow(&live.topology, model);
        let row = self.decide(live, model);
        let compared = self.compare_rows(live, model, row);
        self.counters.count(compared, lag);
    }

    /// Returns whether a request is in the sample. Its first block decides, so that a conversation
    /// is in it with all its turns or not at all. A prompt shorter than one block looks like any
    /// other and has nothing cached: each one is drawn separately.
    fn is_sampled(&mut self, live: &ObservedDecision, model: &Model) -> bool {
        let sample = self.tracking.sample;
        if sample >= 1.0 {
            return true;
        }
        self.cut(live, model, PrefixParams { max_blocks: 1, ..self.tracking.params });
        let draw = match self.chain.hashes().first() {
            Some(first) => to_share(*first),
            None => self.rng.random(),
        };
        draw < sample
    }

    fn cut(&mut self, live: &ObservedDecision, model: &Model, params: PrefixParams) {
        let params = params.following(model.prefixes.block_tokens());
        prompt_chain(&live.request, &live.body, &model.name, params, &mut self.chain);
    }

    fn follow(&mut self, topology: &Arc<Topology>, model: &Model) {
        if !Arc::ptr_eq(&self.topology, topology) {
            self.topology = Arc::clone(topology);
            self.live.follow(topology);
            self.shadow.follow(topology);
        }
        for side in [&mut self.live, &mut self.shadow] {
            if let Some(side) = side.model(model) {
                side.refresh(model);
            }
        }
    }

    /// Returns the row that the shadow would have picked; `None` without candidates.
    fn decide(&mut self, live: &ObservedDecision, model: &Model) -> Option<u32> {
        // No strategy decided, so that the shadow's would not have decided either.
        if live.is_next_probe {
            return Some(live.row);
        }
        let side = self.shadow.model(model)?;
        let profile = self.router.weighted().map(Weighted::profile);
        let prompt = profile.filter(|profile| profile.reads_prompts()).map(|_| &self.chain);
        let readings = &mut self.scratch.readings;
        readings.candidates.clear();
        readings.candidates.extend_from_slice(&live.trace.pass(live.model)?.candidates);
        readings.rows.clear();
        readings.rows.extend(readings.candidates.iter().map(|one| one.row));
        // The live strategy's index differs from the shadow's, so its matches are replaced.
        for one in &mut readings.candidates {
            (one.matched_blocks, one.prompt_blocks) = (0, prompt.map_or(0, Chain::blocks));
        }
        if let Some(chain) = prompt {
            side.read_prefixes(chain, &readings.rows, &mut readings.candidates);
        }
        let features = RequestFeatures {
            prompt_tokens: live.request.prompt_tokens.0,
            session: live.session,
            ..prompt_features(prompt, self.tracking.params.block_tokens)
        };
        let mut random = ReplaySource { turn: side.turn, rng: &mut self.rng };
        let context = &mut RouteContext {
            random: &mut random,
            scratch: &mut self.scratch,
            recorder: &mut NoRecord,
        };
        let strategy = self.router.strategy_of(model, live.at);
        let picked = self.router.choose(strategy, &features, live.model, context)?;
        side.turn += u64::from(picked.turn.is_some());
        Some(picked.row)
    }

    /// Returns the tokens that each side expects to find cached; then both sides store the prompt.
    fn compare_rows(
        &mut self,
        live: &ObservedDecision,
        model: &Model,
        row: Option<u32>,
    ) -> Option<Compared> {
        let (chain, tracking) = (&self.chain, self.tracking);
        let tokens = |blocks: u32| u64::from(blocks) * u64::from(chain.block_tokens());
        let live_side = self.live.model(model)?;
        let shadow_side = self.shadow.model(model)?;
        let compared = row.map(|row| Compared {
            is_same: row == live.row,
            prompt: tokens(chain.blocks()),
            live: tokens(live_side.matched(live.row, chain)),
            shadow: tokens(shadow_side.matched(row, chain)),
        });
        for (side, row) in [(shadow_side, row), (live_side, Some(live.row))] {
            if let Some((row, serving)) =
                row.and_then(|row| Some((row, model.serving.get(row as usize)?)))
            {
                side.store(serving, row, chain, tracking);
            }
        }
        compared
    }
}

/// Returns a number in 0..1 that follows from a hash and is independent of its other uses.
fn to_share(hash: u64) -> f64 {
    // The upper bits make the number.
    f64::from(u32::try_from(mix(hash ^ GOLDEN_GAMMA) >> 32).unwrap_or(0)) / 4_294_967_296.0
}
