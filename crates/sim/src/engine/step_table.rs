//! Step times measured on a grid.

use serde::Deserialize;

use super::StepWork;
use super::step_time::picoseconds;

/// A grid as in its file, in milliseconds.
#[derive(Debug, Clone, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct StepGrid {
    /// Pairs of a number of prompt tokens and the duration of a step with nothing else in it.
    pub prefill_ms: Vec<(u32, f64)>,
    /// The batch sizes of the decoding steps.
    pub batch: Vec<u32>,
    /// The mean contexts of the decoding requests, in tokens.
    pub context: Vec<u32>,
    /// The duration of a decoding step: one row for each of `batch`, one column for each of
    /// `context`.
    pub decode_ms: Vec<Vec<f64>>,
}

/// The reason why a grid is invalid.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum GridError {
    /// The grid has too few points.
    #[error("a table needs two points of prefill_ms, one of batch and two of context")]
    TooSmall,
    /// An axis does not ascend.
    #[error("the numbers of {0} must grow")]
    Axis(&'static str),
    /// The numbers of rows and columns do not match the axes.
    #[error("decode_ms needs a row for each of batch, with a number for each of context")]
    Shape,
    /// More work takes less time.
    #[error("the times of {0} must be greater than 0, and not fall")]
    Falls(&'static str),
}

/// The points of a piecewise linear function, in whole picoseconds; the last segment extends beyond
/// the last point.
#[derive(Debug, Clone, PartialEq, Eq)]
struct PiecewiseLine(Vec<(u64, u64)>);

impl PiecewiseLine {
    /// Returns the segment around a point, with its slope in picoseconds per unit; flat before the
    /// first point.
    fn segment(&self, at: u64) -> Segment {
        let after = self.0.partition_point(|(place, _)| *place <= at);
        // Beyond the last point, the last segment goes on.
        let index = after.saturating_sub(1).min(self.0.len().saturating_sub(2));
        let (from, start) = self.0.get(index).copied().unwrap_or_default();
        let (to, end) = self.0.get(index + 1).copied().unwrap_or((from + 1, start));
        let slope = if at < from { 0 } else { (end - start) / (to - from) };
        let until = if after + 1 >= self.0.len() { u64::MAX } else { to };
        Segment { from, start, slope, until: if at < from { from } else { until } }
    }

    fn value(&self, at: u64) -> u64 {
        self.segment(at).value(at)
    }
}

#[derive(Debug, Clone, Copy)]
struct Segment {
    from: u64,
    start: u64,
    slope: u64,
    /// The start of the next segment.
    until: u64,
}

impl Segment {
    fn value(&self, at: u64) -> u64 {
        self.start + self.slope * at.saturating_sub(self.from)
    }
}

/// A grid of step times. It is bilinear between its points, extrapolates from the last two beyond
/// them, and is flat below the smallest. A step with prompts and decoding requests takes the time
/// of its decoding requests, plus the excess of its prefill over the shortest prefill.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StepTable {
    prefill: PiecewiseLine,
    /// The duration of a step by mean context, for each batch size.
    decode: Vec<(u64, PiecewiseLine)>,
}

impl StepTable {
    /// Reads a grid.
    ///
    /// # Errors
    /// [`GridError`] if the grid is not rectangular, or more work takes less time.
    pub fn new(grid: &StepGrid) -> Result<Self, GridError> {
        let StepGrid { prefill_ms, batch, context, decode_ms } = grid;
        if prefill_ms.len() < 2 || batch.is_empty() || context.len() < 2 {
            return Err(GridError::TooSmall);
        }
        let grows = |axis: &[u32]| axis.is_sorted_by(|a, b| a < b);
        let tokens: Vec<u32> = prefill_ms.iter().map(|(tokens, _)| *tokens).collect();
        for (name, axis) in [("prefill_ms", &tokens), ("batch", batch), ("context", context)] {
            if !grows(axis) {
                return Err(GridError::Axis(name));
            }
        }
        if decode_ms.len() != batch.len() || decode_ms.iter().any(|row| row.len() != context.len())
        {
            return Err(GridError::Shape);
        }
        // A NaN is not sorted, and so is refused, too.
        let rises = |times: &[f64]| times.first() > Some(&0.0) && times.is_sorted();
        let prefill: Vec<f64> = prefill_ms.iter().map(|(_, millis)| *millis).collect();
        let columns = decode_ms.iter().zip(decode_ms.iter().skip(1));
        let falls = |(a, b): (&Vec<f64>, &Vec<f64>)| a.iter().zip(b).any(|(a, b)| b < a);
        if !rises(&prefill) {
            return Err(GridError::Falls("prefill_ms"));
        }
        if decode_ms.iter().any(|row| !rises(row)) || columns.into_iter().any(falls) {
            return Err(GridError::Falls("decode_ms"));
        }
        let line = |axis: &[u32], times: &[f64]| {
            let times = times.iter().map(|millis| picoseconds(millis * 1e-3));
            PiecewiseLine(axis.iter().map(|place| u64::from(*place)).zip(times).collect())
        };
        let rows = batch.iter().zip(decode_ms);
        Ok(Self {
            prefill: line(&tokens, &prefill),
            decode: rows.map(|(batch, times)| (u64::from(*batch), line(context, times))).collect(),
        })
    }

    /// Returns the same table with prefill and decode times multiplied by these factors.
    #[must_use]
    pub(super) fn scaled(&self, prefill: f64, decode: f64) -> Self {
        let scale = |line: &PiecewiseLine, factor: f64| {
            let points = line.0.iter();
            let scaled = |time: u64| picoseconds(time as f64 * factor * 1e-12);
            PiecewiseLine(points.map(|(place, time)| (*place, scaled(*time))).collect())
        };
        let decoding = self.decode.iter().map(|(batch, line)| (*batch, scale(line, decode)));
        Self { prefill: scale(&self.prefill, prefill), decode: decoding.collect() }
    }

    /// Returns the duration of a step of `decodes` decoding requests, by the total tokens of their
    /// contexts.
    fn decode_line(&self, decodes: u64) -> PiecewiseLine {
        let contexts = self.decode.first().map_or(0, |(_, line)| line.0.len());
        let points = (0..contexts).map(|column| {
            let of_column = self.decode.iter().filter_map(|(batch, line)| {
                line.0.get(column).map(|(context, time)| (*batch, *time, *context))
            });
            let mut context = 0;
            let by_batch = PiecewiseLine(
                of_column
                    .map(|(batch, time, at)| {
                        context = at;
                        (batch, time)
                    })
                    .collect(),
            );
            // The grid has mean contexts; a step knows the total of its requests.
            (context * decodes, by_batch.value(decodes))
        });
        PiecewiseLine(points.collect())
    }

    /// Returns the duration of one step.
    pub(super) fn of(&self, work: &StepWork) -> u64 {
        let prefill = |tokens| self.prefill.value(tokens);
        let decode = || self.decode_line(work.decodes).value(work.context);
        match (work.prompt_tokens, work.decodes) {
            (0, _) => decode(),
            (tokens, 0) => prefill(tokens),
            // The shortest prefill is what every step costs: the decoding has paid that already.
            (tokens, _) => decode() + prefill(tokens) - prefill(0).min(prefill(tokens)),
        }
    }

    /// Returns the duration of `steps` steps: an arithmetic series in each segment of the line.
    pub(super) fn of_steps(&self, steps: u64, decodes: u64, context: u64) -> u64 {
        let line = self.decode_line(decodes);
        let (mut left, mut context, mut sum) = (steps, context, 0);
        while left > 0 {
            let segment = line.segment(context);
            // The steps that start within this segment, where the time grows by the same amount.
            let fit = segment.until.saturating_sub(context).div_ceil(decodes.max(1)).max(1);
            let count = left.min(fit);
            let growth = if context < segment.from { 0 } else { segment.slope * decodes };
            // In whole picoseconds: a sum of floats would depend on how the steps are grouped.
            sum += count * segment.value(context) + growth * (count * (count - 1) / 2);
            context += count * decodes;
            left -= count;
        }
        sum
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn grid() -> StepGrid {
        StepGrid {
            prefill_ms: vec![(0, 10.0), (1000, 50.0), (8000, 400.0)],
            batch: vec![1, 32, 128],
            context: vec![0, 1000, 8000],
            decode_ms: vec![
                vec![10.0, 10.5, 14.0],
                vec![11.0, 14.0, 40.0],
                vec![14.0, 25.0, 110.0],
            ],
        }
    }

    #[test]
    fn points_of_the_grid_are_met_and_the_sum_is_that_of_its_steps() {
        let table = StepTable::new(&grid()).unwrap();
        let millis = |work: &StepWork| table.of(work) as f64 / 1e9;
        let decode = |decodes, context| StepWork { decodes, context, ..StepWork::default() };
        let near = |a: f64, b: f64| assert!((a - b).abs() < 1e-4, "{a} {b}");
        near(millis(&decode(32, 32_000)), 14.0);
        near(millis(&decode(1, 500)), 10.25);
        near(millis(&decode(80, 80 * 1000)), 19.5);
        near(millis(&decode(1, 15_000)), 17.5);
        let prompts = |prompt_tokens| StepWork { prompt_tokens, ..StepWork::default() };
        near(millis(&prompts(500)), 30.0);
        near(millis(&StepWork { prompt_tokens: 500, ..decode(32, 32_000) }), 34.0);
        for (decodes, context) in [(1, 990), (7, 3), (50, 49_000), (128, 2_000_000)] {
            let mut sum = 0;
            for steps in 0..2000 {
                assert_eq!(table.of_steps(steps, decodes, context), sum, "{decodes} {steps}");
                sum += table.of(&decode(decodes, context + decodes * steps));
            }
        }
    }

    #[test]
    fn invalid_step_grids_are_refused() {
        let wrong = |change: fn(&mut StepGrid)| {
            let mut grid = grid();
            change(&mut grid);
            StepTable::new(&grid).unwrap_err()
        };
        assert_eq!(wrong(|grid| grid.prefill_ms.truncate(1)), GridError::TooSmall);
        assert_eq!(wrong(|grid| grid.batch[2] = 32), GridError::Axis("batch"));
        assert_eq!(wrong(|grid| grid.decode_ms[1].truncate(1)), GridError::Shape);
        assert_eq!(wrong(|grid| grid.prefill_ms[2].1 = 49.0), GridError::Falls("prefill_ms"));
        assert_eq!(wrong(|grid| grid.decode_ms[2][1] = 13.0), GridError::Falls("decode_ms"));
        assert_eq!(wrong(|grid| grid.decode_ms[0][0] = 0.0), GridError::Falls("decode_ms"));
    }
}
