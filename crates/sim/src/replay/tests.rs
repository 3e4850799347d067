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
    let run = Run::of(timings.collect()).unwrap();
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

#[test]
fn streams_of_each_backend_show_its_engine() {
    let mut all = served("fast", &spec(1), 120);
    all.extend(served("slow", &spec(3), 100));
    all.extend(served("rare", &spec(1), 20).into_iter().take(5));
    let yaml = "backends: [{ name: fast, url: 'http://a:1', engine: vllm }, { name: slow, url: 'http://b:1', engine: vllm }]";
    let config = Config::parse(yaml, "t", Path::new(""), &Environment::default()).unwrap();
    let replay = Replay {
        current: config.clone(),
        next: config,
        served: &all,
        kv_blocks: BTreeMap::from([("slow".to_owned(), 77_700)]),
        max_regression: 0.25,
    };
    let learned = replay.learn_engines().unwrap();
    let base = |name: &str| learned.of(name).step_time.linear().unwrap().base as f64 / 1e9;
    assert!((11.0..16.0).contains(&base("fast")), "{}", base("fast"));
    assert!((33.0..46.0).contains(&base("slow")), "{}", base("slow"));
    assert_eq!(
        (learned.of("slow").kv_blocks, learned.of("new").kv_blocks),
        (77_700, spec(1).kv_blocks)
    );
    assert_eq!(base("rare").to_bits(), base("fast").to_bits(), "too few streams");
    let report = replay.compare().unwrap();
    assert!(report.is_reliable && report.error.abs() < 0.15, "{report:?}");
}
