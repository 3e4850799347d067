//! The homes of sessions, passed on to another process: the engines still have their prompts.

use penstock_clock::now;
use penstock_core::fleet::BackendId;
use penstock_core::routing::KeptHome;
use serde::{Deserialize, Serialize};

use crate::proxy::Proxy;
use crate::proxy::passed_ids::{backends_of, identity_of};

/// The homes of sessions, and their backends.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct RememberedHomes {
    /// The number of sessions that the table has room for.
    room: usize,
    /// Name, URL and engine of each backend.
    backends: Vec<[String; 3]>,
    /// The homes; each backend is a position in `backends`.
    homes: Vec<KeptHome>,
}

impl Proxy {
    /// Returns the homes that another process may continue with.
    pub fn pass_homes_on(&self) -> RememberedHomes {
        let topology = self.generation().fleet.topology();
        let backends = topology.backends.iter().map(identity_of).collect();
        let position = |id: BackendId| {
            let position = topology.backends.iter().position(|one| one.state.id == id)?;
            u16::try_from(position).ok()
        };
        let (room, homes) = self.homes.kept(position, now());
        RememberedHomes { room, backends, homes }
    }

    /// Continues with the homes of another process, as far as their backends are known here.
    /// Returns their number.
    pub fn restore_homes(&self, remembered: &RememberedHomes) -> usize {
        let generation = self.generation();
        let topology = generation.fleet.topology();
        let found = backends_of(&remembered.backends, &topology);
        let limit = generation.config.limits.session_homes;
        if self.homes.room(limit) != remembered.room {
            // Another limit puts sessions into other slots: they find new homes.
            return 0;
        }
        let backend = |position: u16| found.get(usize::from(position)).copied().flatten();
        self.homes.restore(&remembered.homes, backend, now())
    }
}
