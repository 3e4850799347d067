//! Faults of engines: `at 600s backend gpu-a down 60s`.

use std::str::FromStr;
use std::time::Duration;

use penstock_api::units::{parse_duration, to_micros};
use penstock_config::Config;

use super::WorldError;

/// A fault of one backend.
#[derive(Debug, Clone, PartialEq)]
pub struct PlannedFault {
    /// The start of the fault, relative to the start of the run.
    pub at: Duration,
    pub backend: String,
    pub kind: FaultKind,
    /// The duration of the fault.
    pub lasts: Duration,
}

#[derive(Debug, Clone, Copy, PartialEq)]
pub enum FaultKind {
    /// No connection; its cache and all requests in flight are lost.
    Down,
    /// Every step takes this factor as long.
    Slow(f64),
    /// New requests are refused with 429.
    Refuse,
    /// Its metrics cannot be scraped.
    ScrapeLost,
}

/// The default duration of a restart.
const RESTART: Duration = Duration::from_secs(30);

/// The reason why a fault cannot be read.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "'{given}' is no fault: write 'at TIME backend NAME' and one of 'down TIME', 'restart [TIME]', 'slow xFACTOR TIME', \
     '429 TIME', 'scrape-lost TIME', as in 'at 600s backend gpu-a down 60s'"
)]
pub struct FaultError {
    given: String,
}

impl FromStr for PlannedFault {
    type Err = FaultError;

    fn from_str(given: &str) -> Result<Self, FaultError> {
        parse(given).ok_or_else(|| FaultError { given: given.to_owned() })
    }
}

fn parse(given: &str) -> Option<PlannedFault> {
    let words: Vec<&str> = given.split_whitespace().collect();
    let ["at", at, "backend", backend, rest @ ..] = words.as_slice() else {
        return None;
    };
    let time = |word: &str| parse_duration(word).ok();
    let (kind, lasts) = match rest {
        ["down", lasts] => (FaultKind::Down, time(lasts)?),
        ["restart"] => (FaultKind::Down, RESTART),
        ["restart", lasts] => (FaultKind::Down, time(lasts)?),
        ["429", lasts] => (FaultKind::Refuse, time(lasts)?),
        ["scrape-lost", lasts] => (FaultKind::ScrapeLost, time(lasts)?),
        ["slow", factor, lasts] => {
            let factor: f64 = factor.strip_prefix('x')?.parse().ok()?;
            let is_possible = factor.is_finite() && factor > 0.0;
            (FaultKind::Slow(Some(factor).filter(|_| is_possible)?), time(lasts)?)
        }
        _ => return None,
    };
    Some(PlannedFault { at: time(at)?, backend: (*backend).to_owned(), kind, lasts })
}

impl PlannedFault {
    /// Returns the index of the backend in the configuration.
    pub(super) fn index(&self, config: &Config) -> Option<usize> {
        config.backends.iter().position(|backend| backend.name == self.backend)
    }

    /// Checks that the fault names a backend.
    ///
    /// # Errors
    /// [`WorldError::UnknownBackend`] if the backend does not exist.
    pub fn check(&self, config: &Config) -> Result<(), WorldError> {
        let known = self.index(config).map(|_| ());
        known.ok_or_else(|| WorldError::UnknownBackend {
            name: self.backend.clone(),
            known: config
                .backends
                .iter()
                .map(|backend| backend.name.as_str())
                .collect::<Vec<_>>()
                .join(", "),
        })
    }

    pub(super) fn micros(&self) -> u64 {
        to_micros(self.lasts)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn faults_are_written_as_sentences() {
        let fault = |text: &str| text.parse::<PlannedFault>().unwrap();
        let down = fault("at 600s backend gpu-a down 60s");
        assert_eq!((down.at, down.lasts), (Duration::from_secs(600), Duration::from_secs(60)));
        assert_eq!((down.kind, down.backend.as_str()), (FaultKind::Down, "gpu-a"));
        assert_eq!(fault("at 1s backend a slow x2 1m").kind, FaultKind::Slow(2.0));
        assert_eq!(fault("at 1s backend a 429 5s").kind, FaultKind::Refuse);
        assert_eq!(fault("at 1s backend a restart").lasts, RESTART);
        for wrong in [
            "",
            "at 1s",
            "at 1 backend a down 5s",
            "at 1s backend a slow x0 5s",
            "at 1s backend a slow 2 5s",
        ] {
            let error = wrong.parse::<PlannedFault>().unwrap_err().to_string();
            assert!(error.contains("as in 'at 600s backend gpu-a down 60s'"), "{error}");
        }
    }
}
