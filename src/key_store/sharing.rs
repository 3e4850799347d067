//! Keys and revoked tokens over several hosts: every penstock merges its file with what the server
//! of `shared_state` has, four times a second. The file is complete at any time, so keys work, and
//! change, while the server is not reached; the changes are sent later.

mod keys;
mod tokens;

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use tokio::task::spawn_blocking;
use tokio::time::{MissedTickBehavior, interval};

use super::KeyStore;
use super::error::KeyStoreError;
use crate::shared_state::{RecordExchange, SharedRecord, SharedState};

/// A change is in effect elsewhere after two of them and the look of the watcher.
const INTERVAL: Duration = Duration::from_millis(250);
/// The number of kinds of records.
pub(super) const KINDS: usize = 2;

#[derive(Debug, Clone, Copy)]
enum RecordKind {
    Keys,
    Tokens,
}

impl RecordKind {
    /// The name of its records in the server.
    fn name(self) -> &'static str {
        match self {
            Self::Keys => "keys",
            Self::Tokens => "revoked_tokens",
        }
    }
}

impl KeyStore {
    /// The number of keys and revoked tokens whose newest version the server of `shared_state`
    /// lacks; `None` if they are not shared.
    pub fn unshared(&self) -> Option<usize> {
        let counts = self.unshared.iter().map(|count| count.load(Ordering::Relaxed));
        counts.map(|count| (count != usize::MAX).then_some(count)).sum()
    }

    /// Merges keys and revoked tokens with those of the server; never returns.
    pub async fn share(self: Arc<Self>, shared: Arc<SharedState>) {
        let [keys, tokens] = &self.unshared;
        tokio::join!(
            self.share_kind(RecordKind::Keys, &shared, keys),
            self.share_kind(RecordKind::Tokens, &shared, tokens),
        );
    }

    async fn share_kind(
        self: &Arc<Self>,
        kind: RecordKind,
        shared: &Arc<SharedState>,
        unshared: &AtomicUsize,
    ) {
        let mut exchange = RecordExchange::new(Arc::clone(shared), kind.name());
        let mut own: Vec<SharedRecord> = Vec::new();
        let mut seen = None;
        let mut ticks = interval(INTERVAL);
        ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            ticks.tick().await;
            let changes = self.changes.load(Ordering::Acquire);
            if seen != Some(changes) {
                let store = Arc::clone(self);
                let read = spawn_blocking(move || store.shared_records(kind)).await;
                // After a failure the file is read again; the watcher logs that it fails.
                let Ok(Ok(records)) = read else { continue };
                (own, seen) = (records, Some(changes));
                exchange.forget_others(&own);
            }
            let before = exchange.identity().to_owned();
            let changed = exchange.exchange(&own).await;
            if exchange.identity() != before {
                // The server has lost what it had: it lacks records that it knew.
                seen = None;
            }
            if let Some(changed) = changed.filter(|changed| !changed.is_empty()) {
                let store = Arc::clone(self);
                let adopted = spawn_blocking(move || store.adopt(kind, &changed)).await;
                if !matches!(adopted, Ok(Ok(()))) {
                    // They come again, with everything else.
                    exchange.forget();
                }
            }
            // Only these are compared at the next tick: there may be many records.
            own.retain(|record| !exchange.has(record));
            unshared.store(own.len(), Ordering::Relaxed);
        }
    }

    fn shared_records(&self, kind: RecordKind) -> Result<Vec<SharedRecord>, KeyStoreError> {
        match kind {
            RecordKind::Keys => self.shared_keys(),
            RecordKind::Tokens => self.shared_tokens(),
        }
    }

    /// Takes over the records of other penstocks that are newer than those here.
    fn adopt(&self, kind: RecordKind, records: &[SharedRecord]) -> Result<(), KeyStoreError> {
        match kind {
            RecordKind::Keys => self.adopt_keys(records),
            RecordKind::Tokens => self.adopt_tokens(records),
        }
    }
}

/// Returns the records that are new, or newer than those that are held.
fn newer_than<'a>(held: &[SharedRecord], records: &'a [SharedRecord]) -> Vec<&'a SharedRecord> {
    let held: ahash::HashMap<&str, &SharedRecord> =
        held.iter().map(|record| (record.id.as_str(), record)).collect();
    let is_new = |record: &&SharedRecord| {
        held.get(&*record.id).is_none_or(|held| record.is_newer_than(held))
    };
    records.iter().filter(is_new).collect()
}

/// Stores for the tests of sharing.
#[cfg(test)]
mod test_store {
    use penstock_config::UnixTime;

    use crate::key_store::{KeyStore, StoreLimits};

    pub(super) const NOW: UnixTime = UnixTime(1_800_000_000);

    /// Returns an empty store of three keys and three revoked tokens.
    pub(super) fn store(name: &str) -> KeyStore {
        let folder = std::env::temp_dir().join(format!("penstock-sharing-{}", std::process::id()));
        std::fs::create_dir_all(&folder).unwrap();
        let path = folder.join(name);
        let _absent = std::fs::remove_file(&path);
        KeyStore::open(&path, StoreLimits { keys: 3, revoked_tokens: 3 }).unwrap()
    }
}
