//! Manual drains and resumes: the state of a backend that differs from `drain` in the
//! configuration. An upgrade passes them to the new process.

use serde::{Deserialize, Serialize};

use super::{Fleet, Identity};

/// A backend that was drained or resumed by hand.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ManualDrain {
    pub name: String,
    pub url: String,
    pub engine: String,
    /// True if it receives no new requests.
    pub draining: bool,
}

impl Fleet {
    /// Every backend whose state differs from the configuration.
    pub fn manual_drains(&self) -> Vec<ManualDrain> {
        let topology = self.topology();
        let rows = topology.backends.iter().filter_map(|backend| {
            let draining = backend.state.is_draining();
            let identity = Identity::of(&backend.config);
            (draining != backend.config.starts_drained()).then(|| ManualDrain {
                engine: identity.engine.name().to_owned(),
                name: identity.name,
                url: identity.url,
                draining,
            })
        });
        rows.collect()
    }

    /// Applies the drains of a previous process to the same backends. Returns the names of those it
    /// changed.
    pub fn apply_manual_drains(&self, drains: &[ManualDrain]) -> Vec<String> {
        let topology = self.topology();
        let mut changed = Vec::new();
        for backend in &topology.backends {
            let identity = Identity::of(&backend.config);
            if let Some(drain) =
                drains.iter().find(|one| identity.is_of(&one.name, &one.url, &one.engine))
                && backend.state.set_draining(drain.draining) != drain.draining
            {
                changed.push(identity.name);
            }
        }
        changed
    }
}
