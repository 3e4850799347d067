//! The thread that asks a shadow: takes sightings as they come, compares, counts.

use std::sync::Arc;
use std::sync::mpsc::Receiver;
use std::time::Duration;

use rand::rngs::SmallRng;
use rand::{Rng, SeedableRng};

use super::figures::{Compared, Counts};
use super::sides::{Measure, Sides};
use super::{Message, Sighting};
use crate::clock::now;
use crate::fleet::{BackendSet, Model, Topology};
use crate::mix::{GOLDEN_GAMMA, mix};
use crate::prefix::{Chain, MemoryBudget, prompt_chain};
use crate::routing::{Live, RouteInput, Router, RoutingDecision, Scratch, Weighted};
use crate::scoring::PrefixParams;

/// Where its own random picks begin. They need be nobody else's, and nobody guesses them.
const SEED: u64 = 0x5eed;

/// Decides anew what was decided, and counts how it compares.
#[derive(Debug)]
pub(super) struct Worker {
    router: Router,
    measure: Measure,
    sides: Sides,
    counts: Arc<Counts>,
    rng: SmallRng,
    scratch: Scratch,
    chain: Chain,
}

impl Worker {
    /// A worker that asks `router`; prompts are cut as it cuts them, else as the `live` one does.
    pub(super) fn new(
        (router, live): (Router, &Router),
        sample: f64,
        (pools, counts): ([Arc<MemoryBudget>; 2], Arc<Counts>),
    ) -> Self {
        let usual = |weighted: &Weighted| weighted.prefix_params(&Topology::default(), "");
        let cut = router.weighted().or(live.weighted()).map(usual);
        Self {
            router,
            measure: Measure { terms: cut.unwrap_or_default(), sample },
            sides: Sides::new(pools),
            counts,
            rng: SmallRng::seed_from_u64(SEED),
            scratch: Scratch::default(),
            chain: Chain::default(),
        }
    }

    /// Compares until nobody is left to show anything.
    pub(super) fn run(mut self, receiver: &Receiver<Message>) {
        while let Ok(Message { seen, in_flight, _claim }) = receiver.recv() {
            let lag = now().since(seen.at);
            self.take(&seen, in_flight.strong_count() > 0, lag);
        }
    }

    /// Compares one decision; `lag` is how long ago it was made.
    pub(super) fn take(&mut self, seen: &Sighting, is_in_flight: bool, lag: Duration) {
        let Some(model) = seen.fleet.model(seen.place.0) else { return };
        if !self.is_sampled(seen, model) {
            self.counts.leave_out();
            return;
        }
        self.cut(seen, model, self.measure.terms);
        self.sides.follow(&seen.fleet);
        self.sides.look(seen, is_in_flight);
        let decided = self.decide(seen, &model.name);
        self.counts.compare(self.compare(seen, decided), lag);
    }

    /// Whether a request is in the sample. Its first block decides, so that all turns of a
    /// conversation are in it or none. Without a whole block there is nothing to tell conversations
    /// by, nor anything of it cached: each such request is drawn by itself.
    fn is_sampled(&mut self, seen: &Sighting, model: &Model) -> bool {
        let sample = self.measure.sample;
        if sample >= 1.0 {
            return true;
        }
        self.cut(seen, model, PrefixParams { max_blocks: 1, ..self.measure.terms });
        let draw = match self.chain.hashes().first() {
            Some(first) => to_share(*first),
            None => self.rng.random(),
        };
        draw < sample
    }

    fn cut(&mut self, seen: &Sighting, model: &Model, terms: PrefixParams) {
        let terms = terms.following(model.prefixes.block_tokens());
        prompt_chain(&seen.request, &seen.body, &model.name, terms, &mut self.chain);
    }

    fn decide(&mut self, seen: &Sighting, model: &str) -> Option<RoutingDecision> {
        let fleet = &self.sides.shadow.fleet;
        let weighted = self.router.weighted();
        let reads_prompts = weighted.is_some_and(|weighted| weighted.profile().reads_prompts());
        let input = RouteInput {
            request: &seen.request,
            model,
            tokens: self.router.tokens_to_fit(&seen.request),
            fleet,
            tried: &BackendSet::default(),
            // That of the live decision: what is drawn from the time is drawn alike.
            now: seen.at,
            prompt: reads_prompts.then_some(&self.chain),
            session: seen.session,
        };
        let mut chance = Live { topology: fleet, rng: &mut self.rng };
        self.router.route(&input, &mut chance, &mut self.scratch).ok()
    }

    /// What each side is expected to find cached, and then that it has it.
    fn compare(&self, seen: &Sighting, decided: Option<RoutingDecision>) -> Option<Compared> {
        let Sides { live, shadow, .. } = &self.sides;
        let tokens = |blocks: u32| u64::from(blocks) * u64::from(self.chain.block_tokens());
        let compared = decided.map(|decision| {
            let place = (decision.model, decision.row);
            let compared = Compared {
                is_same: decision.backend == seen.backend,
                prompt: tokens(self.chain.blocks()),
                live: tokens(live.matched(seen.place, &self.chain)),
                shadow: tokens(shadow.matched(place, &self.chain)),
            };
            shadow.record(place, &self.chain, self.measure);
            compared
        });
        live.record(seen.place, &self.chain, self.measure);
        compared
    }
}

/// A number in 0..1 that follows from a hash and has nothing in common with other uses of it.
fn to_share(hash: u64) -> f64 {
    // The upper bits make the number.
    f64::from(u32::try_from(mix(hash ^ GOLDEN_GAMMA) >> 32).unwrap_or(0)) / 4_294_967_296.0
}
