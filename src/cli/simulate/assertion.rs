//! `--assert 'ttft_p99 < 1.1 * baseline'`: for continuous integration.

use super::Arm;
use super::error::SimulateError;
use crate::sim::statistics::mean;

/// An assertion about a figure of the first configuration.
#[derive(Debug, Clone, PartialEq)]
struct Assertion {
    figure: String,
    is_less: bool,
    bound: Bound,
}

#[derive(Debug, Clone, Copy, PartialEq)]
enum Bound {
    Value(f64),
    /// So many times the figure of the second configuration.
    Baseline(f64),
}

/// Parses an assertion; `None` for what is none.
fn parse(text: &str) -> Option<Assertion> {
    let (sign, is_less) = if text.contains('<') { ('<', true) } else { ('>', false) };
    let (figure, bound) = text.split_once(sign)?;
    let bound = bound.trim_start_matches('=').trim();
    let bound = match bound.split_once('*') {
        Some((factor, "baseline" | " baseline")) => Bound::Baseline(factor.trim().parse().ok()?),
        Some(_) => return None,
        None if bound == "baseline" => Bound::Baseline(1.0),
        None => Bound::Value(number(bound)?),
    };
    Some(Assertion { figure: figure.trim().to_owned(), is_less, bound })
}

/// A number, or a time in seconds.
fn number(text: &str) -> Option<f64> {
    let time = || crate::units::parse_duration(text).ok().map(|time| time.as_secs_f64());
    text.parse().ok().or_else(time)
}

/// Checks every assertion.
///
/// # Errors
/// For one that cannot be read, and for those that do not hold.
pub(super) fn check_all(assertions: &[String], arms: &[Arm<'_>]) -> Result<(), SimulateError> {
    let mut failed = Vec::new();
    for text in assertions {
        let wrong = |reason: &str| SimulateError::Flag {
            flag: "--assert",
            reason: format!("'{text}': {reason}"),
        };
        let assertion = parse(text).ok_or_else(|| {
            wrong("write 'FIGURE < VALUE' or 'FIGURE < FACTOR * baseline', as in 'ttft_p99 < 2s'")
        })?;
        let of = |arm: &Arm<'_>| -> Option<f64> {
            let values = arm.summaries.iter().map(|one| one.figure(&assertion.figure));
            values.collect::<Option<Vec<f64>>>().map(|values| mean(&values))
        };
        let first = arms.first().and_then(of).ok_or_else(|| wrong("there is no such figure"))?;
        let bound = match assertion.bound {
            Bound::Value(value) => value,
            Bound::Baseline(factor) => {
                let baseline = arms.get(1).and_then(of);
                factor * baseline.ok_or_else(|| wrong("the baseline is a second --config"))?
            }
        };
        let holds = if assertion.is_less { first < bound } else { first > bound };
        if !holds {
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
        assert_eq!(parsed.bound, Bound::Baseline(1.1));
        assert_eq!(parse("goodput>0.95").unwrap().bound, Bound::Value(0.95));
        assert_eq!(parse("e2e_mean <= 250ms").unwrap().bound, Bound::Value(0.25));
        assert_eq!(parse("e2e_mean < baseline").unwrap().bound, Bound::Baseline(1.0));
        assert_eq!(parse("ttft_p99 < 2 * x"), None);
        assert_eq!(parse("ttft_p99"), None);
    }
}
