//! The state that another process continues with when it takes over: the homes of sessions, whose
//! prompts the engines still have, and the backends and owners of stored responses and
//! conversations. It gets the known ids at once, and afterwards those that this process learns from
//! the requests that it still serves.

use penstock_clock::now;
use penstock_core::fleet::{Backend, BackendId, Topology};
use penstock_core::routing::KeptHome;
use serde::{Deserialize, Serialize};
use tokio::sync::mpsc;

use crate::auth::KeyOwner;
use crate::proxy::Proxy;
use crate::proxy::response_ids::LearnedId;

/// The maximum number of ids that are passed on at once, the newest ones.
const MAX_PASSED: usize = 131_072;
/// The maximum number of ids that wait to be passed on.
const MAX_WAITING: usize = 4096;

/// Ids of responses and conversations, with the backends that hold these.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct RememberedIds {
    /// Name, URL and engine of each backend.
    backends: Vec<[String; 3]>,
    /// A hash of each id, the position of its backend, and the hash of the owner; the oldest first.
    ids: Vec<(u64, usize, Option<u64>)>,
}

impl RememberedIds {
    pub fn len(&self) -> usize {
        self.ids.len()
    }

    /// Returns whether there are no ids.
    pub fn is_empty(&self) -> bool {
        self.ids.is_empty()
    }
}

/// The ids that a process learns after another one has taken over.
#[derive(Debug)]
pub struct LaterIds(mpsc::Receiver<LearnedId>);

impl LaterIds {
    /// The next ids; `None` when this process ends.
    pub async fn next(&mut self, proxy: &Proxy) -> Option<RememberedIds> {
        let first = self.0.recv().await?;
        let mut all = vec![first];
        while let Ok(more) = self.0.try_recv() {
            all.push(more);
        }
        Some(proxy.describe_ids(&all))
    }
}

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
    /// The ids of stored responses and conversations known now, and those learned from now on.
    pub fn pass_ids_on(&self) -> (RememberedIds, LaterIds) {
        // Followed first: no id may be learned between the two.
        let later = self.response_ids.follow(MAX_WAITING);
        (self.describe_ids(&self.response_ids.newest(MAX_PASSED)), LaterIds(later))
    }

    /// Continues with the ids of another process whose backends are known here. Returns their
    /// number.
    pub fn restore_ids(&self, ids: &RememberedIds) -> usize {
        let generation = self.generation();
        let topology = generation.fleet.topology();
        let found = backends_of(&ids.backends, &topology);
        let limit = generation.config.limits.response_ids;
        let mut restored = 0;
        for (id, backend, owner) in &ids.ids {
            let Some(Some(backend)) = found.get(*backend).copied() else { continue };
            let owner = KeyOwner::from_hash(*owner);
            self.response_ids.keep(LearnedId { id: *id, backend, owner }, limit);
            restored += 1;
        }
        restored
    }

    fn describe_ids(&self, all: &[LearnedId]) -> RememberedIds {
        let topology = self.generation().fleet.topology();
        let mut described = RememberedIds::default();
        let mut positions: Vec<BackendId> = Vec::new();
        for LearnedId { id, backend, owner } in all {
            let known = positions.iter().position(|one| one == backend);
            let position = known.or_else(|| {
                let found = topology.backends.iter().find(|one| one.state.id == *backend)?;
                described.backends.push(identity_of(found));
                positions.push(*backend);
                Some(positions.len() - 1)
            });
            described.ids.extend(position.map(|position| (*id, position, owner.to_hash())));
        }
        described
    }

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

/// Returns the backends with these identities, as far as they are known here.
fn backends_of(identities: &[[String; 3]], fleet: &Topology) -> Vec<Option<BackendId>> {
    let found = identities.iter().map(|identity| {
        let found = fleet.backends.iter().find(|backend| identity_of(backend) == *identity)?;
        Some(found.state.id)
    });
    found.collect()
}

/// The identity of a backend across processes: name, URL and engine.
fn identity_of(backend: &Backend) -> [String; 3] {
    let config = &backend.config;
    [config.name.clone(), config.url.to_string(), config.engine.name().to_owned()]
}
