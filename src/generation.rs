//! One configuration with everything built from it. A request pins the generation it started
//! with; what is learned about backends lives in the registry and outlives generations.

use std::sync::Arc;

use crate::config::Config;
use crate::registry::Registry;
use crate::routing::Router;

/// A configuration in force.
#[derive(Debug)]
pub struct Generation {
    /// What was configured.
    pub config: Config,
    /// Decides by that configuration.
    pub router: Router,
    /// The fleet it decides over.
    pub registry: Arc<Registry>,
}

impl Generation {
    /// Builds everything a configuration asks for.
    pub fn new(config: Config) -> Self {
        let registry = Arc::new(Registry::new(&config));
        Self::of(config, registry)
    }

    /// Builds what takes this one's place; what was learned about backends goes along.
    #[must_use]
    pub fn succeeded_by(&self, config: Config) -> Self {
        let registry = Arc::new(self.registry.succeeded_by(&config));
        Self::of(config, registry)
    }

    fn of(config: Config, registry: Arc<Registry>) -> Self {
        Self { router: Router::new(&config.routing), registry, config }
    }
}
