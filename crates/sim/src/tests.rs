//! The simulated engine against three recorded runs of vLLM.

mod prediction;

use super::engine::{EngineRow, EngineSpec, StepTime, engine_rows};
use super::fit::{Errors, RunErrors, fit};
use super::random::{Purpose, RandomStream};
use super::run::{RecordedRun, Timing};

const RUNS: [(&str, &str, u32); 3] = [
    (
        "rtxpro6000/llama-3.1-8b/tp1",
        include_str!("../../../tests/data/vllm-runs/rtxpro6000-llama-3.1-8b.jsonl"),
        128,
    ),
    (
        "rtxpro6000/qwen3-32b/tp2",
        include_str!("../../../tests/data/vllm-runs/rtxpro6000-qwen3-32b-tp2.jsonl"),
        128,
    ),
    (
        "rtx4090/llama-3.1-8b/tp1",
        include_str!("../../../tests/data/vllm-runs/rtx4090-llama-3.1-8b.jsonl"),
        256,
    ),
];

fn row(name: &str) -> EngineRow {
    let mut rows = engine_rows().unwrap().into_iter();
    rows.find(|one| one.name() == name).unwrap()
}

fn spec(name: &str, max_requests: u32) -> EngineSpec {
    EngineSpec {
        max_requests,
        max_step_tokens: 2048,
        max_context: 32_768,
        ..EngineSpec::from(&row(name))
    }
}

fn assert_within(what: &str, errors: Errors, mean: f64, p99: f64) {
    assert!(errors.mean.abs() <= mean, "{what}: mean {errors:?}");
    assert!(errors.p99.abs() <= p99, "{what}: p99 {errors:?}");
}

#[test]
fn shipped_rows_predict_the_recorded_runs() {
    for (name, text, max_requests) in RUNS {
        let run = RecordedRun::parse(text).unwrap();
        let predicted = run.simulated(&spec(name, max_requests), 0).unwrap();
        let errors = RunErrors::of(&predicted, &run.measured());

        assert_within(name, errors.first_token, 0.04, 0.06);
        assert_within(name, errors.per_token, 0.02, 0.06);
        assert_within(name, errors.total, 0.03, 0.06);
    }
}

#[test]
fn row_of_the_starved_engine_holds_for_other_arrivals() {
    let (name, text, max_requests) = RUNS[2];
    let run = RecordedRun::parse(text).unwrap();
    for seed in 0..6 {
        let mut random = RandomStream::new(1, Purpose::Arrivals, seed);
        let timings = run.timings().iter().map(|one| {
            let late = 0.005 * random.uniform();
            Timing {
                arrived: one.arrived + late,
                first_token: one.first_token + late,
                last_token: one.last_token + late,
                ..one.clone()
            }
        });
        let moved = RecordedRun::of(timings.collect()).unwrap();
        let predicted = moved.simulated(&spec(name, max_requests), 0).unwrap();
        let errors = RunErrors::of(&predicted, &moved.measured());
        for one in [errors.first_token, errors.per_token, errors.total] {
            assert!(one.mean.abs() < 0.05, "the row's `error` says so: {errors:?}");
        }
    }
}

#[test]
fn rows_fitted_to_one_half_predict_the_other() {
    for (name, text, max_requests) in RUNS {
        let run = RecordedRun::parse(text).unwrap();
        // The search starts from a poor guess: the base off by half, the rest by a fifth and more.
        let start = spec(name, max_requests);
        let mut time = start.step_time.linear().unwrap();
        time.base = time.base * 3 / 2;
        time.per_token = time.per_token * 4 / 5;
        time.per_context = time.per_context * 4 / 5;
        let start = EngineSpec { step_time: time.into(), ..start };
        let fit = fit(&run, &start, &StepTime::least_of(&row(name))).unwrap();

        assert_within(name, fit.other.first_token, 0.03, 0.05);
        // If blocks are short, a request's TPOT depends on which request is preempted.
        let p99 = if name.starts_with("rtx4090") { 0.11 } else { 0.05 };
        assert_within(name, fit.other.per_token, 0.03, p99);
        assert_within(name, fit.other.total, 0.03, 0.05);
    }
}

#[test]
fn recorded_runs_show_how_many_requests_run_at_a_time() {
    for ((name, text, max_requests), shown) in RUNS.into_iter().zip([Some(128), Some(128), None]) {
        let run = RecordedRun::parse(text).unwrap();
        let start = spec(name, 1024);
        let fit = fit(&run, &start, &StepTime::least_of(&row(name))).unwrap();
        // The third engine is never full: its requests wait for KV blocks.
        assert_eq!(fit.max_requests, shown, "{name} had {max_requests}");
        assert_within(name, fit.other.first_token, 0.03, 0.05);
        assert_within(name, fit.other.total, 0.03, 0.05);
    }
}

#[test]
fn run_is_checked_line_by_line() {
    let good = r#"{"arrived": 1, "first_token": 2, "last_token": 3, "input_tokens": 4, "output_tokens": 5}"#;
    let error = |lines: &str| RecordedRun::parse(lines).unwrap_err().to_string();
    assert!(error(good).contains("1 requests are too few"));
    assert!(error(&format!("{good}\n{{}}")).starts_with("line 2: missing field"));
    assert!(error(&good.replace("\"last_token\": 3", "\"last_token\": 1")).contains("backwards"));
    assert!(
        error(&good.replace("\"output_tokens\": 5", "\"output_tokens\": 0")).contains("one out")
    );
    let many = format!("{good}\n\n").repeat(20);
    assert_eq!(RecordedRun::parse(&many).unwrap().len(), 20);
}
