//! The routing flags, with the names that other LLM routers use: `--routing-policy`,
//! `--routing-scorers`, `--policy-config`.

use std::path::{Path, PathBuf};

use clap::Args;
use penstock_config::{RoutingConfig, Strategy, Warning, without_position};
use penstock_scoring::{PRESETS, Picker, Preset, Profile, ScorerSpec, parse_scorers};
use serde::Deserialize;

use super::error::CliError;

const SCORERS_FLAG: &str = "--routing-scorers";

/// Routing flags.
#[derive(Debug, Default, Args)]
#[command(next_help_heading = "Routing")]
pub(super) struct RoutingArgs {
    /// A strategy (round-robin, weighted, …) or a preset of weighted (llm-d, least-loaded, …)
    #[arg(long, value_name = "NAME")]
    routing_policy: Option<String>,

    /// Scorers and weights, such as "prefix-affinity:3,queue-depth:2"; selects the strategy
    /// weighted unless a policy or strategy is given
    #[arg(long, value_name = "NAME:WEIGHT,…")]
    routing_scorers: Option<String>,

    /// A YAML file with `routing-policy` and `routing-scorers: [{name, weight}]`
    #[arg(long, value_name = "FILE")]
    policy_config: Option<PathBuf>,
}

/// The content of a policy file.
#[derive(Debug, Default, Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
struct PolicyFile {
    #[serde(alias = "routing_policy")]
    routing_policy: Option<String>,
    #[serde(alias = "routing_scorers")]
    routing_scorers: Option<Vec<ScorerLine>>,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct ScorerLine {
    name: String,
    weight: f64,
}

/// The strategy and scorers that the flags select.
#[derive(Debug, Default)]
pub(super) struct RoutingChoice {
    pub(super) strategy: Option<Strategy>,
    pub(super) scorers: Option<Vec<ScorerSpec>>,
}

impl RoutingChoice {
    /// Returns whether no flag is given.
    pub(super) fn is_empty(&self) -> bool {
        self.strategy.is_none() && self.scorers.is_none()
    }

    /// Returns `routing` with the strategy and scorers of the flags.
    pub(super) fn apply(&self, routing: RoutingConfig) -> RoutingConfig {
        let strategy = self.strategy.unwrap_or(routing.strategy);
        let strategy_reason = routing.strategy_reason.filter(|_| self.is_empty());
        let scorers = self.scorers.clone().unwrap_or(routing.scorers);
        RoutingConfig { strategy, strategy_reason, scorers, ..routing }
    }

    /// Returns a warning if the strategy does not use the scorers.
    pub(super) fn warning(&self) -> Option<Warning> {
        let routing = self.apply(RoutingConfig::default());
        routing.unused("routing").next().map(|(_key, warning)| warning)
    }
}

/// The strategy or preset that chooses backends.
#[derive(Debug, Clone)]
enum StrategyOrPreset {
    Strategy(Strategy),
    Preset(&'static Preset),
}

/// The flags, merged with the policy file.
#[derive(Debug, Default)]
struct Selection {
    /// The policy, and the flag or file that sets it.
    policy: Option<(StrategyOrPreset, String)>,
    scorers: Option<SelectedScorers>,
}

/// The scorers: those of the flag as text, or those of the file, validated.
#[derive(Debug)]
enum SelectedScorers {
    Text(String),
    List(Vec<ScorerSpec>),
}

impl RoutingArgs {
    /// Returns the settings that the flags set, by their paths.
    pub(super) fn settings(&self) -> Result<Vec<(String, String)>, CliError> {
        let Selection { policy, scorers } = self.read()?;
        let mut settings = Vec::new();
        let mut set = |path: &str, value: &str| settings.push((path.to_owned(), value.to_owned()));
        match policy {
            Some((StrategyOrPreset::Strategy(strategy), _)) => {
                set("routing.strategy", strategy.name())
            }
            Some((StrategyOrPreset::Preset(preset), _)) => {
                set("routing.strategy", Strategy::Weighted.name());
                set("routing.preset", preset.name);
            }
            None => {}
        }
        if let Some(scorers) = scorers {
            set("routing.scorers", &scorers.to_text());
        }
        Ok(settings)
    }

    /// Returns the strategy and scorers of the flags.
    pub(super) fn choice(&self) -> Result<RoutingChoice, CliError> {
        let Selection { policy, scorers } = self.read()?;
        let mut choice = match policy {
            Some((StrategyOrPreset::Strategy(strategy), _)) => {
                RoutingChoice { strategy: Some(strategy), scorers: None }
            }
            Some((StrategyOrPreset::Preset(preset), _)) => {
                RoutingChoice { strategy: Some(Strategy::Weighted), scorers: Some(preset.specs()) }
            }
            None => RoutingChoice::default(),
        };
        if let Some(scorers) = scorers {
            choice.scorers = Some(scorers.into_specs()?);
        }
        Ok(choice)
    }

    /// Returns the scorers of the flags, if any.
    pub(super) fn scorers(&self) -> Result<Option<Vec<ScorerSpec>>, CliError> {
        let Selection { policy, scorers } = self.read()?;
        match policy {
            None | Some((StrategyOrPreset::Strategy(Strategy::Weighted), _)) => {
                scorers.map(SelectedScorers::into_specs).transpose()
            }
            Some((StrategyOrPreset::Preset(preset), _)) => Ok(Some(preset.specs())),
            Some((StrategyOrPreset::Strategy(other), place)) => {
                let reason = format!("{} has no scorers; use weighted or a preset", other.name());
                Err(CliError::Scorers { place, reason })
            }
        }
    }

    fn read(&self) -> Result<Selection, CliError> {
        let selection = Selection {
            policy: named(self.routing_policy.as_deref(), "--routing-policy".to_owned())?,
            scorers: self.routing_scorers.clone().map(SelectedScorers::Text),
        };
        // Before the file is merged, which is checked by itself: the message names one place.
        refuse_both(&selection, || SCORERS_FLAG.to_owned())?;
        match &self.policy_config {
            Some(path) => Ok(selection.or(PolicyFile::read(path)?)),
            None => Ok(selection),
        }
    }
}

impl Selection {
    /// Merges the flags with the file. Flags take precedence: scorers of a flag replace the file's
    /// policy, and a policy without scorers replaces its scorers.
    fn or(self, file: Self) -> Self {
        let keeps_list = match &self.policy {
            None | Some((StrategyOrPreset::Strategy(Strategy::Weighted), _)) => {
                self.scorers.is_none()
            }
            Some((StrategyOrPreset::Strategy(_) | StrategyOrPreset::Preset(_), _)) => false,
        };
        let keeps_policy = |policy: &StrategyOrPreset| {
            self.scorers.is_none()
                || matches!(policy, StrategyOrPreset::Strategy(Strategy::Weighted))
        };
        Self {
            policy: self.policy.or(file.policy.filter(|(policy, _)| keeps_policy(policy))),
            scorers: self.scorers.or(file.scorers.filter(|_| keeps_list)),
        }
    }
}

impl SelectedScorers {
    fn to_text(&self) -> String {
        match self {
            Self::Text(text) => text.clone(),
            Self::List(list) => list.iter().map(to_item).collect::<Vec<_>>().join(","),
        }
    }

    /// Validates the scorers and returns them.
    fn into_specs(self) -> Result<Vec<ScorerSpec>, CliError> {
        let text = match self {
            Self::List(list) => return Ok(list),
            Self::Text(text) => text,
        };
        let place = || SCORERS_FLAG.to_owned();
        let refused = |reason| CliError::Scorers { place: place(), reason };
        checked(parse_scorers(&text).map_err(refused)?, place)
    }
}

fn to_item(spec: &ScorerSpec) -> String {
    format!("{}:{}", spec.name, spec.weight)
}

fn checked(
    specs: Vec<ScorerSpec>,
    place: impl FnOnce() -> String,
) -> Result<Vec<ScorerSpec>, CliError> {
    match Profile::new(&specs, Picker::default()) {
        Ok(_) => Ok(specs),
        Err(error) => Err(CliError::Scorers { place: place(), reason: error.to_string() }),
    }
}

fn refuse_both(selection: &Selection, place: impl FnOnce() -> String) -> Result<(), CliError> {
    let (Some((StrategyOrPreset::Preset(preset), _)), Some(_)) =
        (&selection.policy, &selection.scorers)
    else {
        return Ok(());
    };
    let reason = format!("the preset {} has its own; name it or scorers, not both", preset.name);
    Err(CliError::Scorers { place: place(), reason })
}

fn named(
    name: Option<&str>,
    place: String,
) -> Result<Option<(StrategyOrPreset, String)>, CliError> {
    let Some(name) = name else { return Ok(None) };
    let strategy = Strategy::from_name(name).map(StrategyOrPreset::Strategy);
    if let Some(policy) = strategy.or_else(|| Preset::find(name).map(StrategyOrPreset::Preset)) {
        return Ok(Some((policy, place)));
    }
    let strategies = Strategy::ALL.iter().map(|strategy| strategy.name());
    let presets = PRESETS.iter().map(|preset| preset.name);
    let known = strategies.chain(presets).collect::<Vec<_>>().join(", ");
    Err(CliError::UnknownPolicy { place, given: name.to_owned(), known })
}

impl PolicyFile {
    /// The content of a file, validated.
    fn read(path: &Path) -> Result<Selection, CliError> {
        let text = std::fs::read_to_string(path)
            .map_err(|source| CliError::Unreadable { path: path.to_owned(), source })?;
        let file = Self::parse(&text, path)?;
        let place = |key: &str| format!("{}: {key}", path.display());
        let list = || place("routing-scorers");
        let specs = file.routing_scorers.map(|lines| {
            let specs = lines.iter().map(|line| ScorerSpec::new(&line.name, line.weight));
            checked(specs.collect(), list)
        });
        let selection = Selection {
            policy: named(file.routing_policy.as_deref(), place("routing-policy"))?,
            scorers: specs.transpose()?.map(SelectedScorers::List),
        };
        refuse_both(&selection, list)?;
        Ok(selection)
    }

    fn parse(text: &str, path: &Path) -> Result<Self, CliError> {
        let options = serde_saphyr::options! { with_snippet: false };
        serde_saphyr::from_str_with_options(text, options).map_err(|error| {
            let path = path.display();
            let place = error.location().map_or_else(
                || path.to_string(),
                |location| format!("{path}:{}:{}", location.line(), location.column()),
            );
            CliError::PolicyFile { place, reason: without_position(&error) }
        })
    }
}

#[cfg(test)]
mod tests;
