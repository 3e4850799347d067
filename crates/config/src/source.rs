//! The sources of a configuration, kept for reloads.

use std::path::PathBuf;

use super::sections::Config;
use super::syntax::environment::Environment;
use super::syntax::errors::ConfigError;

/// A file, the environment and the flags that override it.
#[derive(Debug, Clone)]
pub struct ConfigSource {
    pub path: PathBuf,
    /// The environment: values of `${NAME}`, and overrides.
    pub environment: Environment,
    /// Overrides from the command line, which take precedence.
    pub overrides: Vec<(String, String)>,
}

impl ConfigSource {
    /// Loads the configuration, including the files with secrets.
    ///
    /// # Errors
    /// [`ConfigError`] with every error found.
    pub fn load(&self) -> Result<Config, ConfigError> {
        Config::load(&self.path, &self.environment, &self.overrides)
    }
}
