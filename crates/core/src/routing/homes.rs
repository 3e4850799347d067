//! The homes of sessions: the backends that served them last. A lock-free table of fixed size: a
//! decision reads one cache line per name. Two sessions that agree in the stored bits of their
//! hashes share a home, which only costs a preference.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use arc_swap::ArcSwap;
use penstock_api::units::Timestamp;
use serde::{Deserialize, Serialize};

use super::session::SessionIds;
use crate::fleet::BackendId;

/// The sessions that share a bucket: one cache line.
const WAYS: usize = 8;
/// The time that a session keeps its home while it is served elsewhere: a backend that is full or
/// in cooldown for a while still has its prompt.
const MAX_AWAY: Duration = Duration::from_secs(60);
/// The time that an idle session keeps its home. By then engines have evicted its prompt.
const MAX_IDLE: Duration = Duration::from_secs(3600);

const TAG_BITS: u32 = 24;
const BACKEND_BITS: u32 = 16;
const SECOND_BITS: u32 = u64::BITS - TAG_BITS - BACKEND_BITS;

#[derive(Debug, Default)]
pub struct SessionHomes {
    table: ArcSwap<HomeTable>,
    evicted: AtomicU64,
}

/// A session with its home, as passed to another process.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct KeptHome(
    u32,
    /// The stored bits of its hash.
    u32,
    /// The position of its backend.
    u16,
    /// The seconds since it was served there.
    u64,
);

#[derive(Debug, Default)]
struct HomeTable {
    slots: Box<[AtomicU64]>,
}

/// A session in its slot, as one word; 0 is an empty slot.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct HomeEntry {
    tag: u64,
    backend: BackendId,
    /// The second in which its home served it last; wraps around after 194 days.
    seconds: u64,
}

impl HomeEntry {
    fn of(word: u64) -> Option<Self> {
        let backend = (word >> SECOND_BITS) & ((1 << BACKEND_BITS) - 1);
        let backend = u16::try_from(backend).ok()?.checked_sub(1)?;
        let seconds = word & ((1 << SECOND_BITS) - 1);
        Some(Self { tag: word >> (u64::BITS - TAG_BITS), backend: BackendId(backend), seconds })
    }

    fn to_word(self) -> u64 {
        // Plus one, so that no entry is 0, the word of an empty slot.
        let backend = u64::from(self.backend.0.saturating_add(1));
        (self.tag << (u64::BITS - TAG_BITS)) | (backend << SECOND_BITS) | self.seconds
    }

    /// Returns the time since its home served it.
    fn age(self, now: Timestamp) -> Duration {
        // Modulo 2^24 seconds, which is 194 days: a session that returns after as long may find its
        // old home once more, which costs a prompt to compute.
        Duration::from_secs(seconds_of(now).wrapping_sub(self.seconds) & ((1 << SECOND_BITS) - 1))
    }
}

fn seconds_of(at: Timestamp) -> u64 {
    (at.0 / 1_000_000) & ((1 << SECOND_BITS) - 1)
}

fn tag_of(session: u64) -> u64 {
    session >> (u64::BITS - TAG_BITS)
}

impl HomeTable {
    fn of(limit: usize) -> Self {
        let count = limit.div_ceil(WAYS) * WAYS;
        Self { slots: (0..count).map(|_| AtomicU64::new(0)).collect() }
    }

    /// Returns the slots that may hold a session.
    fn bucket(&self, session: u64) -> &[AtomicU64] {
        let buckets = self.slots.len() / WAYS;
        // The low half: the tag has the high bits, so that sessions of a bucket differ in their
        // tags.
        let Some(bucket) = usize::try_from(session & u64::from(u32::MAX))
            .unwrap_or(usize::MAX)
            .checked_rem(buckets)
        else {
            return &[];
        };
        self.slots.get(bucket * WAYS..(bucket + 1) * WAYS).unwrap_or_default()
    }

    fn find(&self, session: u64, now: Timestamp) -> Option<(&AtomicU64, HomeEntry)> {
        let entries = self.bucket(session).iter().filter_map(|slot| {
            // One word is a whole entry, so no reader sees half of one.
            let entry = HomeEntry::of(slot.load(Ordering::Relaxed))?;
            Some((slot, entry))
        });
        let mut own = entries.filter(|(_, entry)| entry.tag == tag_of(session));
        own.find(|(_, entry)| entry.age(now) < MAX_IDLE)
    }
}

impl SessionHomes {
    /// Returns the home of an agent, else of its parent agent, else of its session.
    pub fn find(&self, session: SessionIds, now: Timestamp) -> Option<BackendId> {
        let table = self.table.load();
        // An agent without a home starts where its parent is: they share the prompt.
        let mut names = [session.own, session.parent, session.root].into_iter();
        names.find_map(|name| table.find(name, now)).map(|(_, entry)| entry.backend)
    }

    /// Records that a backend serves a session. Its home moves there, unless its home served it
    /// within the last minute or `is_other` finds that its home serves other models. At most
    /// `limit` sessions are kept.
    pub fn visit(
        &self,
        session: SessionIds,
        backend: BackendId,
        is_other: impl FnOnce(BackendId) -> bool,
        limit: usize,
        now: Timestamp,
    ) {
        let table = self.table_of(limit);
        let entry = HomeEntry { tag: tag_of(session.own), backend, seconds: seconds_of(now) };
        if let Some((slot, home)) = table.find(session.own, now) {
            let stays =
                home.backend != backend && (home.age(now) < MAX_AWAY || is_other(home.backend));
            if !stays {
                // No compare-and-swap: of two requests at once the last one wins, which costs a
                // preference.
                slot.store(entry.to_word(), Ordering::Relaxed);
            }
            return;
        }
        let age = |slot: &&AtomicU64| {
            // An empty slot is the oldest of all.
            HomeEntry::of(slot.load(Ordering::Relaxed))
                .map_or(Duration::MAX, |entry| entry.age(now))
        };
        let Some(oldest) = table.bucket(session.own).iter().max_by_key(age) else { return };
        // An expired entry is no loss, and is not counted as one.
        if age(&oldest) < MAX_IDLE {
            self.evicted.fetch_add(1, Ordering::Relaxed);
        }
        oldest.store(entry.to_word(), Ordering::Relaxed);
    }

    /// Returns the table; an empty one if the limit has changed.
    fn table_of(&self, limit: usize) -> Arc<HomeTable> {
        let table = self.table.load_full();
        if table.slots.len() == limit.div_ceil(WAYS) * WAYS {
            return table;
        }
        let table = Arc::new(HomeTable::of(limit));
        // Of two requests that do so at once one loses its table, which costs preferences.
        self.table.store(Arc::clone(&table));
        table
    }

    /// Returns the homes that have not expired, and the number of sessions that the table has room
    /// for. `position` is the position of a backend among those that both processes know.
    pub fn kept(
        &self,
        position: impl Fn(BackendId) -> Option<u16>,
        now: Timestamp,
    ) -> (usize, Vec<KeptHome>) {
        let table = self.table.load();
        let homes = (0_u32..).zip(&table.slots).filter_map(|(slot, word)| {
            let entry = HomeEntry::of(word.load(Ordering::Relaxed))?;
            let idle = entry.age(now);
            let tag = u32::try_from(entry.tag).ok()?;
            let position = position(entry.backend).filter(|_| idle < MAX_IDLE)?;
            Some(KeptHome(slot, tag, position, idle.as_secs()))
        });
        (table.slots.len(), homes.collect())
    }

    /// Returns the number of sessions that the table has room for at a limit of `limit`.
    pub fn room(&self, limit: usize) -> usize {
        self.table_of(limit).slots.len()
    }

    /// Restores homes from another process with a table of the same size. `backend` returns the
    /// backend at a position. Returns the number of restored sessions.
    pub fn restore(
        &self,
        homes: &[KeptHome],
        backend: impl Fn(u16) -> Option<BackendId>,
        now: Timestamp,
    ) -> usize {
        let table = self.table.load();
        let restored = homes.iter().filter_map(|KeptHome(slot, tag, position, idle)| {
            let (slot, backend) = (table.slots.get(*slot as usize)?, backend(*position)?);
            let seconds = seconds_of(now).wrapping_sub(*idle) & ((1 << SECOND_BITS) - 1);
            let tag = u64::from(*tag) & ((1 << TAG_BITS) - 1);
            slot.store(HomeEntry { tag, backend, seconds }.to_word(), Ordering::Relaxed);
            Some(())
        });
        restored.count()
    }

    /// The number of sessions in the table.
    pub fn len(&self) -> usize {
        let table = self.table.load();
        table.slots.iter().filter(|slot| slot.load(Ordering::Relaxed) != 0).count()
    }

    /// Returns whether the table is empty.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The number of evicted sessions.
    pub fn evicted(&self) -> u64 {
        self.evicted.load(Ordering::Relaxed)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const A: BackendId = BackendId(0);
    const B: BackendId = BackendId(65_000);

    fn at(seconds: u64) -> Timestamp {
        Timestamp(seconds * 1_000_000)
    }

    fn visit(homes: &SessionHomes, session: u64, backend: BackendId, seconds: u64) {
        homes.visit(SessionIds::plain(session), backend, |_| false, 64, at(seconds));
    }

    fn home(homes: &SessionHomes, session: u64, seconds: u64) -> Option<BackendId> {
        homes.find(SessionIds::plain(session), at(seconds))
    }

    #[test]
    fn home_is_kept_over_a_short_spill() {
        let homes = SessionHomes::default();
        assert_eq!(home(&homes, 7, 0), None);
        visit(&homes, 7, A, 10);
        visit(&homes, 7, B, 69);
        assert_eq!(home(&homes, 7, 69), Some(A), "59 s after it was there");
        visit(&homes, 7, A, 70);
        visit(&homes, 7, B, 129);
        assert_eq!(home(&homes, 7, 129), Some(A));
        visit(&homes, 7, B, 130);
        assert_eq!(home(&homes, 7, 130), Some(B), "a minute after it was there");
        assert_eq!(home(&homes, 7, 130 + 3599), Some(B));
        assert_eq!(home(&homes, 7, 130 + 3600), None, "idle for an hour");
    }

    #[test]
    fn homes_survive_in_another_process() {
        let old = SessionHomes::default();
        for session in 1..=40 {
            visit(&old, session << 40 | session, A, 5000 + session);
        }
        visit(&old, 99, B, 1000);
        let (limit, kept) = old.kept(|backend| (backend == A).then_some(3), at(5100));
        assert_eq!((limit, kept.len()), (64, 40), "one has expired");
        let new = SessionHomes::default();
        assert_eq!(new.room(64), limit);
        // The clock of another process may have started just now.
        assert_eq!(new.restore(&kept, |position| (position == 3).then_some(B), at(7)), 40);
        for session in 1..=40 {
            assert_eq!(home(&new, session << 40 | session, 7), Some(B));
        }
        assert_eq!(home(&new, 1 << 40 | 1, 7 + 3600 - 99), None, "its idle time goes on");
        assert_eq!(home(&new, 40 << 40 | 40, 7 + 3600 - 99), Some(B));
        assert_eq!(new.restore(&kept, |_| None, at(7)), 0, "its backend is gone");
    }

    #[test]
    fn home_stays_where_the_model_of_a_request_is_not_served_there() {
        let homes = SessionHomes::default();
        visit(&homes, 7, A, 0);
        homes.visit(SessionIds::plain(7), B, |home| home == A, 64, at(500));
        assert_eq!(home(&homes, 7, 500), Some(A));
    }

    #[test]
    fn agents_start_at_the_home_of_those_that_started_them() {
        let homes = SessionHomes::default();
        let sub = SessionIds { root: 1 << 40, parent: 2 << 40, own: 3 << 40 };
        visit(&homes, sub.root, A, 0);
        assert_eq!(homes.find(sub, at(1)), Some(A), "that of the session");
        visit(&homes, sub.parent, B, 1);
        assert_eq!(homes.find(sub, at(1)), Some(B), "that of the agent");
        homes.visit(sub, A, |_| false, 64, at(2));
        assert_eq!(homes.find(sub, at(2)), Some(A), "its own");
        assert_eq!(home(&homes, sub.root, 2), Some(A));
    }

    #[test]
    fn longest_idle_sessions_make_room() {
        let homes = SessionHomes::default();
        for session in 0..9 {
            homes.visit(SessionIds::plain(session << 40), A, |_| false, 8, at(session));
        }
        assert_eq!((homes.len(), homes.evicted()), (8, 1));
        assert_eq!(home(&homes, 0, 9), None, "the oldest");
        assert_eq!(home(&homes, 1 << 40, 9), Some(A));
        homes.visit(SessionIds::plain(5), A, |_| false, 0, at(9));
        assert_eq!(homes.len(), 0, "a limit of 0 keeps none");
    }

    proptest! {
        #[test]
        fn entries_keep_what_they_are_made_of(tag in 0_u64..1 << TAG_BITS, backend in 0..u16::MAX, seconds in 0_u64..1 << SECOND_BITS) {
            let entry = HomeEntry { tag, backend: BackendId(backend), seconds };
            prop_assert_eq!(HomeEntry::of(entry.to_word()), Some(entry));
        }
    }
}
