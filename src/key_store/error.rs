//! The reasons why the store of keys cannot do something.

use super::attributes::InvalidKey;
use super::rows::RowProblem;
use crate::sqlite::SqliteError;

/// The reason why the store cannot do something.
#[derive(Debug, thiserror::Error)]
pub enum KeyStoreError {
    /// The file cannot be used.
    #[error("{0}")]
    File(#[from] SqliteError),
    /// The file was deleted, replaced or written over.
    #[error("the file was deleted, replaced or written over")]
    Replaced,
    /// The system has no random numbers.
    #[error("the system gives no random numbers")]
    NoRandomness,
    /// There is no key with that id.
    #[error("there is no key '{}'", id.escape_debug())]
    Unknown { id: String },
    /// The row of a key is damaged.
    #[error(
        "the row of key '{}' is damaged, so that the key is refused: {problem}",
        id.escape_debug()
    )]
    Damaged { id: String, problem: RowProblem },
    /// The token is not revoked.
    #[error(
        "no revocation of '{}' is in force for {}",
        jti.escape_debug(),
        issuer.as_ref().map_or("every issuer".to_owned(), |one| format!("'{}'", one.escape_debug()))
    )]
    NotRevoked { jti: String, issuer: Option<String> },
    #[error("key '{id}' was revoked")]
    Revoked { id: String },
    /// There are as many keys as there may be.
    #[error("there are {count} keys, and none of them is revoked (auth.max_keys)")]
    Full { count: usize },
    /// A key of another penstock has no hash.
    #[error("key '{}' has no hash", id.escape_debug())]
    NoHash { id: String },
    /// There are as many revoked tokens as there may be.
    #[error("there are {count} revoked tokens that have not expired (auth.max_revoked_tokens)")]
    TooManyRevoked { count: usize },
    /// The description of a key is not valid.
    #[error("{0}")]
    Invalid(#[from] InvalidKey),
}

impl From<rusqlite::Error> for KeyStoreError {
    fn from(error: rusqlite::Error) -> Self {
        Self::File(error.into())
    }
}

impl From<std::io::Error> for KeyStoreError {
    fn from(error: std::io::Error) -> Self {
        Self::File(error.into())
    }
}
