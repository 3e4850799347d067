use std::collections::{BTreeMap, BTreeSet, VecDeque};

use proptest::prelude::*;

use super::*;

const PLENTY: usize = 1 << 30;

/// A plain model of the index: a list per slot, the newest block first.
#[derive(Default)]
struct Plain {
    slots: Vec<VecDeque<u64>>,
    capacity: usize,
    /// The blocks that each slot holds but has missed since.
    missed: Vec<BTreeSet<u64>>,
    /// The predecessor of each block.
    before: BTreeMap<u64, u64>,
}

impl Plain {
    fn new(capacity: u32) -> Self {
        let slots = vec![VecDeque::new(); 4];
        let missed = vec![BTreeSet::new(); 4];
        Self { slots, missed, capacity: capacity as usize, ..Self::default() }
    }

    fn take(&mut self, step: &Step) {
        match step {
            Step::Record(slot, chain) => self.record(*slot, chain),
            Step::Clear(slot) => self.slots[*slot].clear(),
            Step::Forget(slot, blocks) => {
                let gone = self.followers(*slot, blocks);
                self.slots[*slot].retain(|hash| !gone.contains(hash));
            }
            Step::Miss(slot, chain) => {
                let missed = self.followers(*slot, &chain[..chain.len().min(1)]);
                self.missed[*slot].extend(missed);
            }
        }
        for (list, missed) in self.slots.iter().zip(&mut self.missed) {
            missed.retain(|hash| list.contains(hash));
        }
    }

    /// Returns the given blocks that a slot holds, with all that follow them.
    fn followers(&self, slot: usize, blocks: &[u64]) -> BTreeSet<u64> {
        let is_follower = |hash: &&u64| {
            std::iter::successors(Some(**hash), |hash| self.before.get(hash).copied())
                .any(|hash| blocks.contains(&hash))
        };
        self.slots[slot].iter().filter(is_follower).copied().collect()
    }

    fn record(&mut self, slot: usize, chain: &[u64]) {
        self.before.extend(chain.iter().skip(1).copied().zip(chain.iter().copied()));
        let list = &mut self.slots[slot];
        for hash in chain.iter().take(self.capacity).rev() {
            self.missed[slot].remove(hash);
            list.retain(|held| held != hash);
            list.push_front(*hash);
            list.truncate(self.capacity);
        }
    }

    fn longest(&self, slot: usize, chain: &[u64]) -> usize {
        let is_there =
            |hash: &&u64| self.slots[slot].contains(hash) && !self.missed[slot].contains(hash);
        chain.iter().take_while(is_there).count()
    }
}

fn found(index: &PrefixIndex, chain: &[u64], slots: usize) -> Vec<u32> {
    let mut lengths = vec![u32::MAX; slots];
    index.longest(chain, (1 << slots) - 1, |slot, length| lengths[slot] = length);
    lengths
}

/// Returns a chain of a family: the first `shared` blocks are the family's, the others its own.
fn chain(family: u64, shared: u64, own: u64, length: u64) -> Vec<u64> {
    let block = |last: &mut u64, at: u64| {
        let own = if at < shared { 0 } else { own + 1 };
        *last = xxhash_rust::xxh3::xxh3_64_with_seed(
            &[family, own].map(u64::to_le_bytes).concat(),
            *last,
        );
        Some(*last)
    };
    (0..length).scan(0, block).collect()
}

#[derive(Debug, Clone)]
enum Step {
    Record(usize, Vec<u64>),
    Clear(usize),
    Forget(usize, Vec<u64>),
    /// The slot had nothing of a chain.
    Miss(usize, Vec<u64>),
}

fn chains() -> impl Strategy<Value = Vec<u64>> {
    (0_u64..3, 0_u64..6, 0_u64..4, 0_u64..24)
        .prop_map(|(family, shared, own, length)| chain(family, shared, own, length))
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let some = (0_usize..4, chains(), 0_usize..8, 0_usize..4);
    let step = prop_oneof![
        12 => (0_usize..4, chains()).prop_map(|(slot, chain)| Step::Record(slot, chain)),
        2 => some.prop_map(|(slot, chain, from, count)| {
            Step::Forget(slot, chain.into_iter().skip(from).take(count).collect())
        }),
        2 => (0_usize..4, chains()).prop_map(|(slot, chain)| Step::Miss(slot, chain)),
        1 => (0_usize..4).prop_map(Step::Clear),
    ];
    prop::collection::vec(step, 1..60)
}

fn take(index: &mut PrefixIndex, step: &Step) {
    match step {
        Step::Record(slot, chain) => index.record(*slot, chain),
        Step::Clear(slot) => index.clear(*slot),
        Step::Forget(slot, blocks) => index.remove(*slot, blocks),
        Step::Miss(slot, chain) => {
            chain.first().into_iter().for_each(|first| index.miss(*slot, *first))
        }
    }
}

/// Checks the invariants of the lists.
fn check_lists(index: &PrefixIndex) {
    for (number, slot) in index.slots.iter().enumerate() {
        let (mut count, mut newer, mut run) = (0, NONE, slot.newest);
        while let Some(hold) = index.runs.hold(run, number) {
            let own = index.runs.get(run).unwrap();
            assert!(hold.blocks > 0 && hold.blocks <= own.len());
            assert_eq!(hold.newer, newer);
            assert_eq!(index.runs.find(own.head()).unwrap().0, run);
            (count, newer, run) = (count + hold.blocks, run, hold.older);
        }
        assert_eq!((run, slot.oldest, slot.count), (NONE, newer, count));
        assert!(count <= slot.capacity, "INV-7");
    }
}

proptest! {
    #[test]
    fn lookups_and_eviction_match_exact_lru(capacity in 1_u32..60, steps in steps()) {
        let mut index = PrefixIndex::new(capacity, MemoryBudget::new(PLENTY));
        let mut plain = Plain::new(capacity);
        for step in &steps {
            take(&mut index, step);
            plain.take(step);
            check_lists(&index);
            for slot in 0..4 {
                prop_assert_eq!(index.held(slot) as usize, plain.slots[slot].len());
            }
            let distinct: BTreeSet<u64> = plain.slots.iter().flatten().copied().collect();
            prop_assert_eq!(index.blocks(), distinct.len());
            for other in &steps {
                if let Step::Record(_, chain) = other {
                    let expected: Vec<usize> = (0..4).map(|slot| plain.longest(slot, chain)).collect();
                    let found: Vec<usize> =
                        found(&index, chain, 4).into_iter().map(|length| length as usize).collect();
                    prop_assert_eq!(found, expected);
                }
            }
        }
    }
}

#[test]
fn first_blocks_are_evicted_last() {
    let mut index = PrefixIndex::new(10, MemoryBudget::new(PLENTY));
    let (old, new) = (chain(1, 0, 0, 8), chain(2, 0, 0, 6));
    index.record(0, &old);
    index.record(0, &new);
    assert_eq!(found(&index, &old, 1), [4], "four blocks of the end made room");
    assert_eq!(found(&index, &new, 1), [6]);
}

#[test]
fn a_chain_longer_than_a_lane_keeps_its_beginning() {
    let mut index = PrefixIndex::new(5, MemoryBudget::new(PLENTY));
    index.record(3, &chain(1, 0, 0, 100));
    assert_eq!(index.held(3), 5);
    assert_eq!(found(&index, &chain(1, 0, 0, 100), 4), [0, 0, 0, 5]);
}

/// Returns two prompts of six blocks, of which they share four; both slots were sent both.
fn two_branches_on_two_slots() -> (PrefixIndex, [Vec<u64>; 2]) {
    let mut index = PrefixIndex::new(100, MemoryBudget::new(PLENTY));
    let branches = [0, 1].map(|own| chain(1, 4, own, 6));
    for slot in 0..2 {
        branches.iter().for_each(|branch| index.record(slot, branch));
    }
    (index, branches)
}

#[test]
fn a_gap_ends_a_prefix() {
    let (mut index, [first, second]) = two_branches_on_two_slots();
    index.remove(0, &first[2..3]);
    assert_eq!(found(&index, &first, 2), [2, 6], "blocks after the gap do not count");
    assert_eq!(found(&index, &second, 2), [2, 6]);
    index.remove(1, &first[..1]);
    assert_eq!(found(&index, &first, 2), [2, 0]);
}

#[test]
fn lower_capacity_evicts_at_once() {
    let mut index = PrefixIndex::new(100, MemoryBudget::new(PLENTY));
    index.record(0, &chain(1, 0, 0, 60));
    index.set_capacity(0, 20);
    assert_eq!(index.held(0), 20);
    assert_eq!(found(&index, &chain(1, 0, 0, 60), 1), [20]);
    index.set_capacity(0, 40);
    index.record(0, &chain(1, 0, 0, 60));
    assert_eq!(index.held(0), 40);
}

#[test]
fn memory_stays_within_its_budget_and_is_freed() {
    const LIMIT: usize = 100_000;
    let budget = MemoryBudget::new(LIMIT);
    let mut index = PrefixIndex::new(1 << 20, Arc::clone(&budget));
    for own in 0..200 {
        index.record(usize::try_from(own % 7).unwrap(), &chain(own, 0, 0, 20 + own * 37 % 480));
        assert!(budget.used() <= LIMIT);
    }
    let held: u32 = (0..7).map(|slot| index.held(slot)).sum();
    let beside = index.bytes() - budget.used();
    assert!(held as usize > LIMIT / 10 && beside < LIMIT / 50, "{held}, {beside}");
    assert!((0..7).all(|slot| index.held(slot) > 500), "the slot that holds most is evicted first");
    budget.set_limit(LIMIT / 10);
    let before = budget.used();
    index.record(0, &chain(1000, 0, 0, 500));
    assert!(budget.used() <= before, "nothing is added to what is too much");
    (0..7).for_each(|slot| index.clear(slot));
    assert_eq!((budget.used(), index.blocks()), (0, 0));
    index.record(0, &chain(1, 0, 0, 500));
    assert_eq!(found(&index, &chain(1, 0, 0, 500), 1), [500], "freed memory is used again");
    drop(index);
    assert_eq!(budget.used(), 0);
}

#[test]
fn memory_of_short_prompts_is_reused_for_long_ones() {
    const LIMIT: usize = 200_000;
    let budget = MemoryBudget::new(LIMIT);
    let mut index = PrefixIndex::new(1 << 20, Arc::clone(&budget));
    (0..10_000).for_each(|family| index.record(0, &chain(family, 0, 0, 1)));
    assert!(budget.used() > LIMIT / 2);
    for family in 10_000..10_100 {
        index.record(0, &chain(family, 0, 0, 500));
        assert!(budget.used() <= LIMIT && index.bytes() < LIMIT + LIMIT / 50);
    }
    assert!(index.held(0) as usize > LIMIT / 16, "{} blocks of 8 bytes", index.held(0));
}

#[test]
fn missed_prefix_counts_again_after_a_record() {
    let (mut index, [first, second]) = two_branches_on_two_slots();
    index.miss(1, first[0]);
    assert_eq!(found(&index, &first, 2), [6, 0]);
    index.record(1, &first);
    assert_eq!((found(&index, &first, 2), found(&index, &second, 2)), (vec![6, 6], vec![6, 4]));
    index.slots[0].missed = u32::MAX;
    index.miss(0, first[0]);
    assert_eq!((found(&index, &first, 2), index.held(0)), (vec![0, 6], 0), "the slot starts again");
    index.record(0, &second);
    assert_eq!(found(&index, &second, 2), [6, 4]);
}

#[test]
fn growing_conversation_stays_one_run() {
    let mut index = PrefixIndex::new(1 << 20, MemoryBudget::new(PLENTY));
    let whole = chain(1, 0, 0, 1000);
    for turn in 1..=100 {
        index.record(0, &whole[..turn * 10]);
    }
    let bytes = index.bytes();
    assert!(bytes < 20_000, "{bytes}");
    assert_eq!(found(&index, &whole, 1), [1000]);
}

#[test]
fn memory_per_block_is_bounded() {
    const BLOCKS: u64 = 31_250;
    let shared = chain(1, 0, 0, BLOCKS);
    let mut index = PrefixIndex::new(31_250, MemoryBudget::new(PLENTY));
    (0..4).for_each(|slot| index.record(slot, &shared));
    let each = index.bytes() as f64 / (4 * BLOCKS) as f64;
    assert!(each <= 24.0, "{each} bytes for each block and backend, shared by four");
    let mut index = PrefixIndex::new(31_250, MemoryBudget::new(PLENTY));
    (0..4).zip(0..4).for_each(|(slot, family)| index.record(slot, &chain(family, 0, 0, BLOCKS)));
    let each = index.bytes() as f64 / (4 * BLOCKS) as f64;
    assert!(each <= 64.0, "{each} bytes for each block and backend, unshared");
    let mut index = PrefixIndex::new(31_250, MemoryBudget::new(PLENTY));
    (0..BLOCKS).for_each(|family| index.record(0, &chain(family, 0, 0, 1)));
    let each = index.bytes() as f64 / BLOCKS as f64;
    assert!(each <= 88.0, "{each} bytes for a prompt of one block, the worst case");
}
