//! The work that an engine computes until the next event.

use super::StepModel;

/// A prompt, or a part of it, computed in one step.
#[derive(Debug, Clone, Copy)]
pub(super) struct PrefillChunk {
    pub(super) slot: u32,
    pub(super) tokens: u32,
}

/// One step with prompts in it, or a series of steps in which all requests decode.
#[derive(Debug, Clone)]
pub(super) enum StepPlan {
    Mixed { start: u64, end: u64, chunks: Vec<PrefillChunk> },
    Decoding { start: u64, steps: u64, decodes: u64, context: u64 },
}

impl StepPlan {
    pub(super) fn end(&self, time: &StepModel) -> u64 {
        match self {
            Self::Mixed { end, .. } => *end,
            Self::Decoding { start, steps, decodes, context } => {
                start + time.of_steps(*steps, *decodes, *context)
            }
        }
    }

    pub(super) fn start(&self) -> u64 {
        match self {
            Self::Mixed { start, .. } | Self::Decoding { start, .. } => *start,
        }
    }

    /// Returns the number of decoding steps that have started by `at`.
    pub(super) fn steps_started(&self, at: u64, time: &StepModel) -> u64 {
        let Self::Decoding { start, steps, decodes, context } = self else {
            return 0;
        };
        let passed = at.saturating_sub(*start).saturating_add(1);
        time.steps_within(passed, *steps, *decodes, *context)
    }
}
