//! The engines learned from recent traffic, with the limits that they lend each other.

use std::collections::BTreeMap;

use penstock_api::Engine;

use crate::engine::EngineSpec;
use crate::fit::{EngineFit, ShownLimit, lent_limit};
use crate::run::RecordedRun;

/// The run of a backend, with the engine that fits it.
pub(super) struct FittedRun {
    pub(super) name: String,
    /// Its kind; `None` if its limit of requests at a time is configured.
    pub(super) kind: Option<Engine>,
    pub(super) run: RecordedRun,
    pub(super) start: EngineSpec,
    pub(super) fit: EngineFit,
}

impl FittedRun {
    fn shown_limit(&self) -> ShownLimit<'_> {
        let Self { kind, run, start, fit, .. } = self;
        let (assumed, learned) = (start.max_requests, fit.max_requests);
        ShownLimit { kind: *kind, assumed, learned, run }
    }

    fn spec(&self, limits: &[ShownLimit<'_>]) -> EngineSpec {
        let lent = lent_limit(&self.shown_limit(), limits);
        EngineFit { max_requests: self.fit.max_requests.or(lent), ..self.fit }.engine(&self.start)
    }
}

/// The engines of a fleet.
pub(super) struct LearnedEngines {
    /// The learned engines, by the names of their backends.
    engines: BTreeMap<String, EngineSpec>,
    /// The engine of the backend with the most streams.
    usual: EngineSpec,
}

impl LearnedEngines {
    /// Returns the engines, of which that of `most` is the usual one; `None` if it is not there.
    pub(super) fn of(learned: &[FittedRun], most: &str) -> Option<Self> {
        let limits: Vec<ShownLimit<'_>> = learned.iter().map(FittedRun::shown_limit).collect();
        let specs = learned.iter().map(|one| (one.name.clone(), one.spec(&limits)));
        let engines: BTreeMap<String, EngineSpec> = specs.collect();
        let usual = engines.get(most)?.clone();
        Some(Self { engines, usual })
    }

    /// Returns the engine of a backend: its learned one, or the usual one with `limit`, the number
    /// of requests at a time that the configuration gives the backend.
    pub(super) fn engine(&self, backend: &str, limit: Option<u32>) -> EngineSpec {
        match (self.engines.get(backend), limit) {
            (Some(learned), _) => learned.clone(),
            (None, Some(limit)) => self.usual.clone().with_max_requests(limit),
            (None, None) => self.usual.clone(),
        }
    }
}
