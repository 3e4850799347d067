//! The cost of a queue, in time and in bytes per request: one request joins and the next one leaves
//! for a backend, while others wait; a client leaves from anywhere in it.

#![allow(
    clippy::unwrap_used,
    clippy::print_stdout,
    clippy::indexing_slicing,
    reason = "a bench's own data, and a report of sizes"
)]

use std::hint::black_box;
use std::task::{Context, Waker};

use criterion::{BenchmarkId, Criterion, criterion_group, criterion_main};
use penstock_api::units::Timestamp;
use penstock_core::admission::queue::{Cost, EntryId, ModelQueue, Newcomer, QueueEnd, QueueRules};
use penstock_core::fleet::{BackendId, BackendSet};

const SIZES: [usize; 4] = [100, 1_000, 10_000, 100_000];
const RULES: QueueRules = QueueRules { size: usize::MAX, newest_first: false };
/// Clients with requests in the queue.
const OWNERS: u64 = 50;

fn index(n: u64, length: usize) -> usize {
    usize::try_from(n).unwrap() % length
}

/// A request, with every second one an objective, of three priorities and of two kinds.
fn newcomer(n: u64) -> Newcomer {
    let mut backends = BackendSet::default();
    backends.insert(BackendId(1));
    if n.is_multiple_of(8) {
        backends.insert(BackendId(2));
    }
    let arrived = n * 100;
    Newcomer {
        backends,
        priority: [0, 0, 1, -1][index(n, 4)],
        owner: n.wrapping_mul(0x9e37_79b9_7f4a_7c15) % OWNERS,
        weight: 1,
        due: n
            .is_multiple_of(2)
            .then_some(Timestamp(arrived + 3_000_000_000 + n * 7_919 % 1_000_000)),
        until: Timestamp(arrived + 10_000_000_000),
    }
}

/// A queue in which requests wait, and how many have joined.
struct Filled {
    queue: ModelQueue,
    joined: u64,
    last: EntryId,
}

impl Filled {
    fn new(size: usize) -> Self {
        let mut queue = ModelQueue::default();
        let mut last = None;
        for n in 0..size as u64 {
            last = Some(join(&mut queue, n));
        }
        Self { queue, joined: size as u64, last: last.unwrap() }
    }

    fn join(&mut self) -> EntryId {
        self.last = join(&mut self.queue, self.joined);
        self.joined += 1;
        self.last
    }

    fn serve(&mut self) {
        let next = self.queue.turn().unwrap();
        let cost = Cost { prompt: 300, output: 0 };
        self.queue.serve(next, cost, Timestamp(self.joined * 100));
    }
}

fn join(queue: &mut ModelQueue, n: u64) -> EntryId {
    let one = newcomer(n);
    let joined = queue.join(&one, RULES, Timestamp(n * 100)).unwrap();
    let cx = Context::from_waker(Waker::noop());
    let _turn = queue.poll(joined.id, &cx);
    joined.id
}

fn join_and_serve(criterion: &mut Criterion) {
    let mut group = criterion.benchmark_group("queue/join_and_serve");
    for size in SIZES {
        let mut filled = Filled::new(size);
        group.bench_function(BenchmarkId::from_parameter(size), |bencher| {
            bencher.iter(|| {
                filled.join();
                filled.serve();
            });
        });
        assert_eq!(black_box(&filled.queue).len(), size);
    }
    group.finish();
}

/// The client of a request in the middle leaves, and another one comes.
fn leave(criterion: &mut Criterion) {
    let mut group = criterion.benchmark_group("queue/leave");
    for size in SIZES {
        let mut queue = ModelQueue::default();
        let mut ids: Vec<EntryId> = (0..size as u64).map(|n| join(&mut queue, n)).collect();
        let mut joined = size as u64;
        group.bench_function(BenchmarkId::from_parameter(size), |bencher| {
            bencher.iter(|| {
                let at = index(joined.wrapping_mul(0x9e37_79b9_7f4a_7c15), size);
                queue.leave(ids[at], QueueEnd::ClientLeft, Timestamp(joined * 100));
                ids[at] = join(&mut queue, joined);
                joined += 1;
            });
        });
    }
    group.finish();
}

fn bytes_per_request(_: &mut Criterion) {
    for size in SIZES {
        let mut filled = None;
        let counted = allocation_counter::measure(|| filled = Some(Filled::new(size)));
        let each = counted.bytes_current / i64::try_from(size).unwrap();
        println!("queue/bytes: {each} bytes for each of {size} requests");
        drop(filled);
    }
}

criterion_group!(benches, bytes_per_request, join_and_serve, leave);
criterion_main!(benches);
