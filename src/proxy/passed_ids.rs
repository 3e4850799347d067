//! Stored responses and conversations across an upgrade: clients go on with them, so the new
//! process must know their backends and owners. It gets the known ids when it takes over, and
//! afterwards those that the old process learns from the requests that it still serves.

use penstock_core::fleet::{Backend, BackendId, Topology};
use serde::{Deserialize, Serialize};
use tokio::sync::mpsc;

use crate::auth::KeyOwner;
use crate::proxy::Proxy;
use crate::proxy::response_ids::Learned;

/// The maximum number of ids that are passed on at once, the newest ones.
const MAX_PASSED: usize = 131_072;
/// The maximum number of ids that wait to be passed on.
const WAITING: usize = 4096;

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
pub struct LaterIds(mpsc::Receiver<Learned>);

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

impl Proxy {
    /// The ids of stored responses and conversations known now, and those learned from now on.
    pub fn pass_ids_on(&self) -> (RememberedIds, LaterIds) {
        // Followed first: no id may be learned between the two.
        let later = self.response_ids.follow(WAITING);
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
            self.response_ids.keep(Learned { id: *id, backend, owner }, limit);
            restored += 1;
        }
        restored
    }

    fn describe_ids(&self, all: &[Learned]) -> RememberedIds {
        let topology = self.generation().fleet.topology();
        let mut described = RememberedIds::default();
        let mut positions: Vec<BackendId> = Vec::new();
        for Learned { id, backend, owner } in all {
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
}

/// Returns the backends with these identities, as far as they are known here.
pub(crate) fn backends_of(identities: &[[String; 3]], fleet: &Topology) -> Vec<Option<BackendId>> {
    let find = |identity: &[String; 3]| {
        let found = fleet.backends.iter().find(|backend| identity_of(backend) == *identity)?;
        Some(found.state.id)
    };
    identities.iter().map(find).collect()
}

/// The identity of a backend across processes: name, URL and engine.
pub(crate) fn identity_of(backend: &Backend) -> [String; 3] {
    let config = &backend.config;
    [config.name.clone(), config.url.to_string(), config.engine.name().to_owned()]
}
