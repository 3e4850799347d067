//! The engines that penstock's built-in rows of step times describe.

use super::step_time::picoseconds;
use super::{Admission, Caching, EngineSpec, Order, StepTime};
pub use penstock_predict::{EngineRow, RowError, engine_rows};

impl From<&EngineRow> for StepTime {
    /// Returns the step time in picoseconds.
    fn from(row: &EngineRow) -> Self {
        let EngineRow { base_ms, token_us, decode_us, context_1k_us, pair_1m_us, .. } = *row;
        Self::of_coefficients([base_ms, token_us, decode_us, context_1k_us, pair_1m_us])
    }
}

impl StepTime {
    /// Returns the lower bound that the hardware of `row` sets on the step time: each step reads
    /// all weights, and each token is multiplied with all active ones.
    pub fn least_of(row: &EngineRow) -> Self {
        Self {
            base: picoseconds(row.min_base_ms * 1e-3),
            per_token: picoseconds(row.min_token_us * 1e-6),
            ..Self::default()
        }
    }
}

impl From<&EngineRow> for EngineSpec {
    /// Returns an engine of this kind with vLLM's default limits.
    fn from(row: &EngineRow) -> Self {
        // vLLM's `get_batch_defaults` has higher limits for GPUs with at least 70 GiB.
        let is_large = row.gpu != "rtx4090";
        Self {
            step_time: StepTime::from(row).into(),
            max_requests: if is_large { 1024 } else { 256 },
            max_step_tokens: if is_large { 8192 } else { 2048 },
            max_context: u32::MAX,
            kv_blocks: row.kv_blocks,
            caching: Caching::Blocks,
            admission: Admission::OnDemand,
            order: Order::Arrival,
            on_demand: None,
            front_end: None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shipped_rows_can_run() {
        for row in engine_rows().unwrap() {
            EngineSpec::from(&row).validate().unwrap();
        }
    }
}
