//! One configuration with everything built from it. A request pins the generation it started
//! with; what is learned about backends lives in the fleet and outlives generations.

use std::io;
use std::sync::Arc;

use crate::clock::now;
use crate::config::Config;
use crate::fleet::Fleet;
use crate::routing::Router;
use crate::shadow::Shadow;

/// A configuration in force.
#[derive(Debug)]
pub struct Generation {
    /// What was configured.
    pub config: Config,
    /// Decides by that configuration.
    pub router: Router,
    /// The fleet it decides over.
    pub fleet: Arc<Fleet>,
    /// The strategy that is tried out, once one runs.
    pub shadow: Option<Arc<Shadow>>,
}

impl Generation {
    /// Builds everything a configuration asks for.
    pub fn new(config: Config) -> Self {
        let fleet = Arc::new(Fleet::new(&config));
        Self::of(config, fleet)
    }

    /// Builds what takes this one's place; what was learned about backends goes along.
    #[must_use]
    pub fn succeeded_by(&self, config: Config) -> Self {
        let fleet = Arc::new(self.fleet.succeeded_by(&config));
        Self::of(config, fleet)
    }

    /// The same with the shadow it asks for at work: that of the generation before where `routing` is
    /// the same, else one that knows nothing yet.
    ///
    /// # Errors
    /// When the system gives no thread.
    pub fn with_shadow(self, before: Option<&Self>) -> io::Result<Self> {
        let alike = before.filter(|before| before.config.routing == self.config.routing);
        let shadow = match alike {
            Some(before) => before.shadow.clone(),
            None => Shadow::start(&self.config.routing, now())?.map(Arc::new),
        };
        Ok(Self { shadow, ..self })
    }

    fn of(config: Config, fleet: Arc<Fleet>) -> Self {
        Self { router: Router::new(&config.routing), fleet, config, shadow: None }
    }
}
