//! The flags that say how backends are chosen, in the words of the routers this kind of routing
//! comes from.

use std::path::{Path, PathBuf};

use clap::Args;
use serde::Deserialize;

use super::error::CliError;
use crate::config::{Oddity, RoutingConfig, Strategy};
use crate::scoring::{PRESETS, Picker, Preset, Profile, ScorerSpec, parse_scorers};

/// The flags of every command that decides.
#[derive(Debug, Default, Args)]
#[command(next_help_heading = "Routing")]
pub(super) struct RoutingArgs {
    /// A strategy (round-robin, weighted, …) or a preset of weighted (llm-d, least-loaded, …)
    #[arg(long, value_name = "NAME")]
    routing_policy: Option<String>,

    /// What counts how much in weighted, as in "prefix-affinity:3,queue-depth:2"; asks for weighted
    /// where no policy or strategy is given with it
    #[arg(long, value_name = "NAME:WEIGHT,…")]
    routing_scorers: Option<String>,

    /// A YAML file with routing-policy and routing-scorers: [{name, weight}]
    #[arg(long, value_name = "FILE")]
    policy_config: Option<PathBuf>,

    #[arg(long, value_name = "NUMBER", hide = true)]
    routing_cache_weight: Option<String>,

    #[arg(long, value_name = "NUMBER", hide = true)]
    routing_load_weight: Option<String>,
}

/// What such a file holds.
#[derive(Debug, Default, Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
struct PolicyFile {
    #[serde(alias = "routing_policy")]
    routing_policy: Option<String>,
    #[serde(alias = "routing_scorers")]
    routing_scorers: Option<Vec<ScorerLine>>,
    #[serde(alias = "cache_weight", alias = "routing-cache-weight")]
    cache_weight: Option<f64>,
    #[serde(alias = "load_weight", alias = "routing-load-weight")]
    load_weight: Option<f64>,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct ScorerLine {
    name: String,
    weight: f64,
}

/// How backends are to be chosen, as far as it is said.
#[derive(Debug, Default)]
pub(super) struct RoutingChoice {
    pub(super) strategy: Option<Strategy>,
    pub(super) scorers: Option<Vec<ScorerSpec>>,
}

impl RoutingChoice {
    /// Whether nothing is said.
    pub(super) fn is_empty(&self) -> bool {
        self.strategy.is_none() && self.scorers.is_none()
    }

    /// The routing with what is said in the place of what it says.
    pub(super) fn apply(&self, routing: RoutingConfig) -> RoutingConfig {
        let strategy = self.strategy.unwrap_or(routing.strategy);
        let scorers = self.scorers.clone().unwrap_or(routing.scorers);
        RoutingConfig { strategy, scorers, ..routing }
    }

    /// What is odd about it: scorers beside a strategy that has none.
    pub(super) fn oddity(&self) -> Option<Oddity> {
        let routing = self.apply(RoutingConfig::default());
        routing.unused("routing").next().map(|(_key, oddity)| oddity)
    }
}

/// How backends are chosen.
#[derive(Debug, Clone)]
enum Policy {
    Strategy(Strategy),
    Preset(&'static Preset),
}

impl RoutingArgs {
    /// The settings the flags stand for, by their paths.
    pub(super) fn settings(&self) -> Result<Vec<(String, String)>, CliError> {
        let (policy, scorers) = self.read()?;
        let mut settings = Vec::new();
        let mut set = |path: &str, value: &str| settings.push((path.to_owned(), value.to_owned()));
        match policy {
            Some(Policy::Strategy(strategy)) => set("routing.strategy", strategy.name()),
            Some(Policy::Preset(preset)) => {
                set("routing.strategy", Strategy::Weighted.name());
                set("routing.preset", preset.name);
            }
            None => {}
        }
        if let Some(scorers) = scorers {
            set("routing.scorers", &scorers);
        }
        Ok(settings)
    }

    /// What the flags say of how backends are chosen.
    pub(super) fn choice(&self) -> Result<RoutingChoice, CliError> {
        let (policy, scorers) = self.read()?;
        let mut choice = match policy {
            Some(Policy::Strategy(strategy)) => {
                RoutingChoice { strategy: Some(strategy), scorers: None }
            }
            Some(Policy::Preset(preset)) => {
                RoutingChoice { strategy: Some(Strategy::Weighted), scorers: Some(preset.specs()) }
            }
            None => RoutingChoice::default(),
        };
        if let Some(text) = scorers {
            let specs = parse_scorers(&text).map_err(CliError::Scorers)?;
            let checked = Profile::new(&specs, Picker::default());
            checked.map_err(|error| CliError::Scorers(error.to_string()))?;
            choice.scorers = Some(specs);
        }
        Ok(choice)
    }

    /// The scorers the flags ask for, if they ask for any.
    pub(super) fn scorers(&self) -> Result<Option<Vec<ScorerSpec>>, CliError> {
        let (policy, scorers) = self.read()?;
        if let Some(text) = scorers {
            return parse_scorers(&text).map(Some).map_err(CliError::Scorers);
        }
        match policy {
            None | Some(Policy::Strategy(Strategy::Weighted)) => Ok(None),
            Some(Policy::Preset(preset)) => Ok(Some(preset.specs())),
            Some(Policy::Strategy(other)) => {
                let name = other.name();
                Err(CliError::Scorers(format!("{name} has no scorers; use weighted or a preset")))
            }
        }
    }

    fn read(&self) -> Result<(Option<Policy>, Option<String>), CliError> {
        for (flag, given, instead) in [
            ("--routing-cache-weight", &self.routing_cache_weight, "prefix-affinity"),
            ("--routing-load-weight", &self.routing_load_weight, "queue-depth"),
        ] {
            if given.is_some() {
                return Err(CliError::ReplacedFlag { flag, instead });
            }
        }
        let file = match &self.policy_config {
            Some(path) => PolicyFile::read(path)?,
            None => PolicyFile::default(),
        };
        // Flags beat the file.
        let policy = self.routing_policy.as_deref().or(file.routing_policy.as_deref());
        let place = match (&self.policy_config, &self.routing_policy) {
            (Some(path), None) => format!("{}: routing-policy", path.display()),
            (Some(_) | None, _) => "--routing-policy".to_owned(),
        };
        let listed = file.routing_scorers.map(|list| {
            let one = |line: &ScorerLine| format!("{}:{}", line.name, line.weight);
            list.iter().map(one).collect::<Vec<_>>().join(",")
        });
        let policy = policy.map(|name| Policy::from_name(name, place)).transpose()?;
        let scorers = self.routing_scorers.clone().or(listed);
        if let (Some(Policy::Preset(preset)), Some(_)) = (&policy, &scorers) {
            let name = preset.name;
            let reason = format!("the preset {name} has its own; name it or scorers, not both");
            return Err(CliError::Scorers(reason));
        }
        Ok((policy, scorers))
    }
}

impl PolicyFile {
    fn read(path: &Path) -> Result<Self, CliError> {
        let unreadable = |source| CliError::Unreadable { path: path.to_owned(), source };
        let text = std::fs::read_to_string(path).map_err(unreadable)?;
        let wrong = |reason: String| CliError::PolicyFile { path: path.to_owned(), reason };
        let file: Self = serde_saphyr::from_str(&text).map_err(|error| wrong(error.to_string()))?;
        for (key, given, instead) in [
            ("cache_weight", file.cache_weight, "prefix-affinity"),
            ("load_weight", file.load_weight, "queue-depth"),
        ] {
            if given.is_some() {
                return Err(wrong(format!(
                    "'{key}' is no longer a setting: list {instead} under routing-scorers"
                )));
            }
        }
        Ok(file)
    }
}

impl Policy {
    /// The one of this name; `place` says where it was named.
    fn from_name(name: &str, place: String) -> Result<Self, CliError> {
        let strategy = Strategy::from_name(name).map(Self::Strategy);
        strategy.or_else(|| Preset::find(name).map(Self::Preset)).ok_or_else(|| {
            let strategies = Strategy::ALL.iter().map(|strategy| strategy.name());
            let presets = PRESETS.iter().map(|preset| preset.name);
            let known: Vec<_> = strategies.chain(presets).collect();
            CliError::UnknownPolicy { place, given: name.to_owned(), known: known.join(", ") }
        })
    }
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;

    #[derive(Debug, Parser)]
    struct Line {
        #[command(flatten)]
        routing: RoutingArgs,
    }

    fn settings(flags: &[&str]) -> Result<Vec<(String, String)>, String> {
        let line = Line::try_parse_from([&["x"], flags].concat()).unwrap();
        line.routing.settings().map_err(|error| error.to_string())
    }

    fn pairs(pairs: &[(&str, &str)]) -> Vec<(String, String)> {
        pairs.iter().map(|(path, value)| ((*path).to_owned(), (*value).to_owned())).collect()
    }

    #[test]
    fn policies_are_strategies_or_presets() {
        assert_eq!(settings(&[]).unwrap(), []);
        assert_eq!(
            settings(&["--routing-policy", "round-robin"]).unwrap(),
            pairs(&[("routing.strategy", "round_robin")])
        );
        assert_eq!(
            settings(&["--routing-policy", "least_loaded"]).unwrap(),
            pairs(&[("routing.strategy", "weighted"), ("routing.preset", "least-loaded")])
        );
        let flags = [
            "--routing-policy",
            "weighted",
            "--routing-scorers",
            "prefix-affinity:3,queue-depth:2",
        ];
        assert_eq!(
            settings(&flags).unwrap(),
            pairs(&[
                ("routing.strategy", "weighted"),
                ("routing.scorers", "prefix-affinity:3,queue-depth:2")
            ])
        );
        let error = settings(&["--routing-policy", "best"]).unwrap_err();
        assert!(error.starts_with("--routing-policy: unknown 'best'"), "{error}");
        assert!(error.contains("llm-d"), "{error}");
        let both = ["--routing-policy", "lmetric", "--routing-scorers", "queue-depth:1"];
        let error = settings(&both).unwrap_err();
        assert!(error.contains("the preset lmetric has its own"), "{error}");
    }

    #[test]
    fn the_old_weights_name_what_replaces_them() {
        for (flag, instead) in [
            ("--routing-cache-weight", "prefix-affinity"),
            ("--routing-load-weight", "queue-depth"),
        ] {
            let error = settings(&[flag, "0.5"]).unwrap_err();
            assert!(error.contains("--routing-scorers") && error.contains(instead), "{error}");
        }
    }

    #[test]
    fn a_policy_file_is_read_and_flags_beat_it() {
        let folder = std::env::temp_dir().join(format!("penstock-policy-{}", std::process::id()));
        std::fs::create_dir_all(&folder).unwrap();
        let path = folder.join("policy.yaml");
        let with = |text: &str, flags: &[&str]| {
            std::fs::write(&path, text).unwrap();
            settings(&[&["--policy-config", path.to_str().unwrap()], flags].concat())
        };
        let text =
            "routing-policy: weighted\nrouting-scorers:\n  - name: queue-depth\n    weight: 2\n";
        let expected = [("routing.strategy", "weighted"), ("routing.scorers", "queue-depth:2")];
        assert_eq!(with(text, &[]).unwrap(), pairs(&expected));
        let expected = [("routing.strategy", "weighted"), ("routing.scorers", "load-balance:1")];
        assert_eq!(with(text, &["--routing-scorers", "load-balance:1"]).unwrap(), pairs(&expected));
        for (text, expected) in [
            ("cache_weight: 0.5", "list prefix-affinity under routing-scorers"),
            ("load_weight: 0.5", "list queue-depth under routing-scorers"),
            ("routing-polcy: weighted", "routing-polcy"),
            ("routing-scorers: [{name: x, wait: 1}]", "wait"),
            ("routing-policy: best", "policy.yaml: routing-policy: unknown 'best'"),
        ] {
            let error = with(text, &[]).unwrap_err();
            assert!(error.contains(expected) && error.contains("policy.yaml"), "{error}");
        }
        std::fs::remove_dir_all(&folder).unwrap();
    }
}
