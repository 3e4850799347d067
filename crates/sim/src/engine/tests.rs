//! The engine against a loop over single steps and against a formula of queueing theory, and its
//! invariants.

mod naive;

use rand::rngs::SmallRng;
use rand::{Rng, SeedableRng};

use super::*;
use naive::Naive;

/// One request of a workload.
#[derive(Debug, Clone)]
struct Sent {
    at: u64,
    input: u32,
    output: u32,
    prefix: Vec<u64>,
}

pub(super) fn spec() -> EngineSpec {
    EngineSpec {
        step_time: StepTime {
            base: 13_000_000,
            per_token: 40_007,
            per_decode: 42_001,
            per_context: 71,
            per_pair: 3,
        }
        .into(),
        max_requests: 8,
        max_step_tokens: 64,
        max_context: 10_000,
        kv_blocks: 1000,
        caching: Caching::Blocks,
        admission: Admission::OnDemand,
        order: Order::Arrival,
        on_demand: None,
        front_end: None,
    }
}

fn table() -> StepModel {
    let grid = StepGrid {
        prefill_ms: vec![(0, 0.013), (50, 0.015), (200, 0.03)],
        batch: vec![1, 4, 9],
        context: vec![20, 100, 250],
        decode_ms: vec![
            vec![0.013, 0.0131, 0.0135],
            vec![0.0132, 0.0135, 0.014],
            vec![0.0134, 0.015, 0.019],
        ],
    };
    StepModel::Table(StepTable::new(&grid).unwrap().into())
}

fn random_spec(rng: &mut SmallRng) -> EngineSpec {
    let max_requests = rng.random_range(1..12);
    EngineSpec {
        max_requests,
        max_step_tokens: max_requests + rng.random_range(0..200),
        kv_blocks: rng.random_range(20..200),
        caching: if rng.random() { Caching::Blocks } else { Caching::None },
        step_time: if rng.random_ratio(1, 4) { table() } else { spec().step_time },
        order: if rng.random_ratio(1, 3) { Order::LongestPrefix } else { Order::Arrival },
        ..spec()
    }
}

fn random_workload(rng: &mut SmallRng) -> Vec<Sent> {
    let gap = rng.random_range(1..400_000_000_u64);
    let mut at = 0;
    (0..rng.random_range(5..60))
        .map(|index| {
            at += rng.random_range(0..gap);
            let input = rng.random_range(1..300_u32);
            let group = rng.random_range(0..4_u64);
            let own = rng.random_range(0..20_u64);
            // Prompts of a group share their first blocks and then differ.
            let hash = |block: u64| {
                let tail = if block < own { 0 } else { index + 1 };
                group * 1_000_000 + tail * 1000 + block
            };
            let prefix = (0..u64::from(input / BLOCK_TOKENS)).map(hash).collect();
            Sent { at, input, output: rng.random_range(1..120), prefix }
        })
        .collect()
}

fn request(id: usize, sent: &Sent) -> SubmittedRequest<'_> {
    SubmittedRequest {
        id: u32::try_from(id).unwrap(),
        input_tokens: sent.input,
        output_tokens: sent.output,
        max_tokens: None,
        prefix: &sent.prefix,
        prefix_tokens: BLOCK_TOKENS,
    }
}

/// Runs a workload to its end and checks the engine at each event.
fn run(spec: &EngineSpec, workload: &[Sent]) -> (Vec<EngineEvent>, BatchingEngine) {
    let mut engine = BatchingEngine::new(spec.clone()).unwrap();
    let mut events = Vec::new();
    let mut arrivals = workload.iter().enumerate().peekable();
    loop {
        let next = engine.next_event();
        if let Some((id, sent)) = arrivals.next_if(|(_, sent)| next.is_none_or(|at| sent.at <= at))
        {
            engine.submit(sent.at, &request(id, sent));
            continue;
        }
        let Some(at) = next else {
            return (events, engine);
        };
        engine.advance(at, &mut events);
        engine.cache.check();
    }
}

#[test]
fn steps_in_closed_form_are_those_of_the_loop() {
    let mut preemptions = 0;
    for seed in 0..2000 {
        let mut rng = SmallRng::seed_from_u64(seed);
        let (spec, workload) = (random_spec(&mut rng), random_workload(&mut rng));
        let (events, engine) = run(&spec, &workload);
        let mut naive = Naive::new(&spec);
        let expected = naive.run(&workload);
        assert_eq!(events, expected, "seed {seed}, {spec:?}");
        let counters = engine.counters();
        let found = (counters.steps, counters.preemptions, counters.cached_tokens);
        assert_eq!(found, (naive.steps, naive.preemptions, naive.cached_tokens), "seed {seed}");
        assert!(engine.is_idle() && engine.cache.used() == 0, "seed {seed}: {engine:?}");
        preemptions += counters.preemptions;
    }
    assert!(preemptions > 4000, "the workloads preempt: {preemptions}");
}

#[test]
fn blocks_in_use_within_a_plan_are_those_of_its_steps() {
    for seed in 0..20 {
        let mut rng = SmallRng::seed_from_u64(seed);
        let (spec, workload) = (random_spec(&mut rng), random_workload(&mut rng));
        let mut naive = Naive::new(&spec);
        naive.run(&workload);
        let mut engine = BatchingEngine::new(spec).unwrap();
        let mut events = Vec::new();
        let mut arrivals = workload.iter().enumerate().peekable();
        for (at, used) in &naive.used_blocks {
            while let Some((id, sent)) = arrivals.next_if(|(_, sent)| sent.at <= *at) {
                engine.advance(sent.at.saturating_sub(1), &mut events);
                engine.submit(sent.at, &request(id, sent));
            }
            engine.advance(*at, &mut events);
            assert_eq!(engine.telemetry(*at).used_blocks, *used, "seed {seed} at {at}");
        }
    }
}

#[test]
fn wait_for_one_server_is_that_of_the_formula() {
    // M/D/1: Poisson arrivals, one request at a time, each of the same duration. The mean wait is
    // rho / (2 (1 - rho)) services (Pollaczek and Khinchine).
    let time = StepTime { base: 1_000_000_000, ..StepTime::default() };
    let spec = EngineSpec { step_time: time.into(), max_requests: 1, ..spec() };
    let mut rng = SmallRng::seed_from_u64(7);
    let (service, load) = (10_000_000_000_f64, 0.7);
    let mut at = 0.0;
    let workload: Vec<Sent> = (0..400_000)
        .map(|_| {
            at += -(1.0 - rng.random::<f64>()).ln() * service / load;
            Sent { at: picoseconds(at * 1e-12), input: 1, output: 10, prefix: Vec::new() }
        })
        .collect();
    let (events, _) = run(&spec, &workload);
    let mut waited = 0.0;
    for event in events.iter().filter(|event| matches!(event.kind, EventKind::Finished { .. })) {
        let arrived = workload[event.id as usize].at;
        waited += (event.at - arrived) as f64 - service;
    }
    let mean = waited / workload.len() as f64 / service;
    let expected = load / (2.0 * (1.0 - load));
    assert!((mean / expected - 1.0).abs() < 0.02, "{mean} of {expected}");
}

#[test]
fn reserved_blocks_are_never_preempted() {
    let mut rng = SmallRng::seed_from_u64(3);
    for _ in 0..50 {
        let spec = EngineSpec { admission: Admission::Reserved, ..random_spec(&mut rng) };
        let workload = random_workload(&mut rng);
        let (events, engine) = run(&spec, &workload);
        assert_eq!(engine.counters().preemptions, 0);
        let ends =
            events.iter().filter(|event| !matches!(event.kind, EventKind::FirstToken { .. }));
        assert_eq!(ends.count(), workload.len(), "each is finished or refused");
    }
}

#[test]
fn cancelled_requests_leave_nothing_behind() {
    let mut rng = SmallRng::seed_from_u64(5);
    for _ in 0..100 {
        let (spec, workload) = (random_spec(&mut rng), random_workload(&mut rng));
        let mut engine = BatchingEngine::new(spec).unwrap();
        let mut events = Vec::new();
        for (id, sent) in workload.iter().enumerate() {
            engine.advance(sent.at, &mut events);
            engine.submit(sent.at, &request(id, sent));
            let next = workload.get(id + 1).map_or(u64::MAX, |next| next.at);
            let later = next.min(sent.at + rng.random_range(0..100_000_000));
            engine.advance(later, &mut events);
            let left = rng.random_range(0..=id);
            engine.cancel(later, u32::try_from(left).unwrap());
            engine.cache.check();
        }
        while let Some(at) = engine.next_event() {
            engine.advance(at, &mut events);
        }
        assert!(engine.is_idle() && engine.cache.used() == 0, "{engine:?}");
    }
}

#[test]
fn restart_loses_requests_and_cache() {
    let mut engine = BatchingEngine::new(spec()).unwrap();
    let sent = Sent { at: 0, input: 64, output: 50, prefix: vec![1, 2, 3, 4] };
    let mut events = Vec::new();
    for id in 0..3 {
        engine.submit(0, &request(id, &sent));
    }
    engine.advance(100_000_000, &mut events);
    assert_eq!(engine.restart(100_000_000), [0, 1, 2]);
    assert!(engine.is_idle());
    engine.submit(100_000_000, &request(3, &sent));
    events.clear();
    engine.advance(u64::MAX / 2, &mut events);
    assert_eq!(events[0].kind, EventKind::FirstToken { cached_tokens: 0 });
    assert!(events[0].at > 100_000_000);
}

#[test]
fn request_larger_than_the_kv_cache_is_refused() {
    let mut engine = BatchingEngine::new(EngineSpec { kv_blocks: 4, ..spec() }).unwrap();
    let sent = Sent { at: 5, input: 64, output: 1, prefix: Vec::new() };
    engine.submit(5, &request(0, &sent));
    let fits = Sent { input: 60, output: 50, ..sent };
    engine.submit(5, &request(1, &fits));
    let mut events = Vec::new();
    engine.advance(u64::MAX / 2, &mut events);
    assert_eq!(events[0].kind, EventKind::Refused(RefuseReason::TooLong));
    assert_eq!(events[2].kind, EventKind::Finished { output_tokens: 4 }, "to the end of the cache");
    let wrong = EngineSpec { max_step_tokens: 4, max_requests: 5, ..spec() };
    assert_eq!(wrong.validate(), Err(SpecError::StepTooSmall { tokens: 4, requests: 5 }));
}

/// In llama.cpp a slot keeps its last prompt, and a request takes the free slot with the longest
/// common prefix.
#[test]
fn slots_keep_their_last_prompt() {
    let spec = EngineSpec {
        step_time: StepTime { base: 1_000_000, per_token: 1000, ..StepTime::default() }.into(),
        ..spec()
    };
    let mut engine = BatchingEngine::new(spec.with_slots(2, 4096)).unwrap();
    let mut run = |id, prefix: &[u64]| {
        let request = SubmittedRequest {
            id,
            input_tokens: u32::try_from(prefix.len()).unwrap() * 16 + 4,
            output_tokens: 3,
            max_tokens: None,
            prefix,
            prefix_tokens: 16,
        };
        engine.submit(u64::from(id) * 1_000_000_000, &request);
        let mut events = Vec::new();
        engine.advance(u64::from(id + 1) * 1_000_000_000 - 1, &mut events);
        assert!(engine.is_idle(), "{events:?}");
        match events[0].kind {
            EventKind::FirstToken { cached_tokens } => cached_tokens,
            EventKind::Finished { .. } | EventKind::Refused(_) => panic!("{events:?}"),
        }
    };
    assert_eq!(run(1, &[1, 2, 3]), 0);
    assert_eq!(run(2, &[7, 8, 9]), 0, "the other slot: it was used the longest ago");
    assert_eq!(run(3, &[1, 2, 3, 4]), 48, "back to the first one");
    assert_eq!(run(4, &[7, 8, 5]), 32);
    assert_eq!(run(5, &[20, 21, 22]), 0, "it replaces the prompt that is the oldest");
    assert_eq!(run(6, &[1, 2, 3, 4]), 0);
    assert_eq!(run(7, &[20, 21, 22]), 48);
    assert_eq!(engine.counters().preemptions, 0);
}
