//! Stored responses and conversations across an upgrade: clients go on with them, so that the new process must know
//! which backend has them and whose they are. It gets what is known when it takes over, and afterwards what the old
//! process learns from the requests that it still serves.

use serde::{Deserialize, Serialize};
use tokio::sync::mpsc;

use super::response_ids::Learned;
use crate::fleet::{Backend, BackendId};
use crate::proxy::Proxy;
use crate::proxy::auth::KeyOwner;

/// The most ids that are passed on at once, the newest ones.
const MOST_PASSED: usize = 131_072;
/// Ids that wait to be passed on.
const WAITING: usize = 4096;

/// Ids, with the backends that have what they stand for.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct RememberedIds {
    /// Name, URL and engine of each backend.
    backends: Vec<[String; 3]>,
    /// A hash of each id, the position of its backend, and what identifies the key it belongs to; the oldest first.
    ids: Vec<(u64, usize, Option<u64>)>,
}

impl RememberedIds {
    /// How many they are.
    pub fn len(&self) -> usize {
        self.ids.len()
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.ids.is_empty()
    }
}

/// The ids that a process learns after another one has taken over.
#[derive(Debug)]
pub struct LaterIds(mpsc::Receiver<Learned>);

impl LaterIds {
    /// The next ones; `None` when this process ends.
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
    /// The ids of stored responses and conversations that are known, and those that are learned from now on.
    pub fn pass_ids_on(&self) -> (RememberedIds, LaterIds) {
        // Followed first: none may be learned between the two.
        let later = self.response_ids.follow(WAITING);
        (self.describe_ids(&self.response_ids.newest(MOST_PASSED)), LaterIds(later))
    }

    /// Continues with the ids of another process, as far as their backends are known here. Returns of how many.
    pub fn restore_ids(&self, ids: &RememberedIds) -> usize {
        let generation = self.generation();
        let topology = generation.fleet.topology();
        let find = |identity: &[String; 3]| {
            topology.backends.iter().find(|backend| identity_of(backend) == *identity)
        };
        let found: Vec<Option<BackendId>> =
            ids.backends.iter().map(|one| Some(find(one)?.state.id)).collect();
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

/// What makes a backend the same in another process.
pub(in crate::proxy) fn identity_of(backend: &Backend) -> [String; 3] {
    let config = &backend.config;
    [config.name.clone(), config.url.to_string(), config.engine.name().to_owned()]
}
