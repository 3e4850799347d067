//! The version of the Ollama API that clients get: the lowest of the Ollama backends, because
//! clients use every feature of the version.

use std::cmp::Reverse;

use penstock_core::fleet::Topology;

/// The version if no Ollama backend has reported one: the first with all APIs that penstock serves.
pub(crate) const DEFAULT_VERSION: &str = "0.14.0";

/// The lowest version of the Ollama backends.
pub(crate) fn lowest_version(topology: &Topology) -> String {
    let ollamas = topology.backends.iter().filter(|backend| backend.is_ollama());
    let versions: Vec<_> = ollamas.filter_map(|one| one.state.pages.version()).collect();
    let lowest = versions.iter().filter_map(|text| Some((Version::parse(text)?, text)));
    let lowest = lowest.min_by(|(one, _), (other, _)| one.cmp(other));
    lowest.map_or_else(|| DEFAULT_VERSION.to_owned(), |(_, text)| text.to_string())
}

/// A semantic version; one with a suffix comes before the release (`0.12.3-rc1`).
#[derive(Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Version<'a> {
    numbers: [u64; 3],
    /// `Reverse`: a suffix orders before none.
    has_suffix: Reverse<bool>,
    /// Split into text and number, so that `rc10` follows `rc9`.
    suffix: (&'a str, u64),
}

impl<'a> Version<'a> {
    fn parse(text: &'a str) -> Option<Self> {
        let text = text.trim().trim_start_matches('v');
        let text = text.split_once('+').map_or(text, |(version, _build)| version);
        let (numbers, suffix) = text.split_once('-').unwrap_or((text, ""));
        let mut parts = numbers.split('.');
        let first = parts.next()?.parse().ok()?;
        let mut next = || parts.next().map_or(Some(0), |part| part.parse().ok());
        let numbers = [first, next()?, next()?];
        let word = suffix.trim_end_matches(|digit: char| digit.is_ascii_digit());
        let number = suffix.strip_prefix(word)?.parse().unwrap_or(0);
        let word = word.trim_end_matches('.');
        Some(Self { numbers, has_suffix: Reverse(!suffix.is_empty()), suffix: (word, number) })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn versions_are_ordered_by_number() {
        let ordered =
            ["0.9.6", "0.12.3-rc1", "0.12.3-rc9", "0.12.3-rc10", "0.12.3", "0.12.11", "v1.0"];
        for (one, other) in ordered.iter().zip(ordered.iter().skip(1)) {
            let parse = |text| Version::parse(text).unwrap();
            assert!(parse(*one) < parse(*other), "{one} < {other}");
        }
        assert_eq!(Version::parse("0.12.3+build7"), Version::parse("0.12.3"));
        for bad in ["", "x", "1.x", "1..2"] {
            assert_eq!(Version::parse(bad), None, "{bad}");
        }
    }
}
