//! Step times that were measured or computed for GPUs and models, each with its source.

use serde::Deserialize;

use super::step_time::picoseconds;
use super::{Admission, Caching, EngineSpec, Order, StepTime};

const FILE: &str = include_str!("rows.json");

/// The share of the memory's bandwidth beyond which a step cannot read the weights.
const LEAST_BASE: f64 = 0.9;

/// A kind of GPU.
#[derive(Debug, Clone, PartialEq, Deserialize)]
struct Gpu {
    name: String,
    /// Dense 16-bit operations, as the datasheet says.
    teraflops: f64,
    terabytes_per_second: f64,
}

/// A model with 16-bit weights.
#[derive(Debug, Clone, PartialEq, Deserialize)]
struct Model {
    name: String,
    weights_gb: f64,
    /// Twice its active parameters.
    gigaflop_per_token: f64,
}

/// How long the steps of one model on one kind of GPU take.
#[derive(Debug, Clone, PartialEq, Deserialize)]
pub struct EngineRow {
    /// The GPU.
    pub gpu: String,
    /// The model.
    pub model: String,
    /// How many GPUs share it (tensor parallel).
    pub gpus: u32,
    /// Milliseconds of every step.
    pub base_ms: f64,
    /// Microseconds per new prompt token.
    pub token_us: f64,
    /// Microseconds per decoding request.
    pub decode_us: f64,
    /// Microseconds per 1,000 tokens in the contexts of decoding requests.
    pub context_us: f64,
    /// Microseconds per million attention pairs of prompts.
    pub pair_us: f64,
    /// Blocks of 16 tokens in its KV cache.
    pub kv_blocks: u32,
    /// The engine and its version.
    pub engine: String,
    /// When it was measured.
    pub date: String,
    /// Who measured or computed it, and how.
    pub source: String,
    /// How far it is off, where that is known.
    pub error: String,
    /// The least `base_ms` and `token_us` that the hardware can reach.
    #[serde(skip)]
    least: (f64, f64),
}

#[derive(Debug, Deserialize)]
struct Rows {
    gpus: Vec<Gpu>,
    models: Vec<Model>,
    rows: Vec<EngineRow>,
}

/// Why rows cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum RowError {
    /// The file is not as described.
    #[error("{0}")]
    Syntax(#[from] serde_json::Error),
    /// A row names a GPU or a model that the file does not describe.
    #[error("{row}: the GPU or the model is not described")]
    Unknown {
        /// The row.
        row: String,
    },
    /// A row is faster than its hardware.
    #[error(
        "{row}: {value} {unit} {what} is faster than the hardware: at least {least:.1} are needed"
    )]
    TooFast {
        /// The row.
        row: String,
        /// Which of its figures.
        what: &'static str,
        /// The figure.
        value: f64,
        /// Its unit.
        unit: &'static str,
        /// The least that is possible.
        least: f64,
    },
}

impl EngineRow {
    /// What users call it, such as `h100/qwen3-32b/tp2`.
    pub fn name(&self) -> String {
        format!("{}/{}/tp{}", self.gpu, self.model, self.gpus)
    }

    /// The step time in picoseconds.
    pub fn step_time(&self) -> StepTime {
        let Self { base_ms, token_us, decode_us, context_us, pair_us, .. } = *self;
        StepTime::of_coefficients([base_ms, token_us, decode_us, context_us, pair_us])
    }

    /// The step time that its hardware cannot beat: it reads all weights in every step, and multiplies every
    /// token with all that are active.
    pub fn least_step_time(&self) -> StepTime {
        let (base_ms, token_us) = self.least;
        StepTime {
            base: picoseconds(base_ms * 1e-3),
            per_token: picoseconds(token_us * 1e-6),
            ..StepTime::default()
        }
    }

    /// An engine of this kind with vLLM's default limits on it.
    pub fn spec(&self) -> EngineSpec {
        // vLLM's `get_batch_defaults`: more for GPUs with 70 GiB and more.
        let is_large = self.gpu != "rtx4090";
        EngineSpec {
            step_time: self.step_time().into(),
            max_requests: if is_large { 1024 } else { 256 },
            max_step_tokens: if is_large { 8192 } else { 2048 },
            max_context: u32::MAX,
            kv_blocks: self.kv_blocks,
            caching: Caching::Blocks,
            admission: Admission::OnDemand,
            order: Order::Arrival,
            on_demand: None,
        }
    }

    /// Learns what the hardware can do, and checks that the row does not say more.
    fn check(&mut self, gpu: &Gpu, model: &Model) -> Result<(), RowError> {
        let gpus = f64::from(self.gpus);
        let base = LEAST_BASE * model.weights_gb / (gpus * gpu.terabytes_per_second);
        let token = model.gigaflop_per_token / (gpus * gpu.teraflops) * 1e3;
        self.least = (base, token);
        let error = |what, value, unit, least| {
            Err(RowError::TooFast { row: self.name(), what, value, unit, least })
        };
        match () {
            () if self.base_ms < base => error("per step", self.base_ms, "ms", base),
            () if self.token_us < token => error("per prompt token", self.token_us, "µs", token),
            () => Ok(()),
        }
    }
}

/// The rows that penstock comes with.
///
/// # Errors
/// Never, as the tests show: the file is part of the program.
pub fn engine_rows() -> Result<Vec<EngineRow>, RowError> {
    parse(FILE)
}

fn parse(text: &str) -> Result<Vec<EngineRow>, RowError> {
    let Rows { gpus, models, mut rows } = serde_json::from_str(text)?;
    for row in &mut rows {
        let gpu = gpus.iter().find(|gpu| gpu.name == row.gpu);
        let model = models.iter().find(|model| model.name == row.model);
        let (Some(gpu), Some(model)) = (gpu, model) else {
            return Err(RowError::Unknown { row: row.name() });
        };
        row.check(gpu, model)?;
    }
    Ok(rows)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shipped_rows_are_possible() {
        let rows = engine_rows().unwrap();
        assert!(rows.len() >= 6);
        for row in rows {
            row.spec().validate().unwrap();
            assert!(!row.source.is_empty() && !row.error.is_empty(), "{}", row.name());
        }
    }

    #[test]
    fn rows_faster_than_the_hardware_are_refused() {
        // A prefill of 4.8 µs per token, as BLIS's bundled coefficients have it for this row.
        let wrong = FILE.replace("\"token_us\": 45,", "\"token_us\": 4.8,");
        let error = parse(&wrong).unwrap_err().to_string();
        assert!(error.contains("h100/qwen3-32b/tp2: 4.8 µs per prompt token"), "{error}");
        assert!(error.contains("at least 32.3"), "{error}");
        let wrong = FILE.replace("\"base_ms\": 16.4", "\"base_ms\": 9");
        let error = parse(&wrong).unwrap_err().to_string();
        assert!(error.contains("9 ms per step"), "{error}");
        let wrong = FILE.replace("\"gpu\": \"rtx4090\"", "\"gpu\": \"x\"");
        assert!(matches!(parse(&wrong), Err(RowError::Unknown { .. })));
    }
}
