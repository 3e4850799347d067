//! The engines of simulations: a row or a file, and the flags that change its limits.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use clap::Args;
use penstock_api::units::parse_duration;
use penstock_api::{ENGINES, Engine};
use penstock_sim::engine::{
    Admission, Caching, EngineRow, EngineSpec, GridError, OnDemand, Order, RowError, Slots,
    StepGrid, StepModel, StepTable, StepTime, engine_rows, picoseconds,
};
use serde::Deserialize;
use serde_json::{Value, json};

#[derive(Debug, Args)]
pub(super) struct EngineFlags {
    /// The most requests in a batch (vLLM: max_num_seqs)
    #[arg(long, value_name = "N")]
    max_requests: Option<u32>,

    /// The most tokens of a step (vLLM: max_num_batched_tokens)
    #[arg(long, value_name = "N")]
    max_step_tokens: Option<u32>,

    /// The longest prompt with its output (vLLM: max_model_len)
    #[arg(long, value_name = "TOKENS")]
    max_context: Option<u32>,

    /// Blocks of 16 tokens in the KV cache
    #[arg(long, value_name = "N")]
    kv_blocks: Option<u32>,

    /// The scheduler of engines: vllm, sglang (longest cached prefix first), trtllm (nothing is
    /// preempted), llamacpp (slots) or ollama (slots, and models loaded on demand) [default: the
    /// backend's `engine`]
    #[arg(long, value_name = "ENGINE", value_parser = scheduler)]
    scheduler: Option<Engine>,

    /// The number of slots of an engine, each with its own cache, as llama.cpp and Ollama have them
    /// [default: the backend's num_parallel, 4 for llama.cpp, 1 for Ollama]
    #[arg(long, value_name = "N", conflicts_with_all = ["max_requests", "kv_blocks"])]
    slots: Option<u32>,

    /// The context of each slot, in tokens
    #[arg(long, value_name = "TOKENS", default_value_t = 8192)]
    slot_context: u32,

    /// The time that Ollama takes to load a model
    #[arg(long, value_name = "TIME", default_value = "10s", value_parser = parse_duration)]
    load_time: Duration,

    /// The most models that Ollama has in memory (OLLAMA_MAX_LOADED_MODELS)
    #[arg(long, value_name = "N", default_value_t = 1)]
    loaded_models: u32,
}

fn scheduler(given: &str) -> Result<Engine, String> {
    let rows = || ENGINES.iter().filter(|row| row.scheduler.is_some()).map(|row| row.engine);
    let found = rows().find(|engine| engine.name() == given);
    let known = || rows().map(Engine::name).collect::<Vec<_>>().join(", ");
    found.ok_or_else(|| format!("no engine that can be simulated (known: {})", known()))
}

impl EngineFlags {
    /// Returns an engine with the limits of the flags. `engine` and `slots` are the settings of the
    /// backend.
    pub(super) fn applied(
        &self,
        spec: EngineSpec,
        engine: Engine,
        slots: Option<u32>,
    ) -> EngineSpec {
        let spec = EngineSpec {
            max_requests: self.max_requests.unwrap_or(spec.max_requests),
            max_step_tokens: self.max_step_tokens.unwrap_or(spec.max_step_tokens),
            max_context: self.max_context.unwrap_or(spec.max_context),
            kv_blocks: self.kv_blocks.unwrap_or(spec.kv_blocks),
            ..spec
        };
        let load_time = picoseconds(self.load_time.as_secs_f64());
        let slots = Slots {
            count: self.slots.or(slots),
            context: self.slot_context,
            on_demand: OnDemand { most: self.loaded_models, load_time },
        };
        spec.scheduled_as(self.scheduler.unwrap_or(engine), &slots)
    }
}

/// The reason why an engine cannot be used.
#[derive(Debug, thiserror::Error)]
pub(super) enum UnusableEngine {
    #[error("--engine: no row '{given}', and no file of that name (rows: {known})")]
    Unknown { given: String, known: String },
    #[error("cannot read {}: {source}", path.display())]
    Unreadable { path: PathBuf, source: std::io::Error },
    #[error("{}: {source}", path.display())]
    File { path: PathBuf, source: serde_json::Error },
    #[error("{}: step_table: {source}", path.display())]
    Grid { path: PathBuf, source: GridError },
    #[error("{}: either step_time or step_table", path.display())]
    NoTime { path: PathBuf },
    #[error("{0}")]
    Rows(#[from] RowError),
}

/// The output of `penstock fit --json`.
#[derive(Debug, Deserialize)]
struct Fitted {
    step_time: Option<FittedTime>,
    step_table: Option<StepGrid>,
    limits: Limits,
    /// The time before the first step, if it was learned.
    #[serde(default)]
    front_end_ms: Option<f64>,
}

impl Fitted {
    fn step_model(&self, path: &Path) -> Result<StepModel, UnusableEngine> {
        let path = path.to_owned();
        match (&self.step_time, &self.step_table) {
            (Some(time), None) => {
                let FittedTime { base_ms, token_us, decode_us, context_us, pair_us } = *time;
                let time = [base_ms, token_us, decode_us, context_us, pair_us];
                Ok(StepTime::of_coefficients(time).into())
            }
            (None, Some(grid)) => match StepTable::new(grid) {
                Ok(table) => Ok(StepModel::Table(Arc::new(table))),
                Err(source) => Err(UnusableEngine::Grid { path, source }),
            },
            (Some(_), Some(_)) | (None, None) => Err(UnusableEngine::NoTime { path }),
        }
    }
}

#[derive(Debug, Deserialize)]
struct FittedTime {
    base_ms: f64,
    token_us: f64,
    decode_us: f64,
    context_us: f64,
    pair_us: f64,
}

#[derive(Debug, Deserialize)]
struct Limits {
    max_requests: u32,
    max_step_tokens: u32,
    max_context: u32,
    kv_blocks: u32,
    #[serde(default)]
    has_slots: bool,
}

/// An engine, and the lower bound of the step time on its hardware.
#[derive(Clone)]
pub(super) struct ChosenEngine {
    pub(super) spec: EngineSpec,
    pub(super) least: StepTime,
}

/// The start of a fit for hardware that no row describes: without a lower bound of the step time.
const UNKNOWN: &str = "unknown";

/// Returns the engine of a row, or of a file that a fit wrote.
pub(super) fn engine_of(given: &str) -> Result<ChosenEngine, UnusableEngine> {
    let rows = engine_rows()?;
    // Before any file: one with the name of a row can still be given as a path.
    if let Some(row) = rows.iter().find(|row| row.name() == given) {
        let (spec, least) = (EngineSpec::from(row), StepTime::least_of(row));
        return Ok(ChosenEngine { spec, least });
    }
    if let (UNKNOWN, Some(row)) = (given, rows.first()) {
        return Ok(ChosenEngine { spec: EngineSpec::from(row), least: StepTime::default() });
    }
    let path = Path::new(given);
    if !path.exists() {
        let mut known: Vec<String> = rows.iter().map(EngineRow::name).collect();
        known.push(UNKNOWN.to_owned());
        return Err(UnusableEngine::Unknown { given: given.to_owned(), known: known.join(", ") });
    }
    let text = std::fs::read_to_string(path)
        .map_err(|source| UnusableEngine::Unreadable { path: path.to_owned(), source })?;
    let fitted: Fitted = serde_json::from_str(&text)
        .map_err(|source| UnusableEngine::File { path: path.to_owned(), source })?;
    let step_time = fitted.step_model(path)?;
    let Limits { max_requests, max_step_tokens, max_context, kv_blocks, has_slots } = fitted.limits;
    let spec = EngineSpec {
        step_time,
        max_requests,
        max_step_tokens,
        max_context,
        kv_blocks,
        caching: if has_slots { Caching::Slots } else { Caching::Blocks },
        // As vLLM schedules; `applied` replaces it by the scheduler of another engine.
        admission: Admission::OnDemand,
        order: Order::Arrival,
        on_demand: None,
        front_end: fitted.front_end_ms.map(|millis| picoseconds(millis * 1e-3)),
    };
    Ok(ChosenEngine { spec, least: StepTime::default() })
}

/// Formats a step time for people: the name, the value and its unit of each part.
pub(super) fn readable(time: &StepTime) -> [(&'static str, f64, &'static str); 5] {
    [
        // Simulated time is in picoseconds.
        ("base_ms", time.base as f64 / 1e9, "ms per step"),
        ("token_us", time.per_token as f64 / 1e6, "µs per prompt token"),
        ("decode_us", time.per_decode as f64 / 1e6, "µs per decoding request"),
        ("context_us", time.per_context as f64 / 1e3, "µs per 1,000 tokens of context"),
        ("pair_us", time.per_pair as f64, "µs per million attention pairs"),
    ]
}

/// Returns an engine in the format that [`engine_of`] reads.
pub(super) fn engine_json(time: &StepTime, spec: &EngineSpec, front_end: Option<u64>) -> Value {
    let time = readable(time).into_iter();
    let time: serde_json::Map<String, Value> =
        time.map(|(name, value, _)| (name.into(), value.into())).collect();
    json!({
        "step_time": time,
        "limits": {
            "max_requests": spec.max_requests, "max_step_tokens": spec.max_step_tokens,
            "max_context": spec.max_context, "kv_blocks": spec.kv_blocks,
            "has_slots": spec.caching == Caching::Slots,
        },
        "front_end_ms": front_end.map(|picos| picos as f64 / 1e9),
    })
}
