//! Rotation and randomness of decisions: the only state a decision changes, so that a dry run and a
//! replay are the same decision with another source.

use std::sync::atomic::Ordering;

use rand::rngs::SmallRng;

use crate::fleet::{ModelId, Topology};

/// Rotation and randomness of one decision.
pub trait RandomSource {
    /// The model's turn; a live source moves it on.
    fn turn(&mut self, model: ModelId) -> u64;
    /// The generator that random picks draw from.
    fn rng(&mut self) -> &mut SmallRng;
}

/// The source of decisions that are acted on: the turn moves on.
#[derive(Debug)]
pub struct Live<'a> {
    /// Whose turns.
    pub topology: &'a Topology,
    /// Seeded by the caller.
    pub rng: &'a mut SmallRng,
}

impl RandomSource for Live<'_> {
    fn turn(&mut self, model: ModelId) -> u64 {
        self.topology.model(model).map_or(0, |model| model.turn.fetch_add(1, Ordering::Relaxed))
    }

    fn rng(&mut self) -> &mut SmallRng {
        self.rng
    }
}

/// The source of dry runs: the turn is read and stays.
#[derive(Debug)]
pub struct Peek<'a> {
    /// Whose turns.
    pub topology: &'a Topology,
    /// Seeded by the caller.
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
pub struct Replay<'a> {
    /// The turn.
    pub turn: u64,
    /// Seeded as the recorded decision's.
    pub rng: &'a mut SmallRng,
}

impl RandomSource for Replay<'_> {
    fn turn(&mut self, _model: ModelId) -> u64 {
        self.turn
    }

    fn rng(&mut self) -> &mut SmallRng {
        self.rng
    }
}
