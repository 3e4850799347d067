//! The reasons why the store of keys cannot do something.

use std::io;

use super::attributes::InvalidKey;

/// The reason why the store cannot do something.
#[derive(Debug, thiserror::Error)]
pub enum KeyStoreError {
    /// SQLite refused.
    #[error("{0}")]
    Sqlite(#[from] rusqlite::Error),
    /// The file cannot be opened.
    #[error("{0}")]
    File(#[from] io::Error),
    /// The file is a database of another program.
    #[error("it is the database of another program")]
    Foreign,
    /// A newer penstock wrote it.
    #[error("a newer penstock wrote it (version {version} of its tables)")]
    Newer { version: i64 },
    /// The file was deleted, replaced or written over.
    #[error("the file was deleted, replaced or written over")]
    Replaced,
    /// The system has no random numbers.
    #[error("the system gives no random numbers")]
    NoRandomness,
    /// There is no key with that id.
    #[error("there is no key '{}'", id.escape_debug())]
    Unknown { id: String },
    /// The key was revoked.
    #[error("key '{id}' was revoked")]
    Revoked { id: String },
    /// There are as many keys as there may be.
    #[error("there are {count} keys, and none of them is revoked (auth.max_keys)")]
    Full { count: usize },
    /// There are as many revoked tokens as there may be.
    #[error("there are {count} revoked tokens that have not expired (auth.max_revoked_tokens)")]
    TooManyRevoked { count: usize },
    /// The description of a key is not valid.
    #[error("{0}")]
    Invalid(#[from] InvalidKey),
}
