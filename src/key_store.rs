//! Client keys that are made, changed, rotated and revoked at run time: an SQLite file that every
//! penstock of the host reads, of which requests see a table in memory. Only hashes are kept. A
//! file that can no longer be used fails no request: the keys that are known go on.

mod attributes;
mod database;
mod error;
mod names;
mod record;
mod revoked_tokens;
mod rows;
mod sharing;

pub use attributes::{InvalidKey, KeyAttributes};
pub use error::KeyStoreError;
pub use names::{UnknownName, unknown_names};
pub use record::{KeyRecord, MadeKey};
pub use revoked_tokens::{RevokedToken, RevokedTokens};
pub use rows::RowProblem;

use std::io;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Weak};
use std::time::Duration;

use arc_swap::{ArcSwap, Guard};
use parking_lot::Mutex;
use penstock_config::{AuthConfig, UnixTime};
use penstock_core::clients::KeyTable;
use serde_json::Value;

use database::KeyDatabase;
use revoked_tokens::StoredToken;
use rows::DamagedRow;

/// The pause between two looks of the watcher, each of which takes microseconds: a new key is known
/// at once.
const LOOK_INTERVAL: Duration = Duration::from_millis(100);

/// The most that a store holds.
#[derive(Debug, Clone, Copy)]
pub struct StoreLimits {
    pub keys: usize,
    pub revoked_tokens: usize,
}

impl StoreLimits {
    /// Returns the limits of a configuration.
    pub fn of(auth: &AuthConfig) -> Self {
        Self { keys: auth.max_keys, revoked_tokens: auth.max_revoked_tokens }
    }
}

/// The store of client keys.
#[derive(Debug)]
pub struct KeyStore {
    path: PathBuf,
    limits: StoreLimits,
    database: Mutex<KeyDatabase>,
    table: ArcSwap<KeyTable>,
    revoked: ArcSwap<RevokedTokens>,
    is_usable: AtomicBool,
    failures: AtomicU64,
    /// The number of times that the keys were read again.
    changes: AtomicU64,
    /// The rows that were left out when the file was last read.
    damaged: Mutex<Vec<DamagedRow>>,
    /// The number of records of each kind that other penstocks do not know; the highest number if
    /// none are shared.
    unshared: [AtomicUsize; sharing::KINDS],
}

impl KeyStore {
    /// Opens or creates the file, and reads its keys.
    ///
    /// # Errors
    /// When it cannot be used.
    pub fn open(path: &Path, limits: StoreLimits) -> Result<Self, KeyStoreError> {
        let store = Self {
            path: path.to_owned(),
            limits,
            database: Mutex::new(KeyDatabase::open(path)?),
            table: ArcSwap::default(),
            revoked: ArcSwap::default(),
            is_usable: AtomicBool::new(true),
            failures: AtomicU64::new(0),
            changes: AtomicU64::new(0),
            damaged: Mutex::default(),
            unshared: [(); sharing::KINDS].map(|()| AtomicUsize::new(usize::MAX)),
        };
        store.publish(&store.database.lock())?;
        Ok(store)
    }

    /// Checks that the file can be used. Creates none.
    ///
    /// # Errors
    /// When it cannot.
    pub fn check(path: &Path) -> Result<(), KeyStoreError> {
        database::check(path)
    }

    /// Reads the file whenever another process has changed it, as long as the store is used.
    ///
    /// # Errors
    /// When the thread cannot be started.
    pub fn watch(self: &Arc<Self>) -> std::io::Result<()> {
        start_watcher(self)
    }

    /// Returns the keys that requests are checked against.
    pub fn table(&self) -> Guard<Arc<KeyTable>> {
        self.table.load()
    }

    /// Returns the revoked tokens that requests are checked against.
    pub fn revoked(&self) -> Guard<Arc<RevokedTokens>> {
        self.revoked.load()
    }

    /// Returns whether the file could be used when it was last tried.
    pub fn is_usable(&self) -> bool {
        self.is_usable.load(Ordering::Relaxed)
    }

    /// Returns how often the file could not be used.
    pub fn failures(&self) -> u64 {
        self.failures.load(Ordering::Relaxed)
    }

    /// Returns the number of rows that were left out because they are damaged.
    pub fn damaged(&self) -> usize {
        self.damaged.lock().len()
    }

    /// Returns the damage of the file in words.
    pub fn damage(&self) -> Option<String> {
        let damaged = self.damaged.lock();
        let DamagedRow { id, problem } = damaged.first()?;
        let (count, id) = (damaged.len(), id.escape_debug());
        Some(format!(
            "rows left out because they are damaged: {count}, the first is '{id}': {problem}"
        ))
    }

    /// Returns every key, the newest first.
    ///
    /// # Errors
    /// When the file cannot be read.
    pub fn list(&self) -> Result<Vec<KeyRecord>, KeyStoreError> {
        Ok(self.database.lock().records()?.whole)
    }

    /// Returns the key with an id.
    ///
    /// # Errors
    /// When there is none.
    pub fn show(&self, id: &str) -> Result<KeyRecord, KeyStoreError> {
        self.database.lock().record(id)
    }

    /// Makes a key of a JSON object with its name and attributes.
    ///
    /// # Errors
    /// When the object is not valid, or the key cannot be written.
    pub fn create(&self, given: Value, now: UnixTime) -> Result<MadeKey, KeyStoreError> {
        let (name, attributes) = attributes::read_new(given, now)?;
        let made = MadeKey::new(name, attributes, now)?;
        self.write(|database| database.insert(&made.record, self.limits.keys))?;
        Ok(made)
    }

    /// Changes the attributes of a key that a JSON object has; null removes one.
    ///
    /// # Errors
    /// When the object is not valid, or the key unknown or revoked.
    pub fn change(&self, id: &str, changes: &Value) -> Result<KeyRecord, KeyStoreError> {
        self.write(|database| {
            let record = database.usable_record(id)?;
            let attributes = record.attributes.changed(changes)?;
            let record = KeyRecord { attributes, ..record };
            database.update(&record)?;
            Ok(record)
        })
    }

    /// Makes a new secret for a key; the old one stays valid for `overlap`.
    ///
    /// # Errors
    /// When the key is unknown or revoked, or cannot be written.
    pub fn rotate(
        &self,
        id: &str,
        overlap: Duration,
        now: UnixTime,
    ) -> Result<MadeKey, KeyStoreError> {
        self.write(|database| {
            let made = database.usable_record(id)?.rotated(now.after(overlap))?;
            database.update(&made.record)?;
            Ok(made)
        })
    }

    /// Revokes a key. One that was revoked before stays as it is.
    ///
    /// # Errors
    /// When the key is unknown, or cannot be written.
    pub fn revoke(&self, id: &str, now: UnixTime) -> Result<KeyRecord, KeyStoreError> {
        self.write(|database| {
            let record = database.record(id)?;
            // The first time stays: it says since when the key is worthless.
            let record = KeyRecord { revoked_at: record.revoked_at.or(Some(now)), ..record };
            database.update(&record)?;
            Ok(record)
        })
    }

    /// Returns every revoked token, the newest first.
    ///
    /// # Errors
    /// [`KeyStoreError`] if the file cannot be read.
    pub fn revoked_tokens(&self) -> Result<Vec<RevokedToken>, KeyStoreError> {
        let all = self.database.lock().revoked_tokens()?.whole.into_iter();
        Ok(all.map(|stored| stored.token).filter(RevokedToken::is_revoked).collect())
    }

    /// Revokes the token that a JSON object describes.
    ///
    /// # Errors
    /// [`KeyStoreError`] if the object is not valid, or the token cannot be written.
    pub fn revoke_token(&self, given: Value, now: UnixTime) -> Result<RevokedToken, KeyStoreError> {
        let token = RevokedToken::read(given, now)?;
        self.write(|database| {
            database.forget_tokens(now)?;
            match database.revoked_token(&token.jti, token.issuer.as_deref())? {
                Some(held) => {
                    let version = held.version.saturating_add(1);
                    let stored = held.replaced_by(StoredToken { token, version });
                    database.put_token(&stored)?;
                    Ok(stored.token)
                }
                None => {
                    let stored = StoredToken { token, version: 1 };
                    database.add_token(&stored, self.limits.revoked_tokens)?;
                    Ok(stored.token)
                }
            }
        })
    }

    /// Takes back the revocation of a `jti` for one issuer, or the one for all issuers.
    ///
    /// # Errors
    /// [`KeyStoreError`] if there is none, or if the change cannot be written.
    pub fn restore_token(
        &self,
        jti: &str,
        issuer: Option<&str>,
        now: UnixTime,
    ) -> Result<RevokedToken, KeyStoreError> {
        self.write(|database| {
            let held = database.revoked_token(jti, issuer)?;
            let Some(mut stored) = held.filter(|held| held.token.is_revoked()) else {
                let (jti, issuer) = (jti.to_owned(), issuer.map(str::to_owned));
                return Err(KeyStoreError::NotRevoked { jti, issuer });
            };
            // Kept as a row: replicas that share revocations would otherwise bring the old one
            // back.
            stored.token.restored_at = Some(now);
            stored.version = stored.version.saturating_add(1);
            database.put_token(&stored)?;
            Ok(stored.token)
        })
    }

    /// Changes the file, and with it at once the keys of this process.
    fn write<T>(
        &self,
        change: impl FnOnce(&mut KeyDatabase) -> Result<T, KeyStoreError>,
    ) -> Result<T, KeyStoreError> {
        let mut database = self.database.lock();
        // What is written to a file that was deleted or replaced would be lost.
        if !database.is_at(&self.path) {
            return Err(KeyStoreError::Replaced);
        }
        let done = database.transact(change)?;
        // Published under the lock: an older state must not replace a newer one.
        self.publish(&database)?;
        Ok(done)
    }

    fn publish(&self, database: &KeyDatabase) -> Result<(), KeyStoreError> {
        let (keys, tokens) = (database.records()?, database.revoked_tokens()?);
        self.table.store(Arc::new(record::to_table(&keys.whole)));
        self.revoked.store(Arc::new(RevokedTokens::new(&tokens.whole)));
        self.note_damaged(keys.damaged.into_iter().chain(tokens.damaged).collect());
        self.changes.fetch_add(1, Ordering::Release);
        Ok(())
    }

    fn note_damaged(&self, found: Vec<DamagedRow>) {
        let mut damaged = self.damaged.lock();
        // One line for rows that stay damaged.
        if let Some(first) = found.first().filter(|_| *damaged != found) {
            tracing::error!(
                path = %self.path.display(), count = found.len(), first = first.id, error = first.problem,
                "auth.store: damaged rows are left out; a key in one of them is refused"
            );
        }
        *damaged = found;
    }

    /// Reads the keys again if another process has changed the file, or put another in its place.
    fn refresh(&self) {
        let mut database = self.database.lock();
        let result = database.has_changed(&self.path).and_then(|has_changed| {
            if has_changed {
                self.publish(&database)?;
            }
            Ok(())
        });
        drop(database);
        match result {
            Ok(()) => {
                if !self.is_usable.swap(true, Ordering::Relaxed) {
                    tracing::info!(path = %self.path.display(), "the store of keys is back");
                }
            }
            Err(error) => {
                self.failures.fetch_add(1, Ordering::Relaxed);
                // One line for a failure that lasts.
                if self.is_usable.swap(false, Ordering::Relaxed) {
                    tracing::error!(
                        path = %self.path.display(), %error,
                        "auth.store cannot be read: the keys that are known stay in effect"
                    );
                }
            }
        }
    }
}

/// Starts the thread that sees the changes of other processes: the command line, other penstocks.
/// It ends with the store.
fn start_watcher(store: &Arc<KeyStore>) -> io::Result<()> {
    let store = Arc::downgrade(store);
    let thread = std::thread::Builder::new().name("client keys".to_owned());
    thread.spawn(move || watch(&store)).map(drop)
}

fn watch(store: &Weak<KeyStore>) {
    loop {
        std::thread::sleep(LOOK_INTERVAL);
        match store.upgrade() {
            Some(store) => store.refresh(),
            None => return,
        }
    }
}
