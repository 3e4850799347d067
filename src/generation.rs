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
        Self { router: Router::new(&config.routing), registry, config }
    }
}
