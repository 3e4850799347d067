//! The engines that penstock's built-in rows of step times describe.

use super::step_time::picoseconds;
use super::{Admission, Caching, EngineSpec, Order, StepTime};
pub use crate::predict::{EngineRow, RowError, engine_rows};

impl EngineRow {
    /// Returns the step time in picoseconds.
    pub fn step_time(&self) -> StepTime {
        let Self { base_ms, token_us, decode_us, context_us, pair_us, .. } = *self;
        StepTime::of_coefficients([base_ms, token_us, decode_us, context_us, pair_us])
    }

    /// Returns the lower bound that the hardware sets on the step time: each step reads all
    /// weights, and each token is multiplied with all active ones.
    pub fn least_step_time(&self) -> StepTime {
        StepTime {
            base: picoseconds(self.least_base_ms * 1e-3),
            per_token: picoseconds(self.least_token_us * 1e-6),
            ..StepTime::default()
        }
    }

    /// Returns an engine of this kind with vLLM's default limits.
    pub fn spec(&self) -> EngineSpec {
        // vLLM's `get_batch_defaults` has higher limits for GPUs with at least 70 GiB.
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
            row.spec().validate().unwrap();
        }
    }
}
