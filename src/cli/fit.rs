//! `penstock fit`: learns the step time of an engine from a recorded run.

use std::fmt::Write;
use std::path::{Path, PathBuf};

use clap::Args;
use penstock_api::Engine;
use penstock_sim::engine::{EngineRow, EngineSpec, RowError, SpecError, engine_rows};
use penstock_sim::fit::{EngineFit, Errors, RunErrors, fit};
use penstock_sim::run::{RecordedRun, RunError};
use penstock_sim::workload::{TraceFormat, read_timings};
use serde_json::{Value, json};

use super::engines::{EngineFlags, UnusableEngine, engine_json, engine_of, readable};
use super::error::{CliError, USAGE};
use super::output::Output;

const AFTER_HELP: &str = "\
RUN has one JSON object per line and request, with times in seconds on any clock:

  {\"arrived\": 0.0, \"first_token\": 0.17, \"last_token\": 15.7, \"input_tokens\": 2358, \"output_tokens\": 531}

or the names queued_ts, first_token_ts, last_token_ts, input_toks and output_toks of vLLM benchmarks. It may also be
an access log of penstock; with access_log.replay it shows what engines had cached. The limits
of the engine must be those of the run: pass them where they are not vLLM's defaults. The number of requests at a
time is learned if a run shows a lower one.

The steps are learned from the first half of the requests, the number at a time from all; the errors are those of the
other half.

Examples:
  penstock fit --list
  penstock fit run.jsonl --engine rtxpro6000/llama-3.1-8b/tp1 --max-requests 128 --max-step-tokens 2048
  penstock fit access.jsonl --engine h100/qwen2.5-7b/tp1 --backend gpu-a --json > gpu-a.json

Exit codes: 0 learned, 2 the run or the flags are wrong.";

#[derive(Debug, Args)]
#[command(after_help = AFTER_HELP)]
pub(super) struct FitArgs {
    /// The recorded run, or an access log of penstock
    #[arg(required_unless_present = "list")]
    run: Option<PathBuf>,

    /// The start of the search: the row whose GPU and model are the most alike, a file of an
    /// earlier fit, or `unknown` for hardware that no row is like
    #[arg(long, value_name = "ROW", required_unless_present = "list")]
    engine: Option<String>,

    /// The backend of an access log to learn from [default: the one with the most streams]
    #[arg(long, value_name = "NAME")]
    backend: Option<String>,

    #[command(flatten)]
    limits: EngineFlags,

    /// List the rows that penstock comes with
    #[arg(long)]
    list: bool,

    /// Print JSON
    #[arg(long)]
    json: bool,
}

#[derive(Debug, thiserror::Error)]
enum FitError {
    #[error("{0}")]
    Engine(#[from] UnusableEngine),
    #[error("{}: no backend '{given}' with streams that have ended (backends: {known})", path.display())]
    UnknownBackend { path: PathBuf, given: String, known: String },
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
    let (Some(path), Some(given), false) = (&args.run, &args.engine, args.list) else {
        let rows = engine_rows().map_err(FitError::from)?;
        return output.text(if args.json { list_json(&rows) } else { list(&rows) });
    };
    let chosen = engine_of(given).map_err(FitError::from)?;
    let text = std::fs::read_to_string(path)
        .map_err(|source| CliError::Unreadable { path: path.clone(), source })?;
    let is_log = TraceFormat::of(&text) == Some(TraceFormat::AccessLog);
    let recorded = args.recorded(path, &text, is_log)?;
    let spec = args.limits.applied(chosen.spec, Engine::Auto, None);
    let found = fit(&recorded, &spec, &chosen.least).map_err(FitError::from)?;
    if args.json {
        return output.line(to_json(&found, &spec, is_log));
    }
    output.text(to_text(&found, &recorded))
}

impl FitArgs {
    /// Reads the requests of a run, or those of one backend in an access log.
    fn recorded(&self, path: &Path, text: &str, is_log: bool) -> Result<RecordedRun, FitError> {
        let wrong = |source| FitError::Run { path: path.to_owned(), source };
        if !is_log {
            return RecordedRun::parse(text).map_err(wrong);
        }
        let mut backends = read_timings(text);
        let timings = match &self.backend {
            Some(given) => {
                let known = || backends.keys().cloned().collect::<Vec<_>>().join(", ");
                let unknown = FitError::UnknownBackend {
                    path: path.to_owned(),
                    given: given.clone(),
                    known: known(),
                };
                backends.remove(given).ok_or(unknown)?
            }
            None => backends.into_values().max_by_key(Vec::len).unwrap_or_default(),
        };
        // The times of a log are penstock's, so that the way to the engine is a part of them.
        Ok(RecordedRun::of(timings).map_err(wrong)?.at_penstock())
    }
}

fn latencies(errors: &RunErrors) -> [(&'static str, &Errors); 3] {
    [("TTFT", &errors.first_token), ("TPOT", &errors.per_token), ("total", &errors.total)]
}

fn to_text(found: &EngineFit, run: &RecordedRun) -> String {
    let requests = run.len();
    let half = requests / 2;
    let mut text = format!("Step time, learned from the first {half} of {requests} requests\n\n");
    for (name, value, unit) in readable(&found.step_time) {
        _ = writeln!(text, "  {name:<12} {value:>9.3}  {unit}");
    }
    if run.is_at_penstock() {
        // Simulated time is in picoseconds.
        let (name, millis) = ("front_end_ms", found.front_end as f64 / 1e9);
        _ = writeln!(text, "  {name:<12} {millis:>9.3}  ms before the first step of a request");
    }
    if let Some(count) = found.max_requests {
        _ = writeln!(text, "  {:<12} {count:>9}  requests at a time", "max_requests");
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

fn to_json(found: &EngineFit, spec: &EngineSpec, is_log: bool) -> Value {
    let errors = |errors: &RunErrors| -> serde_json::Map<String, Value> {
        let one = |errors: &Errors| json!({"mean": errors.mean, "p50": errors.p50, "p99": errors.p99, "wape": errors.weighted});
        let all = latencies(errors).into_iter();
        all.map(|(name, errors)| (name.to_lowercase(), one(errors))).collect()
    };
    let front_end = is_log.then_some(found.front_end);
    let mut json = engine_json(&found.step_time, &found.engine(spec), front_end);
    if let Some(fields) = json.as_object_mut() {
        let errors = json!({"learned": errors(&found.learned), "other": errors(&found.other)});
        fields.insert("errors".to_owned(), errors);
    }
    json
}

fn list(rows: &[EngineRow]) -> String {
    let mut text = format!(
        "{:<30} {:>7} {:>7} {:>7} {:>7} {:>7}  source\n",
        "row", "base ms", "token", "decode", "context", "pair"
    );
    for row in rows {
        let EngineRow {
            base_ms,
            token_us,
            decode_us,
            context_1k_us: context_us,
            pair_1m_us: pair_us,
            source,
            ..
        } = row;
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
            "decode_us": row.decode_us, "context_us": row.context_1k_us, "pair_us": row.pair_1m_us,
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
        assert!(
            called
                .complaints
                .contains("no row 'h100', and no file of that name (rows: rtxpro6000/")
        );
        let called = call(&["fit", file!(), "--engine", ROW]);
        assert_eq!(called.code, 2);
        assert!(called.complaints.contains("line 1: "), "{}", called.complaints);
        let called = call(&["fit", RUN, "--engine", ROW, "--max-step-tokens", "5"]);
        assert!(called.complaints.contains("must be at least the requests"));
        assert!(call(&["fit", "--list"]).results.contains("h100/qwen3-32b/tp2"));
    }
}
