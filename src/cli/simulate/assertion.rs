//! `--assert 'ttft_p99 < 1.1 * baseline'`: assertions for continuous integration.

use penstock_sim::statistics::mean;
use penstock_sim::summary::FIGURES;

use super::Arm;
use super::error::SimulateError;

/// An assertion about a figure of the first configuration.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Assertion {
    text: String,
    figure: String,
    is_less: bool,
    /// True for `<=` and `>=`.
    may_equal: bool,
    bound: Threshold,
}

#[derive(Debug, Clone, Copy, PartialEq)]
enum Threshold {
    Value(f64),
    /// A factor of the figure of the second configuration.
    Baseline(f64),
}

/// Parses an assertion; `None` if it is invalid.
fn parse(text: &str) -> Option<Assertion> {
    let (sign, is_less) = if text.contains('<') { ('<', true) } else { ('>', false) };
    let (figure, bound) = text.split_once(sign)?;
    let (bound, may_equal) = match bound.strip_prefix('=') {
        Some(bound) => (bound.trim(), true),
        None => (bound.trim(), false),
    };
    let bound = match bound.split_once('*') {
        Some((factor, "baseline" | " baseline")) => Threshold::Baseline(finite(factor.trim())?),
        Some(_) => return None,
        None if bound == "baseline" => Threshold::Baseline(1.0),
        None if is_share(figure.trim()) => Threshold::Value(share(bound)?),
        None => Threshold::Value(number(bound)?),
    };
    let text = text.to_owned();
    Some(Assertion { figure: figure.trim().to_owned(), is_less, may_equal, bound, text })
}

impl Assertion {
    fn holds(&self, value: f64, bound: f64) -> bool {
        // Counts and shares are often equal to a bound: most runs shed nothing.
        match (self.is_less, self.may_equal) {
            (true, false) => value < bound,
            (true, true) => value <= bound,
            (false, false) => value > bound,
            (false, true) => value >= bound,
        }
    }
}

/// Returns whether a figure is a share of at most 1.
fn is_share(figure: &str) -> bool {
    matches!(figure, "goodput" | "hit_rate" | "utilization" | "kv_use")
}

/// Parses a share, also in percent, as the table shows it.
fn share(text: &str) -> Option<f64> {
    match text.strip_suffix('%') {
        Some(percent) => Some(finite(percent.trim())? / 100.0),
        None => finite(text),
    }
}

/// Parses a number, or a time in seconds.
fn number(text: &str) -> Option<f64> {
    let time = || penstock_api::units::parse_duration(text).ok().map(|time| time.as_secs_f64());
    finite(text).or_else(time)
}

/// Parses a finite number: no figure is below `nan`, and every one is below `inf`.
fn finite(text: &str) -> Option<f64> {
    text.parse().ok().filter(|number: &f64| number.is_finite())
}

/// Reads every assertion, before simulations that take minutes.
///
/// # Errors
/// If an assertion cannot be read, names no known figure, or has a baseline although only one
/// configuration runs.
pub(super) fn read_all(
    assertions: &[String],
    configurations: usize,
) -> Result<Vec<Assertion>, SimulateError> {
    let read = |text: &String| {
        let wrong = |reason: String| SimulateError::Flag {
            flag: "--assert",
            reason: format!("'{text}': {reason}"),
        };
        let usage = "write 'FIGURE < VALUE' or 'FIGURE < FACTOR * baseline', as in 'ttft_p99 < 2s'";
        let assertion = parse(text).ok_or_else(|| wrong(usage.to_owned()))?;
        if FIGURES.iter().all(|(name, _)| *name != assertion.figure) {
            let known: Vec<&str> = FIGURES.iter().map(|(name, _)| *name).collect();
            return Err(wrong(format!("there is no such figure (known: {})", known.join(", "))));
        }
        let is_beyond_one = matches!(assertion.bound, Threshold::Value(bound) if bound > 1.0);
        if is_share(&assertion.figure) && is_beyond_one {
            return Err(wrong("it is a share of at most 1: write 0.99 or 99%".to_owned()));
        }
        if configurations < 2 && matches!(assertion.bound, Threshold::Baseline(_)) {
            return Err(wrong("the baseline is a second --config".to_owned()));
        }
        Ok(assertion)
    };
    assertions.iter().map(read).collect()
}

/// Checks every assertion.
///
/// # Errors
/// If any assertion fails.
pub(super) fn check_all(assertions: &[Assertion], arms: &[Arm<'_>]) -> Result<(), SimulateError> {
    let mut failed = Vec::new();
    for assertion in assertions {
        let Assertion { text, .. } = assertion;
        let of = |arm: Option<&Arm<'_>>| {
            let summaries = arm.map_or(&[][..], |arm| &arm.summaries);
            let values = summaries.iter().filter_map(|one| one.figure(&assertion.figure));
            // Over all seeds: one run may be lucky.
            mean(&values.collect::<Vec<f64>>())
        };
        let first = of(arms.first());
        let bound = match assertion.bound {
            Threshold::Value(value) => value,
            Threshold::Baseline(factor) => factor * of(arms.get(1)),
        };
        if !assertion.holds(first, bound) {
            failed.push(format!(
                "'{text}' ({} is {first:.4}, the bound {bound:.4})",
                assertion.figure
            ));
        }
    }
    match failed.is_empty() {
        true => Ok(()),
        false => Err(SimulateError::Assertions(format!(
            "{} of {}: {}",
            failed.len(),
            assertions.len(),
            failed.join(", ")
        ))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn assertions_are_figures_and_bounds() {
        let parsed = parse("ttft_p99 < 1.1 * baseline").unwrap();
        assert_eq!((parsed.figure.as_str(), parsed.is_less), ("ttft_p99", true));
        assert_eq!(parsed.bound, Threshold::Baseline(1.1));
        assert_eq!(parse("goodput>0.95").unwrap().bound, Threshold::Value(0.95));
        assert_eq!(parse("goodput > 95%").unwrap().bound, Threshold::Value(0.95));
        let read = |text: &str| read_all(&[text.to_owned()], 1);
        assert_eq!(parse("ttft_p99 < 110%"), None, "110 % of what?");
        assert!(read("goodput > 99").is_err() && read("goodput >= 1").is_ok());
        assert_eq!(parse("e2e_mean <= 250ms").unwrap().bound, Threshold::Value(0.25));
        assert_eq!(parse("e2e_mean < baseline").unwrap().bound, Threshold::Baseline(1.0));
        assert_eq!(parse("shed <== 0"), None);
        assert_eq!(parse("ttft_p99 < 2 * x"), None);
        assert_eq!(parse("ttft_p99"), None);
        for endless in ["nan", "NaN", "inf", "-inf", "infinity", "1e999", "nan * baseline"] {
            assert_eq!(parse(&format!("ttft_p99 < {endless}")), None, "{endless}");
            assert_eq!(parse(&format!("ttft_p99 >= {endless}")), None, "{endless}");
        }
    }

    #[test]
    fn bound_itself_is_within_it_only_with_an_equals_sign() {
        let holds = |text, value| parse(text).unwrap().holds(value, 0.0);
        assert!(holds("shed <= 0", 0.0) && !holds("shed <= 0", 1.0));
        assert!(holds("hit_rate >= 0", 0.0) && holds("hit_rate >= 0", 1.0));
        assert!(!holds("shed < 0", 0.0) && !holds("hit_rate > 0", 0.0));
    }
}
