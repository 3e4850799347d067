//! Rotation and randomness of decisions: the only state that a decision changes, so that dry runs
//! and replays make the same decision with another source.

use std::sync::atomic::Ordering;

use rand::rngs::SmallRng;

use crate::fleet::{ModelId, Topology};

/// Rotation and randomness of one decision.
pub trait RandomSource {
    /// Returns the model's turn; a live source advances it.
    fn turn(&mut self, model: ModelId) -> u64;
    /// Returns the generator for random picks.
    fn rng(&mut self) -> &mut SmallRng;
}

/// The source of decisions that are acted on: it advances the turn.
#[derive(Debug)]
pub struct Live<'a> {
    /// The fleet with the turns of its models.
    pub topology: &'a Topology,
    /// A generator that the caller seeded.
    pub rng: &'a mut SmallRng,
}

impl RandomSource for Live<'_> {
    fn turn(&mut self, model: ModelId) -> u64 {
        // Relaxed: two requests must get two turns, in whatever order.
        self.topology.model(model).map_or(0, |model| model.turn.fetch_add(1, Ordering::Relaxed))
    }

    fn rng(&mut self) -> &mut SmallRng {
        self.rng
    }
}

/// The source of dry runs: it reads the turn and does not advance it.
#[derive(Debug)]
pub struct Peek<'a> {
    /// The fleet with the turns of its models.
    pub topology: &'a Topology,
    /// A generator that the caller seeded.
    pub rng: SmallRng,
}

impl RandomSource for Peek<'_> {
    fn turn(&mut self, model: ModelId) -> u64 {
        self.topology.model(model).map_or(0, |model| model.turn.load(Ordering::Relaxed))
    }

    fn rng(&mut self) -> &mut SmallRng {
        &mut self.rng
    }
}

/// The source of decisions about recorded readings: the turn is given.
#[derive(Debug)]
pub struct ReplaySource<'a> {
    pub turn: u64,
    /// A generator with the seed of the recorded decision.
    pub rng: &'a mut SmallRng,
}

impl RandomSource for ReplaySource<'_> {
    fn turn(&mut self, _model: ModelId) -> u64 {
        self.turn
    }

    fn rng(&mut self) -> &mut SmallRng {
        self.rng
    }
}
