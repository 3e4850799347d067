//! Keys as penstocks share them.

use std::sync::atomic::Ordering;

use penstock_config::{KeyHash, UnixTime};
use serde::{Deserialize, Serialize};

use crate::key_store::KeyStore;
use crate::key_store::attributes::{InvalidKey, KeyAttributes};
use crate::key_store::database::KeyDatabase;
use crate::key_store::error::KeyStoreError;
use crate::key_store::record::{KeyRecord, StoredSecret};
use crate::key_store::sharing::newer_than;
use crate::shared_state::SharedRecord;

/// A key as penstocks share it: the fields of the file, without a secret.
#[derive(Debug, Serialize, Deserialize)]
struct SharedKey {
    name: String,
    secret: SharedSecret,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    previous: Option<(SharedSecret, UnixTime)>,
    attributes: KeyAttributes,
    created_at: UnixTime,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    revoked_at: Option<UnixTime>,
}

#[derive(Debug, Serialize, Deserialize)]
struct SharedSecret {
    hash: String,
    last_four: String,
}

impl SharedSecret {
    fn of(secret: &StoredSecret) -> Self {
        Self { hash: secret.hash.to_text(), last_four: secret.last_four.clone() }
    }

    fn to_stored(&self) -> Option<StoredSecret> {
        Some(StoredSecret { hash: KeyHash::parse(&self.hash)?, last_four: self.last_four.clone() })
    }
}

fn to_shared(key: &KeyRecord, version: u64) -> Result<SharedRecord, KeyStoreError> {
    let previous = key.previous.as_ref();
    let shared = SharedKey {
        name: key.name.clone(),
        secret: SharedSecret::of(&key.secret),
        previous: previous.map(|(secret, until)| (SharedSecret::of(secret), *until)),
        attributes: key.attributes.clone(),
        created_at: key.created_at,
        revoked_at: key.revoked_at,
    };
    Ok(SharedRecord {
        id: key.id.clone(),
        is_final: key.revoked_at.is_some(),
        version,
        ends_at: None,
        text: serde_json::to_string(&shared).map_err(InvalidKey::Json)?,
    })
}

fn to_key(record: &SharedRecord) -> Result<KeyRecord, KeyStoreError> {
    let shared: SharedKey = serde_json::from_str(&record.text).map_err(InvalidKey::Json)?;
    let no_hash = || KeyStoreError::NoHash { id: record.id.clone() };
    let previous = match &shared.previous {
        Some((secret, until)) => Some((secret.to_stored().ok_or_else(no_hash)?, *until)),
        None => None,
    };
    Ok(KeyRecord {
        id: record.id.clone(),
        name: shared.name,
        secret: shared.secret.to_stored().ok_or_else(no_hash)?,
        previous,
        attributes: shared.attributes.checked()?,
        created_at: shared.created_at,
        revoked_at: shared.revoked_at,
    })
}

impl KeyStore {
    /// Returns every key of the file.
    pub(super) fn shared_keys(&self) -> Result<Vec<SharedRecord>, KeyStoreError> {
        let mut database = self.database.lock();
        database.count_versions()?;
        let versions = database.versions()?;
        let keys = database.records()?.whole;
        drop(database);
        let version = |key: &KeyRecord| versions.get(&key.id).copied().unwrap_or(1);
        keys.iter().map(|key| to_shared(key, version(key))).collect()
    }

    /// Takes over the keys of other penstocks that are newer than those here.
    pub(super) fn adopt_keys(&self, records: &[SharedRecord]) -> Result<(), KeyStoreError> {
        let new = newer_than(&self.shared_keys()?, records);
        if new.is_empty() {
            return Ok(());
        }
        self.write(|database| new.iter().try_for_each(|record| self.adopt_key(database, record)))
    }

    fn adopt_key(
        &self,
        database: &KeyDatabase,
        record: &SharedRecord,
    ) -> Result<(), KeyStoreError> {
        let key = match to_key(record) {
            Ok(key) => key,
            Err(error) => {
                // As in the file: it might restrict its key in a way that is not known here.
                let id = &record.id;
                tracing::error!(
                    id, %error,
                    "shared_state: a key is left as it was, its record is not understood"
                );
                return Ok(());
            }
        };
        match database.record(&record.id) {
            Ok(held) => {
                // Another process may have changed the file since it was compared.
                let held = to_shared(&held, database.version(&record.id)?)?;
                if record.is_newer_than(&held) {
                    database.adopt(&key, record.version)?;
                }
                Ok(())
            }
            // What it allowed is not known here, but in a later change or a revocation.
            Err(KeyStoreError::Damaged { .. }) => {
                if record.is_final || record.version > database.version(&record.id)? {
                    database.adopt(&key, record.version)?;
                }
                Ok(())
            }
            // A full store has forgotten it, or never needs to know it.
            Err(KeyStoreError::Unknown { .. }) if record.is_final && self.is_full(database)? => {
                Ok(())
            }
            Err(KeyStoreError::Unknown { .. }) => match database.insert(&key, self.limits.keys) {
                Ok(()) => database.adopt(&key, record.version),
                Err(error @ KeyStoreError::Full { .. }) => {
                    self.failures.fetch_add(1, Ordering::Relaxed);
                    tracing::error!(id = record.id, %error, "shared_state: a key is left out");
                    Ok(())
                }
                Err(error) => Err(error),
            },
            Err(error) => Err(error),
        }
    }

    fn is_full(&self, database: &KeyDatabase) -> Result<bool, KeyStoreError> {
        Ok(database.count()? >= self.limits.keys)
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::key_store::sharing::test_store::{NOW, store};
    use serde_json::json;

    /// Sends everything of one store to the other.
    fn send(from: &KeyStore, to: &KeyStore) {
        to.adopt_keys(&from.shared_keys().unwrap()).unwrap();
    }

    #[test]
    fn newest_change_wins_and_revoked_keys_stay_revoked() {
        let (one, other) = (store("a.db"), store("b.db"));
        let id = one.create(json!({"name": "ann", "team": "red"}), NOW).unwrap().record.id;
        send(&one, &other);
        assert_eq!(other.show(&id).unwrap(), one.show(&id).unwrap());
        other.change(&id, &json!({"team": "blue"})).unwrap();
        other.rotate(&id, Duration::from_secs(60), NOW).unwrap();
        one.change(&id, &json!({"team": "green"})).unwrap();
        let two_changes = other.show(&id).unwrap();
        send(&one, &other);
        assert_eq!(other.show(&id).unwrap(), two_changes, "one change is older than two");
        send(&other, &one);
        assert_eq!(one.show(&id).unwrap(), two_changes);
        one.revoke(&id, NOW).unwrap();
        let revoked = one.shared_keys().unwrap();
        (0..5).for_each(|_| drop(other.change(&id, &json!({"team": "red"})).unwrap()));
        send(&other, &one);
        assert!(one.show(&id).unwrap().revoked_at.is_some(), "a later version does not revive it");
        other.adopt_keys(&revoked).unwrap();
        assert!(matches!(other.change(&id, &json!({})), Err(KeyStoreError::Revoked { .. })));
        assert_eq!(other.table().len(), one.table().len());
    }

    #[test]
    fn changes_at_the_same_time_end_the_same_everywhere() {
        let (one, other) = (store("c.db"), store("d.db"));
        let id = one.create(json!({"name": "ann"}), NOW).unwrap().record.id;
        send(&one, &other);
        one.change(&id, &json!({"team": "red"})).unwrap();
        other.change(&id, &json!({"team": "blue"})).unwrap();
        send(&one, &other);
        send(&other, &one);
        assert_eq!(one.show(&id).unwrap(), other.show(&id).unwrap());
    }

    #[test]
    fn full_store_takes_over_no_more_than_it_holds() {
        let (one, other) = (store("e.db"), store("f.db"));
        for number in 0..3 {
            one.create(json!({"name": format!("a{number}")}), NOW).unwrap();
            other.create(json!({"name": format!("b{number}")}), NOW).unwrap();
        }
        send(&one, &other);
        assert_eq!((other.list().unwrap().len(), other.failures()), (3, 3));
        let unreadable = SharedRecord {
            id: "key_x".to_owned(),
            is_final: false,
            version: 1,
            ends_at: None,
            text: r#"{"name": "x", "attributes": {"unknown": 1}}"#.to_owned(),
        };
        other.adopt_keys(&[unreadable]).unwrap();
        assert_eq!(other.list().unwrap().len(), 3);
    }
}
