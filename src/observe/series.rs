//! Series by their labels. Readers find an existing series without a lock: the map behind the
//! `ArcSwap` is immutable. A new series is added to a copy of the map, once per combination of
//! labels; the mutex prevents two writers from losing each other's copy.

use std::hash::Hash;
use std::sync::Arc;

use ahash::HashMap;
use arc_swap::ArcSwap;
use parking_lot::Mutex;

/// A map that only grows.
#[derive(Debug)]
pub(super) struct SeriesMap<K, V> {
    map: ArcSwap<HashMap<K, Arc<V>>>,
    writer: Mutex<()>,
}

impl<K, V> Default for SeriesMap<K, V> {
    fn default() -> Self {
        Self { map: ArcSwap::default(), writer: Mutex::default() }
    }
}

impl<K: Copy + Eq + Hash, V> SeriesMap<K, V> {
    /// Calls `work` with the series of `key`, which `make` creates on first use.
    // A borrow, not a clone: otherwise all threads would write to the cache line of its reference
    // count.
    pub(super) fn with<R>(
        &self,
        key: K,
        make: impl FnOnce() -> Arc<V>,
        work: impl FnOnce(&V) -> R,
    ) -> R {
        match self.map.load().get(&key) {
            Some(series) => work(series),
            None => work(&self.add(key, make)),
        }
    }

    /// Returns the series of `key`, for callers that keep it.
    pub(super) fn get_or_add(&self, key: K, make: impl FnOnce() -> Arc<V>) -> Arc<V> {
        let found = self.map.load().get(&key).cloned();
        found.unwrap_or_else(|| self.add(key, make))
    }

    /// Returns the number of series.
    pub(super) fn len(&self) -> usize {
        self.map.load().len()
    }

    /// Returns whether there is a series of `key`.
    pub(super) fn contains(&self, key: K) -> bool {
        self.map.load().contains_key(&key)
    }

    /// Calls `visit` with every series, in no particular order.
    pub(super) fn for_each(&self, mut visit: impl FnMut(K, &V)) {
        for (key, series) in self.map.load().iter() {
            visit(*key, series);
        }
    }

    fn add(&self, key: K, make: impl FnOnce() -> Arc<V>) -> Arc<V> {
        let _one_writer = self.writer.lock();
        let mut map = HashMap::clone(&self.map.load());
        // Another thread may have added it since the search without the lock.
        if let Some(series) = map.get(&key) {
            return Arc::clone(series);
        }
        let series = make();
        map.insert(key, Arc::clone(&series));
        self.map.store(Arc::new(map));
        series
    }

    /// Returns every series, in the order of their keys.
    pub(super) fn sorted(&self) -> Vec<(K, Arc<V>)>
    where
        K: Ord,
    {
        let map = self.map.load();
        let mut all: Vec<_> = map.iter().map(|(key, series)| (*key, Arc::clone(series))).collect();
        all.sort_unstable_by_key(|(key, _)| *key);
        all
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicU64, Ordering};

    use super::*;

    #[test]
    fn series_is_created_once() {
        let map: SeriesMap<u8, AtomicU64> = SeriesMap::default();
        for _ in 0..3 {
            map.with(7, Arc::default, |series| series.fetch_add(1, Ordering::Relaxed));
        }
        map.with(1, Arc::default, |_| ());
        let all = map.sorted();
        assert_eq!(all.iter().map(|(key, _)| *key).collect::<Vec<_>>(), [1, 7]);
        assert_eq!(map.get_or_add(7, Arc::default).load(Ordering::Relaxed), 3);
    }
}
