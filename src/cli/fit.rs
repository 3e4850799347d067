//! `penstock fit`: learns the step time of an engine from a recorded run.

use std::fmt::Write;
use std::path::PathBuf;

use clap::Args;
use serde_json::{Value, json};

use super::error::{CliError, USAGE};
use super::output::Output;
use crate::sim::engine::{EngineRow, EngineSpec, RowError, SpecError, StepTime, engine_rows};
use crate::sim::fit::{Errors, Fit, RunErrors, fit};
use crate::sim::run::{Run, RunError};

const AFTER_HELP: &str = "\
RUN has one JSON object per line and request, with times in seconds on any clock:

  {\"arrived\": 0.0, \"first_token\": 0.17, \"last_token\": 15.7, \"input_tokens\": 2358, \"output_tokens\": 531}

or the names queued_ts, first_token_ts, last_token_ts, input_toks and output_toks of vLLM benchmarks. The limits
of the engine must be those of the run: pass them where they are not vLLM's defaults.

The first half of the requests is learned from; the errors are those of the other half, which the fit did not see.

Examples:
  penstock fit --list
  penstock fit run.jsonl --engine rtxpro6000/llama-3.1-8b/tp1 --max-requests 128 --max-step-tokens 2048

Exit codes: 0 learned, 2 the run or the flags are wrong.";

#[derive(Debug, Args)]
#[command(after_help = AFTER_HELP)]
pub(super) struct FitArgs {
    /// The recorded run
    #[arg(required_unless_present = "list")]
    run: Option<PathBuf>,

    /// Where the search begins: the row whose GPU and model are the most alike
    #[arg(long, value_name = "ROW", required_unless_present = "list")]
    engine: Option<String>,

    /// The most requests in a batch (vLLM: max_num_seqs)
    #[arg(long, value_name = "N")]
    max_requests: Option<u32>,

    /// The most tokens of a step (vLLM: max_num_batched_tokens)
    #[arg(long, value_name = "N")]
    max_step_tokens: Option<u32>,

    /// The longest prompt with its output (vLLM: max_model_len)
    #[arg(long, value_name = "N")]
    max_context: Option<u32>,

    /// Blocks of 16 tokens in the KV cache
    #[arg(long, value_name = "N")]
    kv_blocks: Option<u32>,

    /// List the rows that penstock comes with
    #[arg(long)]
    list: bool,

    /// Print JSON
    #[arg(long)]
    json: bool,
}

#[derive(Debug, thiserror::Error)]
enum FitError {
    #[error("--engine: no row '{given}' (known: {known})")]
    UnknownRow { given: String, known: String },
    #[error("{}: {source}", path.display())]
    Run { path: PathBuf, source: RunError },
    #[error("{0}")]
    Spec(#[from] SpecError),
    #[error("{0}")]
    Rows(#[from] RowError),
}

impl From<FitError> for CliError {
    fn from(error: FitError) -> Self {
        Self::Command { code: USAGE, error: Box::new(error) }
    }
}

pub(super) fn run(args: &FitArgs, output: &mut Output) -> Result<(), CliError> {
    let rows = engine_rows().map_err(FitError::from)?;
    let (Some(path), Some(given), false) = (&args.run, &args.engine, args.list) else {
        return output.text(if args.json { list_json(&rows) } else { list(&rows) });
    };
    let row = rows.iter().find(|row| row.name() == *given).ok_or_else(|| {
        let known: Vec<String> = rows.iter().map(EngineRow::name).collect();
        FitError::UnknownRow { given: given.clone(), known: known.join(", ") }
    })?;
    let text = std::fs::read_to_string(path)
        .map_err(|source| CliError::Unreadable { path: path.clone(), source })?;
    let recorded =
        Run::parse(&text).map_err(|source| FitError::Run { path: path.clone(), source })?;
    let found = fit(&recorded, &args.spec(row), &row.least_step_time()).map_err(FitError::from)?;
    if args.json {
        return output.line(to_json(&found, &args.spec(row)));
    }
    output.text(to_text(&found, recorded.len()))
}

impl FitArgs {
    fn spec(&self, row: &EngineRow) -> EngineSpec {
        let spec = row.spec();
        EngineSpec {
            max_requests: self.max_requests.unwrap_or(spec.max_requests),
            max_step_tokens: self.max_step_tokens.unwrap_or(spec.max_step_tokens),
            max_context: self.max_context.unwrap_or(spec.max_context),
            kv_blocks: self.kv_blocks.unwrap_or(spec.kv_blocks),
            ..spec
        }
    }
}

/// A step time as people read it: the name, the value and its unit.
fn readable(time: &StepTime) -> [(&'static str, f64, &'static str); 5] {
    [
        ("base_ms", time.base as f64 / 1e9, "ms per step"),
        ("token_us", time.per_token as f64 / 1e6, "µs per prompt token"),
        ("decode_us", time.per_decode as f64 / 1e6, "µs per decoding request"),
        ("context_us", time.per_context as f64 / 1e3, "µs per 1,000 tokens of context"),
        ("pair_us", time.per_pair as f64, "µs per million attention pairs"),
    ]
}

fn latencies(errors: &RunErrors) -> [(&'static str, &Errors); 3] {
    [("TTFT", &errors.first_token), ("TPOT", &errors.per_token), ("total", &errors.total)]
}

fn to_text(found: &Fit, requests: usize) -> String {
    let half = requests / 2;
    let mut text = format!("Step time, learned from the first {half} of {requests} requests\n\n");
    for (name, value, unit) in readable(&found.step_time) {
        _ = writeln!(text, "  {name:<11} {value:>9.3}  {unit}");
    }
    _ = writeln!(
        text,
        "\nPredictions for the other {}, against what was measured\n",
        requests - half
    );
    _ = writeln!(text, "  {:<6} {:>8} {:>8} {:>8} {:>8}", "", "mean", "p50", "p99", "WAPE");
    for (name, errors) in latencies(&found.other) {
        let Errors { mean, p50, p99, weighted } = errors;
        let [mean, p50, p99] = [mean, p50, p99].map(|share| format!("{:+.1} %", share * 100.0));
        let weighted = format!("{:.1} %", weighted * 100.0);
        _ = writeln!(text, "  {name:<6} {mean:>8} {p50:>8} {p99:>8} {weighted:>8}");
    }
    text
}

fn to_json(found: &Fit, spec: &EngineSpec) -> Value {
    let errors = |errors: &RunErrors| -> serde_json::Map<String, Value> {
        let one = |errors: &Errors| json!({"mean": errors.mean, "p50": errors.p50, "p99": errors.p99, "wape": errors.weighted});
        let all = latencies(errors).into_iter();
        all.map(|(name, errors)| (name.to_lowercase(), one(errors))).collect()
    };
    let time: serde_json::Map<String, Value> = readable(&found.step_time)
        .into_iter()
        .map(|(name, value, _)| (name.into(), value.into()))
        .collect();
    json!({
        "step_time": time,
        "limits": {
            "max_requests": spec.max_requests, "max_step_tokens": spec.max_step_tokens,
            "max_context": spec.max_context, "kv_blocks": spec.kv_blocks,
        },
        "errors": {"learned": errors(&found.learned), "other": errors(&found.other)},
    })
}

fn list(rows: &[EngineRow]) -> String {
    let mut text = format!(
        "{:<30} {:>7} {:>7} {:>7} {:>7} {:>7}  source\n",
        "row", "base ms", "token", "decode", "context", "pair"
    );
    for row in rows {
        let EngineRow { base_ms, token_us, decode_us, context_us, pair_us, source, .. } = row;
        let name = row.name();
        _ = writeln!(
            text,
            "{name:<30} {base_ms:>7} {token_us:>7} {decode_us:>7} {context_us:>7} {pair_us:>7}  {source}"
        );
    }
    text
}

fn list_json(rows: &[EngineRow]) -> String {
    let row = |row: &EngineRow| {
        json!({
            "name": row.name(), "base_ms": row.base_ms, "token_us": row.token_us,
            "decode_us": row.decode_us, "context_us": row.context_us, "pair_us": row.pair_us,
            "kv_blocks": row.kv_blocks, "engine": row.engine, "date": row.date,
            "source": row.source, "error": row.error,
        })
    };
    format!("{}\n", Value::Array(rows.iter().map(row).collect()))
}

#[cfg(test)]
mod tests {
    use super::super::tests::call;

    const RUN: &str =
        concat!(env!("CARGO_MANIFEST_DIR"), "/tests/data/vllm-runs/rtxpro6000-llama-3.1-8b.jsonl");
    const ROW: &str = "rtxpro6000/llama-3.1-8b/tp1";

    #[test]
    fn recorded_run_gives_a_step_time_and_its_errors() {
        let limits = ["--max-requests", "128", "--max-step-tokens", "2048"];
        let mut line = vec!["fit", RUN, "--engine", ROW];
        line.extend(limits);
        let called = call(&line);
        assert_eq!(called.code, 0, "{}", called.complaints);
        assert!(called.results.contains("learned from the first 150 of 300"), "{}", called.results);
        assert!(called.results.contains("µs per prompt token"));
        line.push("--json");
        let json: serde_json::Value = serde_json::from_str(&call(&line).results).unwrap();
        assert!(json["errors"]["other"]["ttft"]["mean"].as_f64().unwrap().abs() < 0.03);
        assert!((12.0..15.0).contains(&json["step_time"]["base_ms"].as_f64().unwrap()));
    }

    #[test]
    fn wrong_rows_and_runs_are_named() {
        let called = call(&["fit", RUN, "--engine", "h100"]);
        assert_eq!(called.code, 2);
        assert!(called.complaints.contains("no row 'h100' (known: rtxpro6000/"));
        let called = call(&["fit", file!(), "--engine", ROW]);
        assert_eq!(called.code, 2);
        assert!(called.complaints.contains("line 1: "), "{}", called.complaints);
        let called = call(&["fit", RUN, "--engine", ROW, "--max-step-tokens", "5"]);
        assert!(called.complaints.contains("must be at least the requests"));
        assert!(call(&["fit", "--list"]).results.contains("h100/qwen3-32b/tp2"));
    }
}
