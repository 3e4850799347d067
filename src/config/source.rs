//! Where a configuration comes from, kept so that it can be read again.

use std::path::PathBuf;

use super::sections::Config;
use super::syntax::environment::Environment;
use super::syntax::errors::ConfigError;

/// A file, the environment and the flags that override it.
#[derive(Debug, Clone)]
pub struct ConfigSource {
    /// The file.
    pub path: PathBuf,
    /// Fills the file's variables and overrides its settings.
    pub environment: Environment,
    /// Settings from the command line, which beat both.
    pub overrides: Vec<(String, String)>,
}

impl ConfigSource {
    /// Reads everything anew, the files that secrets are in among it.
    ///
    /// # Errors
    /// [`ConfigError`] with every fault found.
    pub fn load(&self) -> Result<Config, ConfigError> {
        Config::load(&self.path, &self.environment, &self.overrides)
    }
}
