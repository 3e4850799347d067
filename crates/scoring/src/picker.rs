//! The pickers: each picks one of the scored candidates.

use std::cmp::Ordering;
use std::fmt;

use penstock_api::slices::element_of;
use rand::Rng;

use super::normalize;

/// A rule that picks one of the scored candidates.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub enum Picker {
    /// The highest total; between equals the highest tie-break.
    #[default]
    MaxScore,
    /// A random candidate with probability `P(i) = total(i) / sum`; all alike when none is above 0.
    WeightedRandom,
    /// The better of two random candidates (Mitzenmacher 2001): a burst never goes to one backend.
    PowerOfTwo,
    /// A random candidate, weighted by `exp((total - max) / ((max - min) x temperature))`, as in
    /// NVIDIA Dynamo; a temperature of 0 is `MaxScore`.
    Softmax {
        /// The temperature, at least 0.
        temperature: f64,
    },
}

/// The names of all pickers.
pub const PICKERS: [&str; 4] = ["max-score", "weighted-random", "power-of-two", "softmax"];

/// The reason why a picker is refused.
#[derive(Debug, Clone, PartialEq)]
pub enum PickerError {
    /// There is no picker of that name.
    Unknown { given: String },
    /// The temperature is not a finite number of at least 0, or the picker has none.
    Temperature,
}

impl std::error::Error for PickerError {}

impl fmt::Display for PickerError {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Unknown { given } => {
                write!(out, "unknown picker '{given}'; there is {}", PICKERS.join(", "))
            }
            Self::Temperature => out.write_str(
                "a temperature belongs to the picker softmax, and is a finite number of at least 0",
            ),
        }
    }
}

impl Picker {
    /// The picker of a name; `-` and `_` are alike.
    ///
    /// # Errors
    /// [`PickerError`] for other names, and for an invalid temperature.
    pub fn from_name(name: &str, temperature: Option<f64>) -> Result<Self, PickerError> {
        let picker = match normalize(name).as_str() {
            "max-score" => Self::MaxScore,
            "weighted-random" => Self::WeightedRandom,
            "power-of-two" => Self::PowerOfTwo,
            "softmax" => {
                let temperature = temperature.unwrap_or(0.1);
                if !temperature.is_finite() || temperature < 0.0 {
                    return Err(PickerError::Temperature);
                }
                return Ok(Self::Softmax { temperature });
            }
            _ => return Err(PickerError::Unknown { given: name.to_owned() }),
        };
        if temperature.is_some() { Err(PickerError::Temperature) } else { Ok(picker) }
    }

    /// The name it is configured by.
    pub fn name(self) -> &'static str {
        let [max_score, weighted_random, power_of_two, softmax] = PICKERS;
        match self {
            Self::MaxScore => max_score,
            Self::WeightedRandom => weighted_random,
            Self::PowerOfTwo => power_of_two,
            Self::Softmax { .. } => softmax,
        }
    }

    /// Returns whether the pick is random.
    pub fn is_random(self) -> bool {
        match self {
            Self::MaxScore => false,
            Self::Softmax { temperature } => temperature > 0.0,
            Self::WeightedRandom | Self::PowerOfTwo => true,
        }
    }

    /// Picks a candidate by its total, 0..=1; `rank` decides between equals. `None` when there are
    /// none.
    pub(super) fn pick(
        self,
        totals: &[f64],
        rank: impl Fn(usize) -> u64,
        rng: &mut impl Rng,
    ) -> Option<usize> {
        match self {
            Self::MaxScore => best(totals, 0..totals.len(), rank),
            Self::PowerOfTwo if totals.len() > 1 => {
                let first = rng.random_range(0..totals.len());
                // Drawn from one fewer, and moved past the first: two different candidates, equally
                // likely.
                let other = rng.random_range(0..totals.len() - 1);
                let second = if other < first { other } else { other + 1 };
                best(totals, [first, second].into_iter(), rank)
            }
            Self::PowerOfTwo => best(totals, 0..totals.len(), rank),
            Self::Softmax { temperature: 0.0 } => best(totals, 0..totals.len(), rank),
            Self::WeightedRandom | Self::Softmax { .. } => {
                let (least, most) = range(totals);
                let mut shares = totals.iter().map(|total| self.share(*total, least, most));
                let mut left = rng.random::<f64>() * shares.clone().sum::<f64>();
                let found = shares.position(|share| {
                    left -= share;
                    left < 0.0
                });
                // Rounding may leave a remainder behind the last one.
                found.or(totals.len().checked_sub(1))
            }
        }
    }

    /// The probability of each candidate; their sum is 1. `rank` as in `pick`.
    pub fn probabilities(self, totals: &[f64], rank: impl Fn(usize) -> u64) -> Vec<f64> {
        match self {
            Self::MaxScore | Self::Softmax { temperature: 0.0 } => {
                let chosen = best(totals, 0..totals.len(), rank);
                (0..totals.len()).map(|index| part(Some(index) == chosen)).collect()
            }
            Self::PowerOfTwo if totals.len() < 2 => vec![1.0; totals.len()],
            Self::PowerOfTwo => {
                // The share of pairs in which it is the better one: it beats all worse ones.
                let count = totals.len() as f64;
                let pairs = count * (count - 1.0) / 2.0;
                let mut odds = vec![0.0; totals.len()];
                for (worse, index) in from_worst(totals, rank).into_iter().enumerate() {
                    if let Some(slot) = odds.get_mut(index) {
                        *slot = worse as f64 / pairs;
                    }
                }
                odds
            }
            Self::WeightedRandom | Self::Softmax { .. } => {
                let (least, most) = range(totals);
                let shares = totals.iter().map(|total| self.share(*total, least, most));
                let sum: f64 = shares.clone().sum();
                shares.map(|share| share / sum).collect()
            }
        }
    }

    /// The relative likelihood of a total among totals from `least` to `most`.
    fn share(self, total: f64, least: f64, most: f64) -> f64 {
        match self {
            Self::Softmax { temperature } if most > least => {
                let scale = (most - least) * temperature;
                // The temperature is too low for a float: the best candidate takes all.
                if scale > 0.0 { ((total - most) / scale).exp() } else { part(total >= most) }
            }
            Self::WeightedRandom if most > 0.0 => total.max(0.0),
            Self::MaxScore | Self::PowerOfTwo | Self::WeightedRandom | Self::Softmax { .. } => 1.0,
        }
    }
}

fn part(is_all: bool) -> f64 {
    f64::from(u8::from(is_all))
}

fn range(totals: &[f64]) -> (f64, f64) {
    totals.iter().fold((f64::INFINITY, f64::NEG_INFINITY), |(least, most), total| {
        (total.min(least), total.max(most))
    })
}

/// All candidates, each better than those before it, as `best` compares.
fn from_worst(totals: &[f64], rank: impl Fn(usize) -> u64) -> Vec<usize> {
    let mut order: Vec<usize> = (0..totals.len()).collect();
    order.sort_by(|&one, &other| {
        let (total, others) = (element_of(totals, one), element_of(totals, other));
        debug_assert!(!total.is_nan() && !others.is_nan(), "scores are clamped");
        // 0 and -0 are equal.
        let by_total = total.partial_cmp(&others).unwrap_or(Ordering::Equal);
        by_total.then_with(|| (rank(one), other).cmp(&(rank(other), one)))
    });
    order
}

/// The candidate of `among` with the highest total, and between equals with the highest rank.
fn best(
    totals: &[f64],
    among: impl Iterator<Item = usize>,
    rank: impl Fn(usize) -> u64,
) -> Option<usize> {
    let mut best: Option<(usize, f64)> = None;
    for index in among {
        let total = element_of(totals, index);
        let is_better = best.is_none_or(|(leader, most)| {
            total > most || (total == most && (rank(index), leader) > (rank(leader), index))
        });
        if is_better {
            best = Some((index, total));
        }
    }
    best.map(|(index, _)| index)
}
