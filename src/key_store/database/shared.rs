//! The versions of keys, for penstocks that share them: a trigger counts the changes of each,
//! whichever process makes them.

use ahash::HashMap;
use rusqlite::{OptionalExtension, Row, params};

use super::KeyDatabase;
use crate::key_store::error::KeyStoreError;
use crate::key_store::record::KeyRecord;
use crate::key_store::rows::read_all;

// The update comes first. An upsert would follow the conflict rule of the statement that fires the
// trigger, which is REPLACE.
const SCHEMA: &str = "
    CREATE TABLE key_versions (id TEXT PRIMARY KEY, version INTEGER NOT NULL);
    CREATE TRIGGER client_keys_changed AFTER INSERT ON client_keys BEGIN
        UPDATE key_versions SET version = version + 1 WHERE id = new.id;
        INSERT INTO key_versions (id, version)
            SELECT new.id, 1 WHERE NOT EXISTS (SELECT 1 FROM key_versions WHERE id = new.id);
    END;
    INSERT INTO key_versions (id, version) SELECT id, 1 FROM client_keys";

impl KeyDatabase {
    /// Counts the changes of keys from now on. A file that has taken the place of another may lack
    /// what that needs.
    pub(in crate::key_store) fn count_versions(&mut self) -> Result<(), KeyStoreError> {
        self.transact(|database| {
            let select = "SELECT count(*) FROM sqlite_schema WHERE name = 'key_versions'";
            let count: i64 = database.connection.query_row(select, [], |row| row.get(0))?;
            if count == 0 {
                database.connection.execute_batch(SCHEMA)?;
            }
            Ok(())
        })
    }

    /// Returns the version of every key.
    pub(in crate::key_store) fn versions(&self) -> Result<HashMap<String, u64>, KeyStoreError> {
        let mut select = self.connection.prepare("SELECT id, version FROM key_versions")?;
        let read = |row: &Row<'_>| Ok((row.get(0)?, to_version(row.get(1)?)));
        Ok(read_all(&mut select, read)?.whole.into_iter().collect())
    }

    pub(in crate::key_store) fn version(&self, id: &str) -> Result<u64, KeyStoreError> {
        let select = "SELECT version FROM key_versions WHERE id = ?1";
        let found = self.connection.query_row(select, [id], |row| Ok(row.get(0))).optional()?;
        Ok(found.and_then(Result::ok).map_or(0, to_version))
    }

    /// Replaces a key by one of another penstock.
    pub(in crate::key_store) fn adopt(
        &self,
        key: &KeyRecord,
        version: u64,
    ) -> Result<(), KeyStoreError> {
        self.update(key)?;
        let version = i64::try_from(version).unwrap_or(i64::MAX);
        let update = "UPDATE key_versions SET version = ?2 WHERE id = ?1";
        self.connection.execute(update, params![key.id, version])?;
        Ok(())
    }
}

pub(super) fn to_version(version: i64) -> u64 {
    u64::try_from(version).unwrap_or_default()
}
