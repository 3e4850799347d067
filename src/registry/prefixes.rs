//! Which prompts of a model went where: the prefix index of one model, carried from topology to
//! topology.

use std::sync::Arc;

use parking_lot::{Mutex, MutexGuard};

use crate::scoring::prefix::{Budget, LANES, PrefixIndex};

/// The place of a backend in a model's index.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Lane {
    /// Which of the model's indexes: each has room for 64 backends.
    pub shard: u16,
    /// The bit within.
    pub bit: u8,
}

/// The prefix index of one model. The one lock of a decision: held for a lookup, and for a record.
#[derive(Debug)]
pub struct Prefixes {
    lanes: Mutex<Vec<Option<u64>>>,
    shards: Mutex<Vec<PrefixIndex>>,
    /// The epoch of the engine in each lane; locked behind `shards`.
    epochs: Mutex<Vec<u32>>,
    budget: Arc<Budget>,
}

/// What is known of a backend's cache.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Kept {
    /// The most blocks it holds.
    pub capacity: u32,
    /// How often its engine has restarted.
    pub epoch: u32,
}

impl Prefixes {
    /// An empty index, its memory a part of `budget`.
    pub fn new(budget: Arc<Budget>) -> Self {
        Self { lanes: Mutex::default(), shards: Mutex::default(), epochs: Mutex::default(), budget }
    }

    /// The lanes of the backends that serve the model now, by their serials and in their order; what
    /// was known of others is forgotten.
    pub fn assign(&self, backends: impl Iterator<Item = u64> + Clone) -> Vec<Lane> {
        let mut lanes = self.lanes.lock();
        let mut shards = self.shards.lock();
        for (place, lane) in lanes.iter_mut().enumerate() {
            if lane.is_some_and(|id| !backends.clone().any(|other| other == id)) {
                *lane = None;
                if let Some(shard) = shards.get_mut(place / LANES) {
                    shard.clear(place % LANES);
                }
            }
        }
        let place = |id| {
            let known = lanes.iter().position(|lane| *lane == Some(id));
            let place = known.or_else(|| lanes.iter().position(Option::is_none));
            let place = place.unwrap_or(lanes.len());
            if place == lanes.len() {
                lanes.push(None);
            }
            if let Some(lane) = lanes.get_mut(place) {
                *lane = Some(id);
            }
            Lane {
                shard: u16::try_from(place / LANES).unwrap_or(u16::MAX),
                bit: u8::try_from(place % LANES).unwrap_or(u8::MAX),
            }
        };
        backends.map(place).collect()
    }

    /// The indexes, for lookups.
    pub fn shards(&self) -> MutexGuard<'_, Vec<PrefixIndex>> {
        self.shards.lock()
    }

    /// Notes that a backend was sent a prompt. What it was sent before its engine restarted is
    /// forgotten.
    pub fn record(&self, lane: Lane, chain: &[u64], kept: Kept) {
        let capacity = kept.capacity;
        let place = usize::from(lane.shard) * LANES + usize::from(lane.bit);
        let mut shards = self.shards.lock();
        while shards.len() <= usize::from(lane.shard) {
            shards.push(PrefixIndex::new(capacity, Arc::clone(&self.budget)));
        }
        if let Some(shard) = shards.get_mut(usize::from(lane.shard)) {
            let mut epochs = self.epochs.lock();
            if epochs.len() <= place {
                epochs.resize(place + 1, kept.epoch);
            }
            if let Some(epoch) = epochs.get_mut(place).filter(|epoch| **epoch != kept.epoch) {
                *epoch = kept.epoch;
                shard.clear(usize::from(lane.bit));
            }
            shard.set_capacity(usize::from(lane.bit), capacity);
            shard.record(usize::from(lane.bit), chain);
        }
    }

    /// Forgets all but the first `kept` blocks of a prompt on a backend.
    pub fn forget(&self, lane: Lane, chain: &[u64], kept: usize) {
        if let Some(shard) = self.shards.lock().get_mut(usize::from(lane.shard)) {
            shard.forget(usize::from(lane.bit), chain, kept);
        }
    }

    /// Forgets all a backend is believed to have: it was started anew.
    pub fn clear(&self, lane: Lane) {
        if let Some(shard) = self.shards.lock().get_mut(usize::from(lane.shard)) {
            shard.clear(usize::from(lane.bit));
        }
    }

    /// Blocks a backend is believed to have.
    pub fn held(&self, lane: Lane) -> u32 {
        let shards = self.shards.lock();
        shards.get(usize::from(lane.shard)).map_or(0, |shard| shard.held(usize::from(lane.bit)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const KEPT: Kept = Kept { capacity: 100, epoch: 0 };

    fn ids(serials: &[u64]) -> impl Iterator<Item = u64> + Clone + '_ {
        serials.iter().copied()
    }

    #[test]
    fn backends_keep_their_lanes_and_what_leaves_is_forgotten() {
        let prefixes = Prefixes::new(Budget::new(1 << 20));
        let first = prefixes.assign(ids(&[7, 3, 9]));
        for lane in &first {
            prefixes.record(*lane, &[1, 2, 3], KEPT);
        }
        let second = prefixes.assign(ids(&[9, 7, 4]));
        assert_eq!((second[0], second[1]), (first[2], first[0]), "whatever their order");
        assert_eq!(second[2], first[1], "a free lane is used again");
        assert_eq!(prefixes.held(second[2]), 0);
        assert_eq!(prefixes.held(second[0]), 3);
        prefixes.clear(second[0]);
        assert_eq!(prefixes.held(second[0]), 0);
    }

    #[test]
    fn there_is_room_for_any_number_of_backends() {
        let prefixes = Prefixes::new(Budget::new(1 << 24));
        let all: Vec<u64> = (0..200).collect();
        let lanes = prefixes.assign(ids(&all));
        assert_eq!(lanes[199], Lane { shard: 3, bit: 7 });
        prefixes.record(lanes[199], &[1, 2], KEPT);
        prefixes.record(lanes[135], &[1, 2, 3], KEPT);
        let held: Vec<u32> = [199, 135, 7].map(|index| prefixes.held(lanes[index])).into();
        assert_eq!(held, [2, 3, 0], "lanes of equal bits are not mixed up");
    }

    #[test]
    fn a_restart_forgets_and_capacity_follows() {
        let prefixes = Prefixes::new(Budget::new(1 << 20));
        let lanes = prefixes.assign(ids(&[1, 2]));
        for lane in &lanes {
            prefixes.record(*lane, &[1, 2, 3, 4], KEPT);
        }
        prefixes.record(lanes[0], &[9], Kept { epoch: 1, ..KEPT });
        assert_eq!((prefixes.held(lanes[0]), prefixes.held(lanes[1])), (1, 4));
        prefixes.record(lanes[1], &[1], Kept { capacity: 2, ..KEPT });
        assert_eq!(prefixes.held(lanes[1]), 2);
    }
}
