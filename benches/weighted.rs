//! The cost of the weighted strategy: cutting a prompt into blocks, finding them in the index of a
//! full fleet, the whole decision, and recording its pick.

#![allow(
    clippy::unwrap_used,
    clippy::print_stdout,
    clippy::disallowed_methods,
    clippy::indexing_slicing,
    reason = "a bench's own data, and a report of percentiles"
)]

#[path = "support/percentiles.rs"]
mod percentiles;

use std::hint::black_box;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use criterion::{Criterion, criterion_group, criterion_main};
use penstock_api::Operation;
use penstock_api::units::Timestamp;
use penstock_config::{BackendConfig, Config, ModelEntry, Strategy};
use penstock_core::fleet::{BackendSet, EngineSample, Health, Topology};
use penstock_core::prefix::{Chain, ChainBuilder, MemoryBudget, PrefixIndex, prompt_chain};
use penstock_core::routing::{Generation, Live, NoRecord, RouteInput, RoutingDecision, Scratch};
use penstock_scan::{RequestProfile, ScanOptions, scan};
use penstock_scoring::PrefixParams;
use rand::SeedableRng;
use rand::rngs::SmallRng;

const BACKENDS: usize = 64;
/// 16 KiB of prompt are 256 blocks of 64 bytes.
const PROMPT: usize = 16 << 10;
/// The prompt of an agent: 400 KB, 100,000 tokens.
const LONG_PROMPT: usize = 400_000;
/// The position of "Request" in the prompt, behind everything that stays the same.
const NAME: usize = r#"{"model":"m","messages":[{"role":"system","content":""#.len();

fn body(number: usize) -> Vec<u8> {
    body_of(number, PROMPT)
}

fn body_of(number: usize, length: usize) -> Vec<u8> {
    let sentence = format!("Request {number} has a long prompt, with some text in every block.\\n");
    let text = sentence.repeat(length.div_ceil(sentence.len() - 1));
    format!(r#"{{"model":"m","messages":[{{"role":"system","content":"{text}"}},{{"role":"user","content":"go on"}}],"stream":true}}"#)
        .into_bytes()
}

fn generation() -> Generation {
    let mut config = Config::default();
    config.routing.strategy = Strategy::Weighted;
    for index in 0..BACKENDS {
        config.backends.push(BackendConfig {
            name: format!("backend-{index}"),
            url: format!("http://127.0.0.1:{}", 10_000 + index).parse().unwrap(),
            models: Some(vec![ModelEntry { id: "m".to_owned(), ..ModelEntry::default() }]),
            ..BackendConfig::default()
        });
    }
    let generation = Generation::new(config);
    for (index, backend) in generation.fleet.topology().backends.iter().enumerate() {
        backend.state.health.set(Health::Healthy);
        let in_flight = u32::try_from(index % 17).unwrap();
        backend.state.load.set_in_flight(in_flight);
        backend.state.telemetry.publish(EngineSample {
            waiting: Some(in_flight as f32 / 2.0),
            running: Some(in_flight as f32),
            kv_utilization: Some(0.01 * index as f32),
            in_flight,
            sent_at: Timestamp(950_000),
            interval: Duration::from_millis(100),
        });
    }
    generation
}

struct Decider<'a> {
    generation: &'a Generation,
    fleet: Arc<Topology>,
    rng: SmallRng,
    scratch: Scratch,
    chain: Chain,
}

impl<'a> Decider<'a> {
    fn new(generation: &'a Generation) -> Self {
        Self {
            fleet: generation.fleet.topology(),
            generation,
            rng: SmallRng::seed_from_u64(1),
            scratch: Scratch::default(),
            chain: Chain::default(),
        }
    }

    /// All there is to a decision: blocks, lookup, scores, pick.
    fn decide(&mut self, profile: &RequestProfile, body: &[u8]) -> RoutingDecision {
        let weighted = self.generation.router.weighted().unwrap();
        let terms = weighted.prefix_params(&self.fleet, "m");
        prompt_chain(profile, body, "m", terms, &mut self.chain);
        let tried = BackendSet::default();
        let input = RouteInput {
            split: penstock_core::routing::SplitPoint::default(),
            request: profile,
            model: "m",
            tokens: profile.prompt_tokens,
            fleet: &self.fleet,
            tried: &tried,
            may_probe: true,
            waited: None,
            now: Timestamp(1_000_000),
            prompt: Some(&self.chain),
            session: None,
            requester: penstock_core::fleet::Requester::default(),
            objectives: penstock_scoring::Objectives::default(),
            policy: penstock_core::routing::PolicyScope::default(),
        };
        let mut random = Live { topology: &self.fleet, rng: &mut self.rng };
        self.generation.router.route(&input, &mut random, &mut self.scratch, &mut NoRecord).unwrap()
    }

    /// The same, and a note of where it went.
    fn decide_and_record(&mut self, profile: &RequestProfile, body: &[u8]) -> RoutingDecision {
        let routed = self.decide(profile, body);
        let weighted = self.generation.router.weighted().unwrap();
        weighted.record(&self.fleet, &routed, &self.chain);
        routed
    }
}

fn profile(body: &[u8]) -> RequestProfile {
    scan(Operation::Chat, None, body, ScanOptions::default()).unwrap()
}

fn bodies() -> Vec<(RequestProfile, Vec<u8>)> {
    (0..32).map(body).map(|body| (profile(&body), body)).collect()
}

/// Makes a prompt one that no other begins like.
fn rename(body: &mut [u8], number: u32) {
    let letters = (0..8).map(|place| b'a' + (number >> (4 * place) & 15) as u8);
    let beginning = body.iter_mut().skip(NAME);
    beginning.zip(letters).for_each(|(byte, letter)| *byte = letter);
}

/// The least the fixed piece of work took so far, in nanoseconds.
static FASTEST: AtomicU64 = AtomicU64::new(u64::MAX);

/// The duration of a decision, and the longer duration of a fixed piece of work right before and
/// behind it: on a shared core of the processor, that takes half as long again.
struct Timed {
    decision: Duration,
    companion: Duration,
}

impl Timed {
    fn of<T>(decide: impl FnOnce() -> T) -> Self {
        let before = companion();
        let began = Instant::now();
        black_box(decide());
        let decision = began.elapsed();
        let companion = before.max(companion());
        FASTEST.fetch_min(u64::try_from(companion.as_nanos()).unwrap(), Ordering::Relaxed);
        Self { decision, companion }
    }
}

/// Work of many instructions that wait for nothing.
fn companion() -> Duration {
    let began = Instant::now();
    let mut sums = [0_u64; 8];
    for round in 0..250_u64 {
        for (sum, place) in sums.iter_mut().zip(0_u64..) {
            *sum = black_box(round ^ place).wrapping_add(*sum);
        }
    }
    black_box(sums);
    began.elapsed()
}

fn report(of: &str, timed: Vec<Timed>) {
    let usual = Duration::from_nanos(FASTEST.load(Ordering::Relaxed)).mul_f64(1.15);
    let undisturbed = timed.iter().filter(|one| one.companion <= usual);
    let undisturbed = undisturbed.map(|one| one.decision).collect();
    percentiles::report(&format!("weighted/decision {of}, with the core to itself"), undisturbed);
    let all = timed.into_iter().map(|one| one.decision).collect();
    percentiles::report(&format!("weighted/decision {of}"), all);
}

fn decision(criterion: &mut Criterion) {
    let generation = generation();
    let mut decider = Decider::new(&generation);
    let bodies = bodies();
    for (profile, body) in &bodies {
        for _ in 0..4 {
            decider.decide_and_record(profile, body);
        }
    }
    assert!(decider.chain.blocks() >= 256);
    let (first, body) = &bodies[0];
    criterion.bench_function("weighted/decision, 64 backends, 256 blocks", |bencher| {
        bencher.iter(|| black_box(decider.decide(first, body)));
    });
    let allocated = allocation_counter::measure(|| {
        for (profile, body) in &bodies {
            black_box(decider.decide_and_record(profile, body));
        }
    });
    assert_eq!(allocated.count_total, 0, "a decision allocates");
    // As they come in: a body has just been read from its connection and scanned.
    let mut arrived = Vec::new();
    let mut just_scanned = Vec::new();
    let mut scanned_before = Vec::new();
    for (before, body) in bodies.iter().cycle().take(20_000) {
        arrived.clear();
        arrived.extend_from_slice(body);
        let profile = profile(&arrived);
        just_scanned.push(Timed::of(|| decider.decide(&profile, &arrived)));
        scanned_before.push(Timed::of(|| decider.decide(before, body)));
    }
    report("on a body just scanned", just_scanned);
    report("on a body scanned 32 decisions ago", scanned_before);
    criterion.bench_function("weighted/decision and record", |bencher| {
        bencher.iter(|| black_box(decider.decide_and_record(first, body)));
    });
}

/// The same for prompts that no other begins like.
fn new_prompts(criterion: &mut Criterion) {
    let generation = generation();
    let bodies = bodies();
    let mut decider = Decider::new(&generation);
    let (mut arrived, mut fresh) = (Vec::new(), Vec::new());
    for (number, (_, body)) in (0_u32..).zip(bodies.iter().cycle().take(20_000)) {
        arrived.clear();
        arrived.extend_from_slice(body);
        rename(&mut arrived, number);
        let unseen = profile(&arrived);
        fresh.push(Timed::of(|| decider.decide(&unseen, &arrived)));
    }
    report("on a prompt never seen", fresh);
    let (first, body) = &bodies[0];
    criterion.bench_function("weighted/decision on an empty index", |bencher| {
        bencher.iter(|| black_box(decider.decide(first, body)));
    });
}

/// The same for the prompts of agents.
fn long_prompts(criterion: &mut Criterion) {
    let generation = generation();
    let mut decider = Decider::new(&generation);
    let body = body_of(0, LONG_PROMPT);
    let profile = profile(&body);
    criterion.bench_function("weighted/decision on an empty index, 400 KB", |bencher| {
        bencher.iter(|| black_box(decider.decide(&profile, &body)));
    });
    for _ in 0..BACKENDS {
        decider.decide_and_record(&profile, &body);
    }
    assert!(decider.chain.blocks() >= 6250);
    criterion.bench_function("weighted/decision, 64 backends, 400 KB", |bencher| {
        bencher.iter(|| black_box(decider.decide(&profile, &body)));
    });
    let chain = decider.chain.hashes().to_vec();
    let mut index = PrefixIndex::new(31_250, MemoryBudget::new(1 << 30));
    (0..BACKENDS).for_each(|slot| index.record(slot, chain.get(..90 * (slot + 1)).unwrap()));
    criterion.bench_function("index/lookup, 6,250 blocks x 64 backends", |bencher| {
        bencher.iter(|| {
            let mut sum = 0;
            index.longest(black_box(&chain), u64::MAX, |_, length| sum += length);
            sum
        });
    });
}

/// Hashing alone: text that lies in memory as it is hashed.
fn hashing(criterion: &mut Criterion) {
    let text = body_of(0, LONG_PROMPT);
    let mut group = criterion.benchmark_group("weighted");
    group.throughput(criterion::Throughput::Bytes(text.len() as u64));
    group.bench_function("hashing 400 KB", |bencher| {
        let mut chain = Chain::default();
        bencher.iter(|| {
            let mut builder = ChainBuilder::new(&mut chain, 1, 64, usize::MAX);
            builder.add(black_box(&text));
            builder.finish();
            chain.last()
        });
    });
    group.finish();
}

fn blocks(criterion: &mut Criterion) {
    let long = body(0);
    let turn = r#"{"role":"user","content":"A turn of a conversation, as long as most.\n"}"#;
    let turn = turn.replace("most.", &"most are; ".repeat(60));
    let turns = vec![turn; 27].join(",");
    let turns = format!(r#"{{"model":"m","messages":[{turns}]}}"#).into_bytes();
    let longer = body_of(0, LONG_PROMPT);
    for (name, body) in [("16 KiB", long), ("400 KB", longer), ("27 messages of 600 B", turns)] {
        let request = profile(&body);
        let mut chain = Chain::default();
        criterion.bench_function(&format!("weighted/blocks of {name}"), |bencher| {
            bencher.iter(|| {
                let params = PrefixParams::default();
                prompt_chain(&request, black_box(&body), "m", params, &mut chain);
                chain.blocks()
            });
        });
    }
}

fn index(criterion: &mut Criterion) {
    let chain: Vec<u64> =
        (0..256_u64).map(|block| xxhash_rust::xxh3::xxh3_64(&block.to_le_bytes())).collect();
    let mut index = PrefixIndex::new(31_250, MemoryBudget::new(1 << 30));
    for slot in 0..BACKENDS {
        let held = chain.get(..4 * (slot + 1)).unwrap();
        index.record(slot, held);
        // What else it holds: the table is as large as that of a fleet at work.
        for family in 0..8_u64 {
            let other: Vec<u64> = (0..256_u64)
                .map(|block| {
                    let seed = (slot as u64) << 32 | family;
                    xxhash_rust::xxh3::xxh3_64_with_seed(&block.to_le_bytes(), seed + 1)
                })
                .collect();
            index.record(slot, &other);
        }
    }
    criterion.bench_function("index/lookup, 256 blocks x 64 backends", |bencher| {
        bencher.iter(|| {
            let mut sum = 0;
            index.longest(black_box(&chain), u64::MAX, |_, length| sum += length);
            sum
        });
    });
    criterion.bench_function("index/record, 256 blocks known", |bencher| {
        bencher.iter(|| index.record(63, black_box(&chain)));
    });
    let mut family = 1 << 40;
    criterion.bench_function("index/record, 256 blocks new", |bencher| {
        bencher.iter_batched(
            || {
                family += 1;
                (0..256_u64)
                    .map(|block| xxhash_rust::xxh3::xxh3_64_with_seed(&block.to_le_bytes(), family))
                    .collect::<Vec<_>>()
            },
            |new| index.record(7, &new),
            criterion::BatchSize::SmallInput,
        );
    });
}

criterion_group!(benches, decision, new_prompts, long_prompts, hashing, blocks, index);
criterion_main!(benches);
