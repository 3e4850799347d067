//! The source of a command's configuration, and the flags that override it.

use std::path::{Path, PathBuf};

use clap::parser::ValueSource;
use clap::{ArgMatches, Args, Command, FromArgMatches};
use penstock_config::{Config, ConfigError, ConfigSource, Environment, Strategy};

use super::error::CliError;
use super::output::Output;
use super::routing::{RoutingArgs, RoutingChoice};

const DEFAULT_FILE: &str = "/etc/penstock/penstock.yaml";

/// The flags of every command that has a configuration.
#[derive(Debug, Default, Args)]
pub(super) struct ConfigArgs {
    #[command(flatten)]
    file: FileArg,

    #[command(flatten)]
    overrides: Overrides,

    #[command(flatten)]
    routing: RoutingArgs,
}

#[derive(Debug, Default, Args)]
struct FileFlag {
    /// The configuration [default: /etc/penstock/penstock.yaml]
    #[arg(long, short, value_name = "FILE", env = "PENSTOCK_CONFIG", hide_env_values = true)]
    config: Option<PathBuf>,
}

/// The configuration file, if the command line names it.
#[derive(Debug, Default)]
struct FileArg {
    path: Option<PathBuf>,
    is_explicit: bool,
}

impl FromArgMatches for FileArg {
    fn from_arg_matches(matches: &ArgMatches) -> Result<Self, clap::Error> {
        let is_explicit = matches.value_source("config") == Some(ValueSource::CommandLine);
        Ok(Self { path: FileFlag::from_arg_matches(matches)?.config, is_explicit })
    }

    fn update_from_arg_matches(&mut self, matches: &ArgMatches) -> Result<(), clap::Error> {
        *self = Self::from_arg_matches(matches)?;
        Ok(())
    }
}

impl Args for FileArg {
    fn augment_args(command: Command) -> Command {
        FileFlag::augment_args(command)
    }

    fn augment_args_for_update(command: Command) -> Command {
        FileFlag::augment_args_for_update(command)
    }
}

#[derive(Debug, Default, Args)]
#[command(next_help_heading = "Settings (override the file and the environment)")]
struct Overrides {
    /// server.listen: addresses of the data port, separated by commas
    #[arg(long, value_name = "ADDRESSES")]
    listen: Option<String>,

    /// admin.listen: the address of the admin port, or off
    #[arg(long, value_name = "ADDRESS")]
    admin_listen: Option<String>,

    /// routing.strategy: auto (default), smart, round_robin, priority_only, random, deployment,
    /// weighted or slo
    #[arg(long, value_name = "NAME")]
    strategy: Option<String>,

    /// routing.max_retries: maximum retries of a request on other backends
    #[arg(long, value_name = "NUMBER")]
    max_retries: Option<String>,

    /// log.level: trace, debug, info, warn or error
    #[arg(long, value_name = "LEVEL")]
    log_level: Option<String>,
}

impl ConfigArgs {
    pub(super) fn load(&self) -> Result<Config, CliError> {
        Ok(self.source()?.load()?)
    }

    /// Returns the source of the configuration.
    pub(super) fn source(&self) -> Result<ConfigSource, CliError> {
        let mut overrides = self.overrides.settings();
        overrides.extend(self.routing.settings()?);
        Ok(ConfigSource {
            path: self.path()?.to_owned(),
            environment: Environment::of_process(),
            overrides,
        })
    }

    /// Loads the configuration. Prints its warnings on standard error, even if there are errors.
    pub(super) fn load_and_warn(&self, output: &mut Output) -> Result<Config, CliError> {
        let loaded = self.load();
        let warnings = match &loaded {
            Ok(config) => config.warnings.as_slice(),
            Err(CliError::Config(ConfigError::Invalid { warnings, .. })) => warnings,
            Err(_) => &[],
        };
        for warning in warnings {
            output.complain("warning", warning);
        }
        loaded
    }

    /// Returns whether the command line names a file. PENSTOCK_CONFIG does not count, as it is
    /// meant for commands that require a configuration.
    pub(super) fn is_explicit(&self) -> bool {
        self.file.is_explicit
    }

    /// Returns the routing flags. Scorers without a strategy select the weighted one, as in a
    /// configuration.
    pub(super) fn choice(&self) -> Result<RoutingChoice, CliError> {
        let mut choice = self.routing.choice()?;
        if let (Some(given), None) = (&self.overrides.strategy, choice.strategy) {
            let strategy = Strategy::from_name(given).ok_or_else(|| unknown_strategy(given))?;
            choice.strategy = Some(strategy);
        }
        if choice.scorers.is_some() {
            // Only `weighted` reads scorers: to name them is to choose it.
            choice.strategy.get_or_insert(Strategy::Weighted);
        }
        Ok(choice)
    }

    /// Returns the path of the file.
    pub(super) fn path(&self) -> Result<&Path, CliError> {
        // Only if it is there: otherwise the error would be about a file that no flag names.
        let default = Some(Path::new(DEFAULT_FILE)).filter(|path| path.exists());
        self.file.path.as_deref().or(default).ok_or(CliError::NoConfig)
    }
}

fn unknown_strategy(given: &str) -> CliError {
    let known = Strategy::ALL.iter().map(|strategy| strategy.name()).collect::<Vec<_>>();
    CliError::UnknownPolicy {
        place: "--strategy".to_owned(),
        given: given.to_owned(),
        known: known.join(", "),
    }
}

impl Overrides {
    fn settings(&self) -> Vec<(String, String)> {
        [
            ("server.listen", &self.listen),
            ("admin.listen", &self.admin_listen),
            ("routing.strategy", &self.strategy),
            ("routing.max_retries", &self.max_retries),
            ("log.level", &self.log_level),
        ]
        .into_iter()
        .filter_map(|(path, value)| Some((path.to_owned(), value.clone()?)))
        .collect()
    }
}
