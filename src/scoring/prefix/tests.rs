use std::collections::{BTreeSet, VecDeque};

use proptest::prelude::*;

use super::*;

const PLENTY: usize = 1 << 30;

/// The same, as plainly as it can be said: a list per lane, the newest in front.
#[derive(Default)]
struct Plain {
    lanes: Vec<VecDeque<u64>>,
    capacity: usize,
}

impl Plain {
    fn record(&mut self, lane: usize, chain: &[u64]) {
        let list = &mut self.lanes[lane];
        for hash in chain.iter().take(self.capacity).rev() {
            list.retain(|held| held != hash);
            list.push_front(*hash);
            list.truncate(self.capacity);
        }
    }

    fn longest(&self, lane: usize, chain: &[u64]) -> usize {
        chain.iter().take_while(|hash| self.lanes[lane].contains(hash)).count()
    }
}

fn found(index: &PrefixIndex, chain: &[u64], lanes: usize) -> Vec<u32> {
    let mut lengths = vec![u32::MAX; lanes];
    index.longest(chain, (1 << lanes) - 1, |lane, length| lengths[lane] = length);
    lengths
}

/// A chain of a family: the first `shared` blocks are the family's, the others its own.
fn chain(family: u64, shared: u64, own: u64, length: u64) -> Vec<u64> {
    let hash = |at: u64| {
        let text =
            if at < shared { format!("{family}/{at}") } else { format!("{family}/{own}/{at}") };
        xxhash_rust::xxh3::xxh3_64(text.as_bytes())
    };
    (0..length).map(hash).collect()
}

#[derive(Debug, Clone)]
enum Step {
    Record(usize, Vec<u64>),
    Forget(usize, Vec<u64>, usize),
    Clear(usize),
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let chains = (0_u64..3, 0_u64..6, 0_u64..4, 0_u64..24)
        .prop_map(|(family, shared, own, length)| chain(family, shared, own, length));
    let step = prop_oneof![
        12 => (0_usize..4, chains.clone()).prop_map(|(lane, chain)| Step::Record(lane, chain)),
        2 => (0_usize..4, chains, 0_usize..8).prop_map(|(lane, chain, kept)| Step::Forget(lane, chain, kept)),
        1 => (0_usize..4).prop_map(Step::Clear),
    ];
    prop::collection::vec(step, 1..40)
}

proptest! {
    #[test]
    fn it_holds_and_finds_what_exact_lru_does(capacity in 1_u32..20, steps in steps()) {
        let mut index = PrefixIndex::new(capacity, Budget::new(PLENTY));
        let mut plain = Plain { lanes: vec![VecDeque::new(); 4], capacity: capacity as usize };
        for step in &steps {
            match step {
                Step::Record(lane, chain) => {
                    index.record(*lane, chain);
                    plain.record(*lane, chain);
                }
                Step::Forget(lane, chain, kept) => {
                    index.forget(*lane, chain, *kept);
                    let gone: BTreeSet<u64> = chain.iter().skip(*kept).copied().collect();
                    plain.lanes[*lane].retain(|hash| !gone.contains(hash));
                }
                Step::Clear(lane) => {
                    index.clear(*lane);
                    plain.lanes[*lane].clear();
                }
            }
            for lane in 0..4 {
                prop_assert_eq!(index.held(lane) as usize, plain.lanes[lane].len());
                prop_assert!(index.held(lane) <= capacity, "INV-7");
            }
            let distinct: BTreeSet<u64> = plain.lanes.iter().flatten().copied().collect();
            prop_assert_eq!(index.blocks(), distinct.len());
            for other in &steps {
                if let Step::Record(_, chain) = other {
                    let expected: Vec<usize> = (0..4).map(|lane| plain.longest(lane, chain)).collect();
                    let found: Vec<usize> =
                        found(&index, chain, 4).into_iter().map(|length| length as usize).collect();
                    prop_assert_eq!(found, expected);
                }
            }
        }
    }
}

#[test]
fn the_beginning_of_a_chain_is_forgotten_last() {
    let mut index = PrefixIndex::new(10, Budget::new(PLENTY));
    let (old, new) = (chain(1, 0, 0, 8), chain(2, 0, 0, 6));
    index.record(0, &old);
    index.record(0, &new);
    assert_eq!(found(&index, &old, 1), [4], "four blocks of the end made room");
    assert_eq!(found(&index, &new, 1), [6]);
}

#[test]
fn a_chain_longer_than_a_lane_keeps_its_beginning() {
    let mut index = PrefixIndex::new(5, Budget::new(PLENTY));
    index.record(3, &chain(1, 0, 0, 100));
    assert_eq!(index.held(3), 5);
    assert_eq!(found(&index, &chain(1, 0, 0, 100), 4), [0, 0, 0, 5]);
}

#[test]
fn a_gap_ends_a_prefix() {
    let mut index = PrefixIndex::new(100, Budget::new(PLENTY));
    let chain = chain(1, 0, 0, 6);
    index.record(0, &chain);
    index.record(1, &chain);
    index.forget(0, &chain[..3], 2);
    assert_eq!(found(&index, &chain, 2), [2, 6], "what is behind the gap does not count");
}

#[test]
fn capacity_follows_what_is_told() {
    let mut index = PrefixIndex::new(100, Budget::new(PLENTY));
    index.record(0, &chain(1, 0, 0, 60));
    index.set_capacity(0, 20);
    assert_eq!(index.held(0), 20);
    assert_eq!(found(&index, &chain(1, 0, 0, 60), 1), [20]);
    index.set_capacity(0, 40);
    index.record(0, &chain(1, 0, 0, 60));
    assert_eq!(index.held(0), 40);
}

#[test]
fn memory_stays_within_its_budget_and_is_given_back() {
    let budget = Budget::new(10 * CHUNK_BYTES);
    let mut index = PrefixIndex::new(1 << 20, Arc::clone(&budget));
    for own in 0..100 {
        index.record(usize::try_from(own % 7).unwrap(), &chain(own, 0, 0, 500));
    }
    assert!(budget.used() <= 10 * CHUNK_BYTES);
    let held: u32 = (0..7).map(|lane| index.held(lane)).sum();
    assert!(held <= 10 * CHUNK && held > 8 * CHUNK, "{held}");
    assert!(index.bytes() <= 11 * CHUNK_BYTES, "{}", index.bytes());
    (0..7).for_each(|lane| index.clear(lane));
    assert_eq!((budget.used(), index.blocks()), (0, 0));
    index.record(0, &chain(1, 0, 0, 500));
    assert_eq!(found(&index, &chain(1, 0, 0, 500), 1), [500], "freed memory is used again");
    drop(index);
    assert_eq!(budget.used(), 0);
}

#[test]
fn a_block_takes_no_more_than_it_should() {
    const BLOCKS: u64 = 31_250;
    let shared = chain(1, 0, 0, BLOCKS);
    let mut index = PrefixIndex::new(31_250, Budget::new(PLENTY));
    (0..4).for_each(|lane| index.record(lane, &shared));
    let each = index.bytes() as f64 / (4 * BLOCKS) as f64;
    assert!(each <= 24.0, "{each} bytes for each block and backend, shared by four");
    let mut index = PrefixIndex::new(31_250, Budget::new(PLENTY));
    (0..4).zip(0..4).for_each(|(lane, family)| index.record(lane, &chain(family, 0, 0, BLOCKS)));
    let each = index.bytes() as f64 / (4 * BLOCKS) as f64;
    assert!(each <= 64.0, "{each} bytes for each block and backend, unshared");
}
