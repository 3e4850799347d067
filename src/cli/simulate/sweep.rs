//! `--sweep KEY=VALUES`: the settings that are tried, and the resulting configurations.

use penstock_config::{Config, Strategy};
use penstock_scoring::{Profile, ScorerSpec};
use penstock_sim::experiment::Variant;

use super::arguments::SimulateArgs;
use super::error::SimulateError;
use super::setup::FleetSource;

/// The key of a scorer's weight, before its name.
const SCORERS: &str = "routing.scorers.";
/// The maximum number of points of a grid.
const MAX_POINTS: usize = 10_000;

/// A setting and the values to try.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Sweep {
    pub(super) key: String,
    pub(super) values: Vec<String>,
}

impl Sweep {
    pub(super) fn parse(given: &str) -> Result<Self, SimulateError> {
        let wrong = || SimulateError::Flag {
            flag: "--sweep",
            reason: format!(
                "'{given}': write KEY=FROM..TO/STEP or KEY=A,B,C, as in routing.scorers.queue-depth=0..4/1"
            ),
        };
        let (key, values) = given.split_once('=').ok_or_else(wrong)?;
        let values = match values.split_once("..") {
            None => values.split(',').map(|value| value.trim().to_owned()).collect(),
            Some((from, rest)) => {
                let (to, step) = rest.split_once('/').unwrap_or((rest, "1"));
                let number =
                    |text: &str| text.trim().parse::<f64>().ok().filter(|one| one.is_finite());
                let [Some(from), Some(to), Some(step)] = [from, to, step].map(number) else {
                    return Err(wrong());
                };
                range(from, to, step).ok_or_else(wrong)?
            }
        };
        if key.is_empty() || values.iter().any(String::is_empty) {
            return Err(wrong());
        }
        Ok(Self { key: key.to_owned(), values })
    }

    /// Returns the last part of the key, for tables.
    pub(super) fn short(&self) -> &str {
        self.key.rsplit('.').next().unwrap_or(&self.key)
    }
}

/// Returns the numbers between two bounds; `None` if there are none or too many.
fn range(from: f64, to: f64, step: f64) -> Option<Vec<String>> {
    if step <= 0.0 || to < from {
        return None;
    }
    let mut values = Vec::new();
    let mut at = from;
    // A rounding error must not exclude the last one.
    while at <= to + step * 1e-9 {
        // Rounded: 0.1 added three times is not 0.3, and would be printed so.
        values.push(format!("{}", (at * 1e9).round() / 1e9));
        at += step;
        if values.len() > MAX_POINTS {
            return None;
        }
    }
    Some(values)
}

/// One combination of values of all swept settings.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct SweepPoint {
    pub(super) settings: Vec<(String, String)>,
}

/// Returns every combination; the last setting changes first.
pub(super) fn grid(sweeps: &[Sweep]) -> Result<Vec<SweepPoint>, SimulateError> {
    let mut points = vec![SweepPoint { settings: Vec::new() }];
    for sweep in sweeps {
        let longer = points.iter().flat_map(|point| {
            sweep.values.iter().map(|value| {
                let mut settings = point.settings.clone();
                settings.push((sweep.key.clone(), value.clone()));
                SweepPoint { settings }
            })
        });
        points = longer.collect();
        if points.len() > MAX_POINTS {
            let reason = format!("more than {MAX_POINTS} points; use larger steps");
            return Err(SimulateError::Flag { flag: "--sweep", reason });
        }
    }
    Ok(points)
}

impl SweepPoint {
    /// Returns the name of the point in tables.
    pub(super) fn name(&self) -> String {
        let part = |(key, value): &(String, String)| {
            format!("{}={value}", key.rsplit('.').next().unwrap_or(key))
        };
        self.settings.iter().map(part).collect::<Vec<_>>().join(" ")
    }

    /// Returns the configuration with these settings; `None` if no scorer remains.
    pub(super) fn variant(
        &self,
        source: &FleetSource,
        args: &SimulateArgs,
    ) -> Result<Option<Variant>, SimulateError> {
        let (weights, settings): (Vec<_>, Vec<_>) =
            self.settings.iter().cloned().partition(|(key, _)| key.starts_with(SCORERS));
        let mut config = source.load(args, &settings, &mut Vec::new())?;
        for (key, value) in &weights {
            set_weight(&mut config, key, value)?;
        }
        if !weights.is_empty() {
            if config.routing.scorers.is_empty() {
                return Ok(None);
            }
            Profile::new(&config.routing.scorers, config.routing.picker).map_err(|error| {
                SimulateError::Flag { flag: "--sweep", reason: error.to_string() }
            })?;
        }
        Ok(Some(Variant::new(self.name(), config)))
    }

    /// Returns the settings as a part of a configuration file.
    pub(super) fn patch(&self, config: &Config) -> String {
        let mut text = "routing:\n".to_owned();
        let routing = &config.routing;
        if self.settings.iter().any(|(key, _)| key.starts_with(SCORERS)) {
            text.push_str("  strategy: weighted\n  scorers:\n");
            for spec in &routing.scorers {
                text.push_str(&format!(
                    "    - {{ name: {}, weight: {} }}\n",
                    spec.name, spec.weight
                ));
            }
        }
        let mut others = String::new();
        for (key, value) in self.settings.iter().filter(|(key, _)| !key.starts_with(SCORERS)) {
            match key.strip_prefix("routing.") {
                // Below the section above: a second one of its name would be an error.
                Some(key) if !key.contains('.') => text.push_str(&format!("  {key}: {value}\n")),
                Some(_) | None => {
                    let depth = key.matches('.').count();
                    for (level, part) in key.split('.').enumerate() {
                        let end = if level == depth { format!(" {value}") } else { String::new() };
                        others.push_str(&format!("{}{part}:{end}\n", "  ".repeat(level)));
                    }
                }
            }
        }
        if text == "routing:\n" {
            text.clear();
        }
        text + &others
    }
}

/// Sets the weight of a scorer; 0 removes it.
fn set_weight(config: &mut Config, key: &str, value: &str) -> Result<(), SimulateError> {
    let name = key.strip_prefix(SCORERS).unwrap_or(key);
    let weight: f64 = value.parse().map_err(|_wrong| SimulateError::Flag {
        flag: "--sweep",
        reason: format!("'{value}' is no weight of '{name}'"),
    })?;
    let mut specs = config.routing.scorer_specs();
    match specs.iter_mut().find(|spec| spec.is(name)) {
        Some(spec) => spec.weight = weight,
        None => specs.push(ScorerSpec::new(name, weight)),
    }
    // A weight of zero is an error in a configuration, and means "without it" in a sweep.
    specs.retain(|spec| spec.weight != 0.0);
    config.routing.strategy = Strategy::Weighted;
    // The scorers have been taken from it above.
    config.routing.preset = None;
    config.routing.scorers = specs;
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sweeps_are_ranges_and_lists() {
        let values = |given: &str| Sweep::parse(given).unwrap().values;
        assert_eq!(values("a.b=0..5/1"), ["0", "1", "2", "3", "4", "5"]);
        assert_eq!(values("a.b=0.1..0.3/0.1"), ["0.1", "0.2", "0.3"]);
        assert_eq!(values("routing.strategy=smart, weighted"), ["smart", "weighted"]);
        for wrong in ["a", "a=", "a=5..1", "a=0..1/0", "a=x..2", "a=0..1/0.0000001", "=1"] {
            assert!(Sweep::parse(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn grids_have_every_choice() {
        let sweeps = ["x.a=1,2", "x.b=3,4,5"].map(|given| Sweep::parse(given).unwrap());
        let points = grid(&sweeps).unwrap();
        let names: Vec<String> = points.iter().map(SweepPoint::name).collect();
        assert_eq!(names, ["a=1 b=3", "a=1 b=4", "a=1 b=5", "a=2 b=3", "a=2 b=4", "a=2 b=5"]);
        let large = ["x.a=1..200", "x.b=1..200"].map(|given| Sweep::parse(given).unwrap());
        assert!(grid(&large).is_err());
    }

    #[test]
    fn patches_are_parts_of_a_file() {
        let point = SweepPoint {
            settings: vec![
                ("routing.strategy".to_owned(), "smart".to_owned()),
                ("health.breaker.window".to_owned(), "10s".to_owned()),
            ],
        };
        let patch = point.patch(&Config::default());
        assert_eq!(patch, "routing:\n  strategy: smart\nhealth:\n  breaker:\n    window: 10s\n");
    }
}
