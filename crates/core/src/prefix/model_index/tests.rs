//! Tests of slots, shards, events and the capacity that models share.

use super::*;

const KEPT: CacheState = CacheState { capacity: 100, block_tokens: 16, epoch: 0 };

fn prefixes(bytes: usize) -> ModelIndex {
    ModelIndex::new(MemoryBudget::new(bytes))
}

fn ids(serials: &[u64]) -> impl Iterator<Item = u64> + Clone + '_ {
    serials.iter().copied()
}

#[test]
fn slots_are_stable_and_reused_after_removal() {
    let prefixes = prefixes(1 << 20);
    let first = prefixes.assign(ids(&[7, 3, 9]));
    for slot in &first {
        prefixes.record(*slot, &[1, 2, 3], KEPT);
    }
    let second = prefixes.assign(ids(&[9, 7, 4]));
    assert_eq!((second[0], second[1]), (first[2], first[0]), "in any order");
    assert_eq!(second[2], first[1], "a free slot is reused");
    assert_eq!(prefixes.held(second[2]), 0);
    assert_eq!(prefixes.held(second[0]), 3);
    assert_eq!(prefixes.matched(second[0], &[1, 2, 9]), 2);
    assert_eq!(prefixes.matched(second[2], &[1, 2, 9]), 0);
    prefixes.apply(second[0], CacheEvent::Cleared);
    assert_eq!(prefixes.held(second[0]), 0);
}

#[test]
fn more_than_64_backends_use_several_shards() {
    let prefixes = prefixes(1 << 24);
    let all: Vec<u64> = (0..200).collect();
    let slots = prefixes.assign(ids(&all));
    assert_eq!(slots[199], Slot { shard: 3, bit: 7 });
    prefixes.record(slots[199], &[1, 2], KEPT);
    prefixes.record(slots[135], &[1, 2, 3], KEPT);
    let held: Vec<u32> = [199, 135, 7].map(|index| prefixes.held(slots[index])).into();
    assert_eq!(held, [2, 3, 0], "equal bits of different shards are independent");
}

#[test]
fn engine_restart_clears_its_blocks() {
    let prefixes = prefixes(1 << 20);
    let slots = prefixes.assign(ids(&[1, 2]));
    for slot in &slots {
        prefixes.record(*slot, &[1, 2, 3, 4], KEPT);
    }
    prefixes.record(slots[0], &[9], CacheState { epoch: 1, ..KEPT });
    assert_eq!((prefixes.held(slots[0]), prefixes.held(slots[1])), (1, 4));
    prefixes.record(slots[1], &[1], CacheState { capacity: 2, ..KEPT });
    assert_eq!(prefixes.held(slots[1]), 2);
    prefixes.sync_epochs(slots.iter().copied().zip([1, 1]));
    assert_eq!((prefixes.held(slots[0]), prefixes.held(slots[1])), (1, 0), "also without a record");
}

#[test]
fn cache_events_update_the_prediction() {
    let prefixes = prefixes(1 << 20);
    let slots = prefixes.assign(ids(&[1]));
    prefixes.record(slots[0], &[1, 2, 3, 4], KEPT);
    let longest = |chain: &[u64]| {
        let mut found = 0;
        prefixes.read(|all| all[0].longest(chain, 1, |_, length| found = length));
        found
    };
    prefixes.apply(slots[0], CacheEvent::Removed(&[3]));
    assert_eq!((longest(&[1, 2, 3, 4]), prefixes.held(slots[0])), (2, 2));
    prefixes.apply(slots[0], CacheEvent::Stored(&[1, 2, 3]));
    assert_eq!(longest(&[1, 2, 3, 4]), 3);
    prefixes.apply(slots[0], CacheEvent::Removed(&[1]));
    assert_eq!((longest(&[1, 2, 3, 4]), prefixes.held(slots[0])), (0, 0));
    prefixes.apply(slots[0], CacheEvent::Stored(&[1, 2, 3]));
    prefixes.apply(slots[0], CacheEvent::Cleared);
    assert_eq!((longest(&[1]), prefixes.held(slots[0])), (0, 0));
}

/// INV-7: at every record the models of a backend together hold at most the capacity of a single
/// one.
#[test]
fn models_of_a_backend_share_its_capacity() {
    let cache = Arc::new(EngineCache::default());
    let models: Vec<ModelIndex> = (0..3).map(|_| prefixes(1 << 24)).collect();
    let slots: Vec<Slot> = models
        .iter()
        .map(|model| {
            let slot = model.assign(ids(&[7]))[0];
            model.share(std::iter::once((slot, &cache)));
            slot
        })
        .collect();
    let held = || [0, 1, 2].map(|model: usize| models[model].held(slots[model]));
    let record = |model: usize, prompts: std::ops::Range<u64>| {
        for prompt in prompts {
            let chain: Vec<u64> = (0..10)
                .map(|block| (prompt << 16 | block << 8 | model as u64).wrapping_mul(0x9e37_79b9))
                .collect();
            models[model].record(slots[model], &chain, KEPT);
            assert!(held().iter().sum::<u32>() <= KEPT.capacity, "{:?}", held());
            assert_eq!(cache.held(), 16 * u64::from(held().iter().sum::<u32>()));
        }
    };
    record(0, 0..50);
    assert_eq!(held(), [93, 0, 0], "1/16 is left to the others");
    record(1, 0..50);
    assert_eq!(held(), [93, 7, 0]);
    models[0].evict_to(slots[0], 16 * 40);
    record(1, 50..100);
    record(2, 0..50);
    assert_eq!(held(), [40, 53, 7]);
    // A prompt longer than the capacity, and a model that leaves.
    let long: Vec<u64> = (1..500).collect();
    models[2].record(slots[2], &long, KEPT);
    assert_eq!(held(), [40, 53, 7]);
    models[1].assign(ids(&[]));
    assert_eq!((cache.held(), held()[1]), (16 * 47, 0));
    record(0, 100..150);
    assert_eq!(held(), [86, 0, 7], "two models are left");
}

#[test]
fn changed_block_size_clears_the_index() {
    let prefixes = prefixes(1 << 20);
    let slots = prefixes.assign(ids(&[1]));
    assert_eq!(prefixes.block_tokens(), None);
    prefixes.record(slots[0], &[1, 2], KEPT);
    prefixes.set_block_tokens(None);
    prefixes.set_block_tokens(Some(16));
    assert_eq!((prefixes.block_tokens(), prefixes.held(slots[0])), (Some(16), 2));
    prefixes.set_block_tokens(Some(32));
    assert_eq!((prefixes.block_tokens(), prefixes.held(slots[0])), (Some(32), 0));
    prefixes.record(slots[0], &[7], KEPT);
    prefixes.set_block_tokens(Some(32));
    assert_eq!(prefixes.held(slots[0]), 1);
}
