use std::path::Path;

use penstock_config::Environment;

use super::*;
use crate::engine::StepTime;
use crate::workload::rounded;

const ROW: &str = "rtxpro6000/llama-3.1-8b/tp1";

fn spec(slowness: u64) -> EngineSpec {
    let rows = engine_rows().unwrap();
    let spec = EngineSpec::from(rows.iter().find(|row| row.name() == ROW).unwrap());
    let time = spec.step_time.linear().unwrap();
    let StepTime { base, per_token, per_decode, per_context, per_pair } = time;
    let time = StepTime {
        base: base * slowness,
        per_token: per_token * slowness,
        per_decode: per_decode * slowness,
        per_context: per_context * slowness,
        per_pair: per_pair * slowness,
    };
    EngineSpec { step_time: time.into(), ..spec }
}

/// Returns the requests that an engine served, as penstock measured them.
fn served(backend: &str, spec: &EngineSpec, count: u32) -> Vec<ServedRequest> {
    let timings = (0..count).map(|n| Timing {
        arrived: f64::from(n) * 0.4,
        input_tokens: 100 + n * 577 % 3000,
        output_tokens: 20 + n * 131 % 300,
        ..Timing::default()
    });
    let run = RecordedRun::of(timings.collect()).unwrap();
    let latencies = run.simulated(spec, 4_000_000_000).unwrap();
    let of = |(one, latencies): (&Timing, super::super::run::Latencies)| ServedRequest {
        ended: Timestamp(1_000_000 + rounded(1e6 * (one.arrived + latencies.total))),
        took: Duration::from_secs_f64(latencies.total),
        first_token: Some(Duration::from_secs_f64(latencies.first_token)),
        input_tokens: one.input_tokens,
        estimated_tokens: 0,
        output_tokens: one.output_tokens,
        model: "m".into(),
        client: "c".into(),
        backend: backend.into(),
        fields: ReplayFields::default(),
    };
    run.timings().iter().zip(latencies).map(of).collect()
}

fn config_of(backends: &[&str]) -> Config {
    let item = |name: &&str| format!("{{ name: {name}, url: 'http://{name}:1', engine: vllm }}");
    let items: Vec<String> = backends.iter().map(item).collect();
    let yaml = format!("routing: {{ strategy: round_robin }}\nbackends: [{}]", items.join(", "));
    Config::parse(&yaml, "t", Path::new(""), &Environment::default()).unwrap()
}

fn replay(current: Config, next: Config, served: &[ServedRequest]) -> ReplayInput<'_> {
    ReplayInput {
        current,
        current_since: Timestamp(0),
        earlier: None,
        next,
        served,
        kv_blocks: BTreeMap::new(),
        max_regression: 0.25,
    }
}

#[test]
fn error_is_that_of_the_configuration_that_served() {
    let mut all = served("slow", &spec(3), 120);
    all.extend(served("other", &spec(3), 100));
    all.extend(served("fast", &spec(1), 80));
    all.sort_by_key(|one| one.ended);
    let lost = || replay(config_of(&["slow"]), config_of(&["slow"]), &all);
    let now = Timestamp(u64::MAX);
    let report = ReplayInput { current_since: now, ..lost() }.compare().unwrap();
    assert!(!report.is_reliable, "nothing is known of the one that served: {report:?}");
    let report = lost().compare().unwrap();
    assert!(!report.is_reliable, "one slow backend has not served this: {report:?}");
    // The fleet lost the others a moment ago.
    for until in [all[all.len() - 5].ended, Timestamp(u64::MAX)] {
        let config = config_of(&["slow", "other", "fast"]);
        let earlier = Some(EarlierConfig { config, since: Timestamp(0), until });
        let report = ReplayInput { earlier, current_since: until, ..lost() }.compare().unwrap();
        assert!(report.is_reliable, "{report:?}");
    }
}

#[test]
fn streams_of_each_backend_show_its_engine() {
    let mut all = served("fast", &spec(1), 120);
    all.extend(served("slow", &spec(3), 100));
    all.extend(served("rare", &spec(1), 20).into_iter().take(5));
    let config = config_of(&["fast", "slow"]);
    let replay = ReplayInput {
        kv_blocks: BTreeMap::from([("slow".to_owned(), 77_700)]),
        ..replay(config.clone(), config, &all)
    };
    let learned = replay.learn_engines().unwrap();
    let base =
        |name: &str| learned.engine(name, None).step_time.linear().unwrap().base as f64 / 1e9;
    assert!((11.0..16.0).contains(&base("fast")), "{}", base("fast"));
    assert!((33.0..46.0).contains(&base("slow")), "{}", base("slow"));
    assert_eq!(
        (learned.engine("slow", None).kv_blocks, learned.engine("new", None).kv_blocks),
        (77_700, spec(1).kv_blocks)
    );
    assert_eq!(base("rare").to_bits(), base("fast").to_bits(), "too few streams");
    let report = replay.compare().unwrap();
    assert!(report.is_reliable && report.error.abs() < 0.15, "{report:?}");
}

#[test]
fn slots_of_a_full_backend_hold_for_its_kind() {
    let limited = |slowness| EngineSpec { max_requests: 10, ..spec(slowness) };
    let mut all = served("full", &limited(2), 120);
    all.extend(served("idle", &limited(1), 100));
    let config = config_of(&["full", "idle"]);
    let learned = replay(config.clone(), config, &all).learn_engines().unwrap();
    let slots = |name: &str| learned.engine(name, None).max_requests;
    assert!(slots("full").abs_diff(10) <= 1, "{}", slots("full"));
    assert_eq!(slots("idle"), slots("full"), "its streams show none");
    assert_eq!(slots("new"), slots("full"), "as the usual engine");
    assert_eq!(learned.engine("new", Some(32)).max_requests, 32, "configured");
}
