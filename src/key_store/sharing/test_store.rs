//! Stores for the tests of sharing.

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
