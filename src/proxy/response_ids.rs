//! Which backend holds which stored response, learned from the responses that pass. The oldest ids
//! make room for new ones, so an id that is missing here may still exist: all backends are queried then.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicU64, Ordering};

use ahash::HashMap;
use parking_lot::Mutex;
use xxhash_rust::xxh3::xxh3_64;

use crate::fleet::BackendId;

/// The backends of stored responses.
// The lock is taken at the end of a stored response and for requests that name one, never for others.
#[derive(Debug, Default)]
pub(crate) struct ResponseIds {
    known: Mutex<Known>,
    evicted: AtomicU64,
}

#[derive(Debug, Default)]
struct Known {
    /// By a hash of the id: a collision costs one request to the wrong backend.
    owners: HashMap<u64, BackendId>,
    oldest_first: VecDeque<u64>,
}

impl ResponseIds {
    /// Records that a backend made a response. At most `limit` are kept.
    pub(crate) fn learn(&self, id: &[u8], backend: BackendId, limit: usize) {
        let key = xxh3_64(id);
        let mut known = self.known.lock();
        if limit == 0 {
            return;
        }
        if known.owners.insert(key, backend).is_none() {
            known.oldest_first.push_back(key);
        }
        while known.oldest_first.len() > limit {
            if let Some(oldest) = known.oldest_first.pop_front() {
                known.owners.remove(&oldest);
            }
            self.evicted.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// The backend that made a response, as far as it is known.
    pub(crate) fn owner(&self, id: &[u8]) -> Option<BackendId> {
        self.known.lock().owners.get(&xxh3_64(id)).copied()
    }

    /// How many ids are known.
    pub(crate) fn len(&self) -> usize {
        self.known.lock().owners.len()
    }

    /// How many made room for others.
    pub(crate) fn evicted(&self) -> u64 {
        self.evicted.load(Ordering::Relaxed)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_oldest_ids_make_room() {
        let ids = ResponseIds::default();
        for (id, backend) in [("a", 1), ("b", 2), ("a", 3), ("c", 4)] {
            ids.learn(id.as_bytes(), BackendId(backend), 2);
        }
        assert_eq!(ids.owner(b"a"), None);
        assert_eq!((ids.owner(b"b"), ids.owner(b"c")), (Some(BackendId(2)), Some(BackendId(4))));
        assert_eq!((ids.len(), ids.evicted()), (2, 1));
        ids.learn(b"d", BackendId(1), 0);
        assert_eq!(ids.owner(b"d"), None, "a limit of 0 keeps none");
    }
}
