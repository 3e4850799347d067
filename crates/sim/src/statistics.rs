//! Statistics over many values.

/// The mean and percentiles of values.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub struct Percentiles {
    /// The mean; 0 without values.
    pub mean: f64,
    pub p50: f64,
    pub p90: f64,
    pub p95: f64,
    pub p99: f64,
}

impl Percentiles {
    /// Computes the percentiles of values in any order.
    pub fn of(mut values: Vec<f64>) -> Self {
        values.sort_by(f64::total_cmp);
        let count = values.len();
        if count == 0 {
            return Self::default();
        }
        // Nearest rank: at least this share of the values is at most the percentile.
        let at = |percent: usize| {
            let rank = (count * percent).div_ceil(100).max(1);
            values.get(rank - 1).copied().unwrap_or_default()
        };
        Self { mean: mean(&values), p50: at(50), p90: at(90), p95: at(95), p99: at(99) }
    }
}

/// Returns the mean; 0 without values.
pub fn mean(values: &[f64]) -> f64 {
    if values.is_empty() { 0.0 } else { values.iter().sum::<f64>() / values.len() as f64 }
}

/// Returns the coefficient of variation: the deviation divided by the mean.
pub fn variation(values: &[f64]) -> f64 {
    let middle = mean(values);
    if middle <= 0.0 {
        return 0.0;
    }
    let square = |value: &f64| (value - middle) * (value - middle);
    let variance = values.iter().map(square).sum::<f64>() / values.len() as f64;
    libm::sqrt(variance) / middle
}

/// Returns Jain's index of fairness: 1 if all get the same, 1/n if one gets everything.
pub fn jain(values: &[f64]) -> f64 {
    let sum: f64 = values.iter().sum();
    let squares: f64 = values.iter().map(|value| value * value).sum();
    if squares <= 0.0 { 1.0 } else { sum * sum / (values.len() as f64 * squares) }
}

/// A mean with its 95 % confidence interval.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub struct Interval {
    pub mean: f64,
    /// The half-width of the interval.
    pub margin: f64,
}

impl Interval {
    /// Computes the interval of a few independent values (Student's t). It is unbounded for a
    /// single value.
    pub fn of(values: &[f64]) -> Self {
        let middle = mean(values);
        let freedom = values.len().saturating_sub(1);
        if freedom == 0 {
            return Self { mean: middle, margin: f64::INFINITY };
        }
        let squares: f64 = values.iter().map(|value| (value - middle) * (value - middle)).sum();
        let error = libm::sqrt(squares / freedom as f64 / values.len() as f64);
        Self { mean: middle, margin: error * student(freedom) }
    }

    /// Computes the interval of a figure of all values by a jackknife: from the figures `without`
    /// each block of them. It is unbounded without at least two blocks.
    pub fn jackknife(whole: f64, without: &[f64]) -> Self {
        let freedom = without.len().saturating_sub(1);
        if freedom == 0 {
            return Self { mean: whole, margin: f64::INFINITY };
        }
        let middle = mean(without);
        let squares: f64 = without.iter().map(|value| (value - middle) * (value - middle)).sum();
        let error = libm::sqrt(squares * freedom as f64 / without.len() as f64);
        Self { mean: whole, margin: error * student(freedom) }
    }

    /// Returns whether the interval excludes zero.
    pub fn excludes_zero(&self) -> bool {
        self.mean.abs() > self.margin
    }
}

/// Returns the 97.5 % quantile of Student's t distribution.
fn student(freedom: usize) -> f64 {
    const TABLE: [f64; 20] = [
        12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228, 2.201, 2.179, 2.160,
        2.145, 2.131, 2.120, 2.110, 2.101, 2.093, 2.086,
    ];
    let known = freedom.checked_sub(1).and_then(|index| TABLE.get(index)).copied();
    // Beyond the table this is within half a percent of the correction to the normal quantile.
    known.unwrap_or_else(|| 1.96 + 2.4 / freedom as f64)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn percentiles_are_values_that_occurred() {
        let found = Percentiles::of((1..=200).rev().map(f64::from).collect());
        assert_eq!((found.p50, found.p90, found.p95, found.p99), (100.0, 180.0, 190.0, 198.0));
        assert!((found.mean - 100.5).abs() < 1e-9);
        assert_eq!(Percentiles::of(vec![7.0]).p99, 7.0);
        assert_eq!(Percentiles::of(Vec::new()), Percentiles::default());
    }

    #[test]
    fn fairness_and_variation_have_their_bounds() {
        assert!((jain(&[3.0, 3.0, 3.0]) - 1.0).abs() < 1e-12);
        assert!((jain(&[9.0, 0.0, 0.0]) - 1.0 / 3.0).abs() < 1e-12);
        assert!(variation(&[5.0, 5.0]).abs() < 1e-12);
        assert!((variation(&[0.0, 10.0]) - 1.0).abs() < 1e-12);
    }

    #[test]
    fn jackknife_of_a_mean_is_the_interval_of_the_mean() {
        let values = [4.0, 5.0, 6.0, 5.0, 5.5];
        let without: Vec<f64> =
            values.iter().map(|value| (values.iter().sum::<f64>() - value) / 4.0).collect();
        let (found, plain) = (Interval::jackknife(mean(&values), &without), Interval::of(&values));
        assert!((found.mean - plain.mean).abs() < 1e-12);
        assert!((found.margin - plain.margin).abs() < 1e-12, "{found:?} {plain:?}");
        assert!(Interval::jackknife(1.0, &[1.0]).margin.is_infinite());
        assert!(!Interval::jackknife(0.0, &[0.0; 10]).excludes_zero());
    }

    #[test]
    fn intervals_are_those_of_students_t() {
        let interval = Interval::of(&[4.0, 5.0, 6.0, 5.0, 5.0]);
        assert!((interval.mean - 5.0).abs() < 1e-12);
        // s = 0.7071, error = 0.3162, t(4) = 2.776.
        assert!((interval.margin - 0.8778).abs() < 1e-3, "{}", interval.margin);
        assert!(interval.excludes_zero());
        assert!(!Interval::of(&[1.0]).excludes_zero(), "one value shows nothing");
        assert!(!Interval::of(&[-1.0, 1.0, 0.5, -0.5]).excludes_zero());
    }
}
