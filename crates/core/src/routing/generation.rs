//! One configuration with everything built from it. A request pins the generation it started
//! with; what is learned about backends lives in the fleet and outlives generations.

use std::io;
use std::sync::Arc;

use penstock_config::Config;

use crate::clients::KeyTable;
use crate::fleet::{Fleet, Groups};
use crate::routing::Router;
use crate::routing::audit::{Shadow, ShadowHost};

/// A configuration in force.
#[derive(Debug)]
pub struct Generation {
    /// The configuration, with its groups as written.
    pub config: Config,
    /// The client keys that it lists.
    pub keys: KeyTable,
    /// The router that decides by it.
    pub router: Router,
    /// The fleet it decides over.
    pub fleet: Arc<Fleet>,
    /// The shadow strategy, once it runs.
    pub shadow: Option<Arc<Shadow>>,
}

impl Generation {
    /// Builds everything that a configuration needs. Its groups have no members yet.
    pub fn new(config: Config) -> Self {
        Self::with_groups(config, Groups::default())
    }

    /// Builds it with the addresses that the groups of the configuration resolve to.
    pub fn with_groups(config: Config, groups: Groups) -> Self {
        let fleet = Arc::new(Fleet::with_groups(&config, groups));
        Self::of(config, fleet)
    }

    /// Builds the next generation, which keeps all that was learned about backends.
    #[must_use]
    pub fn succeeded_by(&self, config: Config, groups: Groups) -> Self {
        let fleet = Arc::new(self.fleet.succeeded_by(&config, groups));
        Self::of(config, fleet)
    }

    /// Starts the configured shadow, or keeps the one of the previous generation if `routing` is
    /// unchanged.
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
        Self {
            router: Router::of(&config),
            keys: KeyTable::of_config(&config.auth.keys),
            fleet,
            config,
            shadow: None,
        }
    }
}
