//! The duration of steps: five coefficients, or a table.

use std::sync::Arc;

use super::step_table::StepTable;
use super::step_time::picoseconds;
use super::{StepTime, StepWork};

/// The model of an engine's step duration.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum StepModel {
    Linear(StepTime),
    /// Measurements on a grid.
    Table(Arc<StepTable>),
}

impl From<StepTime> for StepModel {
    fn from(time: StepTime) -> Self {
        Self::Linear(time)
    }
}

impl StepModel {
    /// Returns the coefficients; `None` for a table.
    pub fn linear(&self) -> Option<StepTime> {
        match self {
            Self::Linear(time) => Some(*time),
            Self::Table(_) => None,
        }
    }

    /// Returns the duration of one step.
    pub(super) fn of(&self, work: &StepWork) -> u64 {
        match self {
            Self::Linear(time) => time.of(work),
            Self::Table(table) => table.of(work),
        }
    }

    /// Returns the duration of `steps` steps in which `decodes` requests decode, whose contexts
    /// have `context` tokens at first.
    pub(super) fn of_steps(&self, steps: u64, decodes: u64, context: u64) -> u64 {
        match self {
            Self::Linear(time) => time.of_steps(steps, decodes, context),
            Self::Table(table) => table.of_steps(steps, decodes, context),
        }
    }

    /// Returns the smallest number of such steps that takes at least `duration`; `most` if no
    /// smaller number does.
    pub(super) fn steps_within(&self, duration: u64, most: u64, decodes: u64, context: u64) -> u64 {
        let (mut low, mut high) = (0, most);
        while low < high {
            let middle = low + (high - low) / 2;
            if self.of_steps(middle, decodes, context) >= duration {
                high = middle;
            } else {
                low = middle + 1;
            }
        }
        low
    }

    /// Returns the same model with every step `factor` times as long.
    #[must_use]
    pub fn slowed_down(&self, factor: f64) -> Self {
        let scaled = |picos: u64| picoseconds(picos as f64 * factor * 1e-12);
        match self {
            Self::Linear(StepTime { base, per_token, per_decode, per_context, per_pair }) => {
                Self::Linear(StepTime {
                    base: scaled(*base),
                    per_token: scaled(*per_token),
                    per_decode: scaled(*per_decode),
                    per_context: scaled(*per_context),
                    per_pair: scaled(*per_pair),
                })
            }
            Self::Table(table) => Self::Table(Arc::new(table.scaled(factor, factor))),
        }
    }

    /// Returns the same model with errors: factors on the cost of prompt tokens and of decoding
    /// contexts.
    #[must_use]
    pub fn perturbed(&self, token: f64, context: f64) -> Self {
        let scaled = |picos: u64, factor: f64| picoseconds(picos as f64 * factor * 1e-12);
        match self {
            Self::Linear(time) => Self::Linear(StepTime {
                per_token: scaled(time.per_token, token),
                per_context: scaled(time.per_context, context),
                ..*time
            }),
            Self::Table(table) => Self::Table(Arc::new(table.scaled(token, context))),
        }
    }
}
