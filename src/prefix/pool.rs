//! What the prefix indexes of all models have in common: the memory they may take, the hashes of text
//! seen before, and how long their locks are held.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use parking_lot::Mutex;
use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};

use super::{HashCache, MemoryBudget};
use crate::units::ByteSize;

/// What is known of text that was hashed before.
#[derive(Debug, Default)]
struct Hashes {
    cache: Option<Arc<HashCache>>,
    /// What caches before this one counted.
    before: (u64, u64),
}

/// What the prefix indexes of all models have in common.
#[derive(Debug, Default)]
pub struct IndexPool {
    budget: Arc<MemoryBudget>,
    hashes: Mutex<Hashes>,
    measured: AtomicU64,
    held_nanos: AtomicU64,
    longest_nanos: AtomicU64,
}

impl Hashes {
    fn counts(&self) -> (u64, u64) {
        let (hits, misses) = self.cache.as_ref().map_or((0, 0), |cache| cache.counts());
        (self.before.0 + hits, self.before.1 + misses)
    }
}

impl IndexPool {
    /// The memory all of them may take.
    pub fn budget(&self) -> &Arc<MemoryBudget> {
        &self.budget
    }

    /// What is known of text that was hashed before, which may take so much memory from now on; it is
    /// forgotten where that is not what it was.
    pub(crate) fn hash_cache(&self, size: ByteSize) -> Option<Arc<HashCache>> {
        let size = size.to_usize();
        let mut hashes = self.hashes.lock();
        if !hashes.cache.as_ref().is_some_and(|cache| cache.is_of_size(size)) {
            let cache = HashCache::new(size, StdRng::from_os_rng().random()).map(Arc::new);
            if cache.is_none() && size > 0 {
                tracing::warn!(
                    "limits.hash_cache: there is no such room for it, so every prompt is hashed"
                );
            }
            *hashes = Hashes { before: hashes.counts(), cache };
        }
        hashes.cache.clone()
    }

    /// The most memory that may take, in bytes.
    pub fn hash_cache_size(&self) -> usize {
        self.hashes.lock().cache.as_ref().map_or(0, |cache| cache.size())
    }

    /// Pieces of prompts that were known since the start, and pieces that were not.
    pub fn hash_cache_counts(&self) -> (u64, u64) {
        self.hashes.lock().counts()
    }

    /// How long their locks were held: how often that was measured, which is every sixteenth time,
    /// all those times together, and the longest of them.
    pub fn locks_held(&self) -> (u64, Duration, Duration) {
        let nanos = |of: &AtomicU64| Duration::from_nanos(of.load(Ordering::Relaxed));
        let count = self.measured.load(Ordering::Relaxed);
        (count, nanos(&self.held_nanos), nanos(&self.longest_nanos))
    }

    pub(super) fn measure(&self, held: Duration) {
        let nanos = u64::try_from(held.as_nanos()).unwrap_or(u64::MAX);
        self.measured.fetch_add(1, Ordering::Relaxed);
        self.held_nanos.fetch_add(nanos, Ordering::Relaxed);
        self.longest_nanos.fetch_max(nanos, Ordering::Relaxed);
    }
}
