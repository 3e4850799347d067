//! Step times that were measured or computed for GPUs and models, each with its source.

use serde::Deserialize;

use super::coefficients::Coefficients;

const FILE: &str = include_str!("rows.json");

/// The least time of a step, as a share of the time in which the memory reads the weights at full
/// bandwidth.
const MIN_BASE_SHARE: f64 = 0.9;

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
struct ModelWeights {
    name: String,
    weights_gb: f64,
    /// Twice its active parameters.
    gigaflop_per_token: f64,
}

/// The step times of one model on one kind of GPU.
#[derive(Debug, Clone, PartialEq, Deserialize)]
pub struct EngineRow {
    /// The GPU.
    pub gpu: String,
    /// The model.
    pub model: String,
    /// The number of GPUs that share it (tensor parallel).
    pub gpus: u32,
    /// Milliseconds of every step.
    pub base_ms: f64,
    /// Microseconds per new prompt token.
    pub token_us: f64,
    /// Microseconds per decoding request.
    pub decode_us: f64,
    /// Microseconds per 1,000 tokens in the contexts of decoding requests.
    #[serde(rename = "context_us")]
    pub context_1k_us: f64,
    /// Microseconds per million attention pairs of prompts.
    #[serde(rename = "pair_us")]
    pub pair_1m_us: f64,
    /// Blocks of 16 tokens in its KV cache.
    pub kv_blocks: u32,
    /// The engine and its version.
    pub engine: String,
    /// The date of the measurement.
    pub date: String,
    /// The origin: who measured or computed it, and how.
    pub source: String,
    /// The error of the row, where it is known.
    pub error: String,
    /// The least `base_ms` that the hardware can reach: it reads all weights in every step.
    #[serde(skip)]
    pub min_base_ms: f64,
    /// The least `token_us`: it multiplies every token with all weights that are active.
    #[serde(skip)]
    pub min_token_us: f64,
}

#[derive(Debug, Deserialize)]
struct RowsFile {
    gpus: Vec<Gpu>,
    models: Vec<ModelWeights>,
    rows: Vec<EngineRow>,
}

/// The reason why rows cannot be used.
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
        "{row}: {value} {unit} {what} is faster than the hardware: at least {min:.1} are needed"
    )]
    TooFast {
        /// The row.
        row: String,
        /// The figure that is too small.
        what: &'static str,
        /// Its value.
        value: f64,
        /// Its unit.
        unit: &'static str,
        /// The least that is possible.
        min: f64,
    },
}

impl EngineRow {
    /// Returns the name that users know, such as `h100/qwen3-32b/tp2`.
    pub fn name(&self) -> String {
        format!("{}/{}/tp{}", self.gpu, self.model, self.gpus)
    }

    /// Returns the row as the coefficients of the engine model.
    pub fn coefficients(&self) -> Coefficients {
        Coefficients {
            base_us: self.base_ms * 1e3,
            token_us: self.token_us,
            decode_us: self.decode_us,
            context_us: self.context_1k_us / 1e3,
            pair_us: self.pair_1m_us / 1e6,
            ..Coefficients::default()
        }
    }

    /// Computes what the hardware can do, and checks that the row is not faster.
    fn check(&mut self, gpu: &Gpu, model: &ModelWeights) -> Result<(), RowError> {
        let gpus = f64::from(self.gpus);
        let base_ms = MIN_BASE_SHARE * model.weights_gb / (gpus * gpu.terabytes_per_second);
        let token_us = model.gigaflop_per_token / (gpus * gpu.teraflops) * 1e3;
        (self.min_base_ms, self.min_token_us) = (base_ms, token_us);
        let error = |what, value, unit, min| {
            Err(RowError::TooFast { row: self.name(), what, value, unit, min })
        };
        match () {
            () if self.base_ms < base_ms => error("per step", self.base_ms, "ms", base_ms),
            () if self.token_us < token_us => {
                error("per prompt token", self.token_us, "µs", token_us)
            }
            () => Ok(()),
        }
    }
}

/// Returns the rows that penstock comes with.
///
/// # Errors
/// Never, as the tests show: the file is part of the program.
pub fn engine_rows() -> Result<Vec<EngineRow>, RowError> {
    parse(FILE)
}

fn parse(text: &str) -> Result<Vec<EngineRow>, RowError> {
    let RowsFile { gpus, models, mut rows } = serde_json::from_str(text)?;
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
            let Coefficients { base_us, token_us, decode_us, context_us, pair_us, .. } =
                row.coefficients();
            let all = [base_us, token_us, decode_us, context_us, pair_us];
            assert!(all.iter().all(|one| *one > 0.0), "{}", row.name());
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
