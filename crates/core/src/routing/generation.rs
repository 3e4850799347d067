//! One configuration with everything built from it. A request pins the generation it started
//! with; what is learned about backends lives in the fleet and outlives generations.

use std::io;
use std::sync::Arc;

use crate::fleet::{Fleet, Groups};
use crate::routing::Router;
use crate::routing::audit::{Shadow, ShadowHost};
use penstock_config::Config;

/// A configuration in force.
#[derive(Debug)]
pub struct Generation {
    /// What was configured, groups as they were written.
    pub config: Config,
    /// Decides by that configuration.
    pub router: Router,
    /// The fleet it decides over.
    pub fleet: Arc<Fleet>,
    /// The shadow strategy, once it runs.
    pub shadow: Option<Arc<Shadow>>,
}

impl Generation {
    /// Builds everything a configuration asks for. Its groups have no members yet.
    pub fn new(config: Config) -> Self {
        Self::with_groups(config, Groups::default())
    }

    /// The same with what the groups of the configuration resolve to.
    pub fn with_groups(config: Config, groups: Groups) -> Self {
        let fleet = Arc::new(Fleet::with_groups(&config, groups));
        Self::of(config, fleet)
    }

    /// Builds the generation after this one, which keeps what was learned about backends.
    #[must_use]
    pub fn succeeded_by(&self, config: Config, groups: Groups) -> Self {
        let fleet = Arc::new(self.fleet.succeeded_by(&config, groups));
        Self::of(config, fleet)
    }

    /// The same with the shadow it asks for running: that of the previous generation where `routing` is
    /// the same, else a new one.
    ///
    /// # Errors
    /// When the host cannot start its thread.
    pub fn with_shadow(self, previous: Option<&Self>, host: ShadowHost) -> io::Result<Self> {
        let same = previous.filter(|previous| previous.config.routing == self.config.routing);
        let shadow = match same {
            Some(previous) => previous.shadow.clone(),
            None => Shadow::start(&self.config.routing, host)?.map(Arc::new),
        };
        Ok(Self { shadow, ..self })
    }

    fn of(config: Config, fleet: Arc<Fleet>) -> Self {
        Self { router: Router::new(&config.routing), fleet, config, shadow: None }
    }
}
