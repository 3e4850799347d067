//! The SQLite file of client keys. Several processes use it: a penstock that serves, its successor,
//! the command line.

mod shared;
mod tokens;

use std::path::Path;

use penstock_config::{KeyHash, UnixTime};
use rusqlite::{Connection, OptionalExtension, Row, params};

use super::attributes::{InvalidKey, KeyAttributes};
use super::error::KeyStoreError;
use super::record::{KeyRecord, StoredSecret};
use super::rows::{RowProblem, TableRows, read_all};
use crate::sqlite::{FileKind, OpenFile, foreign_writes};

const SCHEMA: &str = "
    CREATE TABLE client_keys (
        id TEXT PRIMARY KEY,
        name TEXT NOT NULL,
        hash BLOB NOT NULL UNIQUE,
        last_four TEXT NOT NULL,
        attributes TEXT NOT NULL,
        created_at INTEGER NOT NULL,
        revoked_at INTEGER,
        previous_hash BLOB,
        previous_last_four TEXT,
        previous_until INTEGER
    )";
/// The file, whose application id is "penk". Only its owner may see which keys there are.
const FILE: FileKind = FileKind {
    application_id: 0x7065_6e6b,
    mode: 0o600,
    migrations: &[SCHEMA, tokens::SCHEMA, tokens::WITH_VERSIONS],
};
const COLUMNS: &str = "id, name, hash, last_four, attributes, created_at, revoked_at, \
                       previous_hash, previous_last_four, previous_until";

/// An open file.
#[derive(Debug)]
pub(super) struct KeyDatabase {
    // Dropped before the file: closing a descriptor releases the locks that the process has on a
    // file.
    connection: Connection,
    file: OpenFile,
    /// The number that changes with the writes of other processes, when the keys were last read.
    version: i64,
}

/// Checks that a file can be used, or made.
pub(super) fn check(path: &Path) -> Result<(), KeyStoreError> {
    if path.exists() {
        return KeyDatabase::open(path).map(drop);
    }
    let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty());
    Ok(std::fs::metadata(folder.unwrap_or(Path::new("."))).map(drop)?)
}

impl KeyDatabase {
    /// Opens or creates the file.
    pub(super) fn open(path: &Path) -> Result<Self, KeyStoreError> {
        let (connection, file) = FILE.open(path)?;
        // A key whose secret was shown must not be lost with the power.
        connection.pragma_update(None, "synchronous", "full")?;
        let version = foreign_writes(&connection)?;
        Ok(Self { connection, file, version })
    }

    /// Returns whether the path leads to the open file, and that is still a database.
    pub(super) fn is_at(&self, path: &Path) -> bool {
        self.file.is_at(path) && self.file.is_intact(&FILE).unwrap_or(false)
    }

    /// Returns whether another process has changed the keys since the last call. Opens the file
    /// that another one has put in the place of this.
    pub(super) fn has_changed(&mut self, path: &Path) -> Result<bool, KeyStoreError> {
        if !self.is_at(path) {
            std::fs::metadata(path)?;
            if self.file.is_at(path) {
                return Err(KeyStoreError::Replaced);
            }
            // Read before it counts: what is known goes on until there is something else.
            let other = Self::open(path)?;
            other.records()?;
            other.revoked_tokens()?;
            *self = other;
            return Ok(true);
        }
        let version = foreign_writes(&self.connection)?;
        let has_changed = version != self.version;
        if has_changed {
            // Read first: after a failure the next call must not find everything unchanged.
            self.records()?;
            self.revoked_tokens()?;
            self.version = version;
        }
        Ok(has_changed)
    }

    /// Does something in one transaction.
    pub(super) fn transact<T>(
        &mut self,
        change: impl FnOnce(&mut Self) -> Result<T, KeyStoreError>,
    ) -> Result<T, KeyStoreError> {
        // Immediate: SQLite cannot wait for a lock that is taken later in the transaction.
        self.connection.execute_batch("BEGIN IMMEDIATE")?;
        let done = change(self).and_then(|done| {
            self.connection.execute_batch("COMMIT")?;
            Ok(done)
        });
        // SQLite may have rolled back by itself, as after a full disk.
        if done.is_err() && !self.connection.is_autocommit() {
            self.connection.execute_batch("ROLLBACK")?;
        }
        done
    }

    /// Returns every key, the newest first.
    pub(super) fn records(&self) -> Result<TableRows<KeyRecord>, KeyStoreError> {
        let select =
            format!("SELECT {COLUMNS} FROM client_keys ORDER BY created_at DESC, rowid DESC");
        Ok(read_all(&mut self.connection.prepare(&select)?, read)?)
    }

    pub(super) fn record(&self, id: &str) -> Result<KeyRecord, KeyStoreError> {
        let select = format!("SELECT {COLUMNS} FROM client_keys WHERE id = ?1");
        let found = self.connection.query_row(&select, [id], |row| Ok(read(row))).optional()?;
        match found {
            Some(read) => {
                read.map_err(|problem| KeyStoreError::Damaged { id: id.to_owned(), problem })
            }
            None => Err(KeyStoreError::Unknown { id: id.to_owned() }),
        }
    }

    /// Returns the key with an id, if it was not revoked.
    pub(super) fn usable_record(&self, id: &str) -> Result<KeyRecord, KeyStoreError> {
        let record = self.record(id)?;
        match record.revoked_at {
            // A change would look as if it gave the key back.
            Some(_) => Err(KeyStoreError::Revoked { id: record.id }),
            None => Ok(record),
        }
    }

    /// Adds a key. In a full store it takes the place of the one that was revoked first.
    pub(super) fn insert(&self, key: &KeyRecord, limit: usize) -> Result<(), KeyStoreError> {
        let count = self.count()?;
        // A revoked key would be refused without its row, too; only its reason is lost.
        if count >= limit {
            let delete = "DELETE FROM client_keys WHERE id = (SELECT id FROM client_keys
                WHERE revoked_at IS NOT NULL ORDER BY revoked_at LIMIT 1)";
            if self.connection.execute(delete, [])? == 0 {
                return Err(KeyStoreError::Full { count });
            }
        }
        self.put("INSERT", key)
    }

    /// Returns the number of keys.
    pub(super) fn count(&self) -> Result<usize, KeyStoreError> {
        let select = "SELECT count(*) FROM client_keys";
        let count: i64 = self.connection.query_row(select, [], |row| row.get(0))?;
        Ok(usize::try_from(count).unwrap_or_default())
    }

    pub(super) fn update(&self, key: &KeyRecord) -> Result<(), KeyStoreError> {
        self.put("REPLACE", key)
    }

    fn put(&self, verb: &str, key: &KeyRecord) -> Result<(), KeyStoreError> {
        let put = format!(
            "{verb} INTO client_keys ({COLUMNS}) VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10)"
        );
        let attributes = serde_json::to_string(&key.attributes).map_err(InvalidKey::Json)?;
        let previous = key.previous.as_ref();
        let row = params![
            key.id,
            key.name,
            key.secret.hash.as_bytes(),
            key.secret.last_four,
            attributes,
            seconds(key.created_at),
            key.revoked_at.map(seconds),
            previous.map(|(secret, _)| secret.hash.as_bytes()),
            previous.map(|(secret, _)| &secret.last_four),
            previous.map(|(_, until)| seconds(*until)),
        ];
        self.connection.execute(&put, row)?;
        Ok(())
    }
}

fn read(row: &Row<'_>) -> Result<KeyRecord, RowProblem> {
    let time = |column| row.get(column).map(|seconds: Option<i64>| seconds.map(to_time));
    let attributes = KeyAttributes::stored(&row.get::<_, String>(4)?)?;
    let previous: Option<[u8; 32]> = row.get(7)?;
    let previous = match (previous, time(9)?) {
        (Some(hash), Some(until)) => {
            let secret = StoredSecret { hash: KeyHash::from_bytes(hash), last_four: row.get(8)? };
            Some((secret, until))
        }
        _ => None,
    };
    Ok(KeyRecord {
        id: row.get(0)?,
        name: row.get(1)?,
        secret: StoredSecret { hash: KeyHash::from_bytes(row.get(2)?), last_four: row.get(3)? },
        previous,
        attributes,
        created_at: to_time(row.get(5)?),
        revoked_at: time(6)?,
    })
}

/// Returns a time that was read from the file.
fn to_time(seconds: i64) -> UnixTime {
    UnixTime(u64::try_from(seconds).unwrap_or_default())
}

/// Returns a time to write to the file.
fn seconds(time: UnixTime) -> i64 {
    i64::try_from(time.0).unwrap_or(i64::MAX)
}
