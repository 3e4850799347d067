//! The backend and the owner of each stored response or conversation, learned from the responses
//! that pass. New ids evict the oldest, so an id that is missing here may still exist: without
//! client keys all backends are queried then. With keys it is not found, since it may be another
//! client's.

use std::collections::VecDeque;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU64, Ordering};

use ahash::HashMap;
use parking_lot::Mutex;
use penstock_api::ErrorCode;
use penstock_core::fleet::BackendId;
use tokio::sync::mpsc;
use xxhash_rust::xxh3::xxh3_64;

use crate::auth::KeyOwner;
use crate::proxy::failure::OwnError;

/// The backends of stored responses.
// The lock is taken at the end of a stored response and for requests that name one, never for
// others.
#[derive(Debug, Default)]
pub(crate) struct ResponseIds {
    known: Mutex<KnownMakers>,
    evicted: AtomicU64,
    /// The sender of newly learned ids to the process that takes over.
    successor: OnceLock<mpsc::Sender<LearnedId>>,
}

#[derive(Debug, Clone, Copy)]
struct Maker {
    backend: BackendId,
    owner: KeyOwner,
}

/// The backend and the owner learned for one id.
#[derive(Debug, Clone, Copy)]
pub(crate) struct LearnedId {
    /// A hash of the id.
    pub(crate) id: u64,
    pub(crate) backend: BackendId,
    pub(crate) owner: KeyOwner,
}

#[derive(Debug, Default)]
struct KnownMakers {
    /// The makers by a hash of the id: a collision costs one request to the wrong backend.
    makers: HashMap<u64, Maker>,
    oldest_first: VecDeque<u64>,
}

impl ResponseIds {
    /// Records that a backend made a response for a client. At most `limit` ids are kept.
    pub(crate) fn learn(&self, id: &[u8], backend: BackendId, owner: KeyOwner, limit: usize) {
        self.keep(LearnedId { id: xxh3_64(id), backend, owner }, limit);
    }

    /// Records the backend and the client of an id that is known by its hash.
    pub(crate) fn keep(&self, learned: LearnedId, limit: usize) {
        if limit == 0 {
            return;
        }
        let LearnedId { id, backend, owner } = learned;
        if let Some(successor) = self.successor.get() {
            // A successor that does not keep up misses some.
            _ = successor.try_send(learned);
        }
        let mut known = self.known.lock();
        // An id that is learned again keeps its age: the order must not have it twice.
        if known.makers.insert(id, Maker { backend, owner }).is_none() {
            known.oldest_first.push_back(id);
        }
        while known.oldest_first.len() > limit {
            if let Some(oldest) = known.oldest_first.pop_front() {
                known.makers.remove(&oldest);
            }
            self.evicted.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// Records that a client uses a conversation, which it may have made without penstock: the
    /// first to use it owns it. At most `limit` ids are kept.
    pub(crate) fn claim(&self, id: &[u8], backend: BackendId, owner: KeyOwner, limit: usize) {
        let is_known = self.known.lock().makers.contains_key(&xxh3_64(id));
        if !is_known {
            self.learn(id, backend, owner, limit);
        }
    }

    /// The backend that holds the response or the conversation that a request continues, as far as
    /// it is known; empty ids name none.
    ///
    /// # Errors
    /// When the client may not read it, or there is no such response.
    pub(crate) fn holder_of(
        &self,
        previous: &[u8],
        conversation: &[u8],
        client: KeyOwner,
    ) -> Result<Option<BackendId>, OwnError> {
        let maker = self.backend_of(previous, client);
        let maker = maker.map_err(|error| error.about(Some("previous_response_id")))?;
        let keeper = self.backend_of_conversation(conversation, client);
        let keeper = keeper.map_err(|error| error.about(Some("conversation")))?;
        Ok(maker.or(keeper))
    }

    /// The backend that has a conversation, as far as it is known; an empty id names none.
    ///
    /// # Errors
    /// When the conversation is another client's.
    pub(crate) fn backend_of_conversation(
        &self,
        id: &[u8],
        client: KeyOwner,
    ) -> Result<Option<BackendId>, OwnError> {
        match self.known.lock().makers.get(&xxh3_64(id)) {
            Some(maker) if client.may_read(maker.owner) => Ok(Some(maker.backend)),
            Some(_) => {
                let message = format!("Conversation '{}' not found", String::from_utf8_lossy(id));
                Err(OwnError::new(ErrorCode::ResponseNotFound, message))
            }
            None => Ok(None),
        }
    }

    /// The backend that made a response, as far as it is known; an empty id names none.
    ///
    /// # Errors
    /// When the response was made for another client, or, if there are keys, its owner is not
    /// known: the same error as for one that does not exist.
    pub(crate) fn backend_of(
        &self,
        id: &[u8],
        client: KeyOwner,
    ) -> Result<Option<BackendId>, OwnError> {
        if id.is_empty() {
            return Ok(None);
        }
        match self.known.lock().makers.get(&xxh3_64(id)) {
            Some(maker) if client.may_read(maker.owner) => Ok(Some(maker.backend)),
            None if client == KeyOwner::ANYONE => Ok(None),
            Some(_) | None => {
                let message = format!("Response '{}' not found", String::from_utf8_lossy(id));
                Err(OwnError::new(ErrorCode::ResponseNotFound, message))
            }
        }
    }

    /// The newest known ids, at most `most`, the oldest of them first.
    pub(crate) fn newest(&self, most: usize) -> Vec<LearnedId> {
        let known = self.known.lock();
        let skipped = known.oldest_first.len().saturating_sub(most);
        let ids = known.oldest_first.iter().skip(skipped);
        let all = ids.filter_map(|id| {
            let Maker { backend, owner } = *known.makers.get(id)?;
            Some(LearnedId { id: *id, backend, owner })
        });
        all.collect()
    }

    /// The receiver of the ids learned from now on; it gets nothing if there is another one
    /// already.
    pub(crate) fn follow(&self, room: usize) -> mpsc::Receiver<LearnedId> {
        let (sender, receiver) = mpsc::channel(room);
        let is_first = self.successor.set(sender).is_ok();
        debug_assert!(is_first, "a process has one successor");
        receiver
    }

    /// The number of known ids.
    pub(crate) fn len(&self) -> usize {
        self.known.lock().makers.len()
    }

    /// The number of evicted ids.
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
            ids.learn(id.as_bytes(), BackendId(backend), KeyOwner::ANYONE, 2);
        }
        let find = |id: &[u8]| ids.backend_of(id, KeyOwner::ANYONE).unwrap();
        assert_eq!(find(b"a"), None);
        assert_eq!((find(b"b"), find(b"c")), (Some(BackendId(2)), Some(BackendId(4))));
        assert_eq!((ids.len(), ids.evicted()), (2, 1));
        ids.learn(b"d", BackendId(1), KeyOwner::ANYONE, 0);
        assert_eq!(find(b"d"), None, "a limit of 0 keeps none");
    }

    #[test]
    fn responses_belong_to_the_key_that_made_them() {
        let ids = ResponseIds::default();
        let (a, b) = (KeyOwner::of("a"), KeyOwner::of("b"));
        ids.learn(b"of a", BackendId(1), a, 9);
        ids.learn(b"open", BackendId(2), KeyOwner::ANYONE, 9);
        let find = |id: &[u8], client| ids.backend_of(id, client).ok();
        assert_eq!(find(b"of a", a), Some(Some(BackendId(1))));
        assert_eq!(find(b"of a", b), None);
        assert_eq!(find(b"of a", KeyOwner::ANYONE), None, "its keys were removed since");
        assert_eq!(find(b"open", b), Some(Some(BackendId(2))), "made before there were keys");
        assert_eq!(find(b"forgotten", b), None, "it may be of another key");
        assert_eq!(
            find(b"forgotten", KeyOwner::ANYONE),
            Some(None),
            "without keys it is everybody's"
        );
        assert_eq!(find(b"", b), Some(None), "no response is named");
    }

    #[test]
    fn conversations_belong_to_the_key_that_used_them_first() {
        let ids = ResponseIds::default();
        let (a, b) = (KeyOwner::of("a"), KeyOwner::of("b"));
        let find = |client| ids.backend_of_conversation(b"conv", client).ok();
        assert_eq!(find(b), Some(None), "it may have been made elsewhere");
        ids.claim(b"conv", BackendId(1), a, 9);
        ids.claim(b"conv", BackendId(2), b, 9);
        assert_eq!(find(a), Some(Some(BackendId(1))));
        assert_eq!((find(b), find(KeyOwner::ANYONE)), (None, None));
    }
}
