//! The owner of what a client stores on the backends.

use xxhash_rust::xxh3::xxh3_64;

/// The owner of a client's responses: a hash of its id. Without configured keys there is no hash,
/// and every client may read them.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct KeyOwner(Option<u64>);

impl KeyOwner {
    pub(crate) const ANYONE: Self = Self(None);

    /// Returns the owner for clients with that id. That of a key in the file is its name: a new key
    /// under the same name reads what the old one made.
    pub(crate) fn of(client_id: &str) -> Self {
        Self(Some(xxh3_64(client_id.as_bytes())))
    }

    /// Returns the owner with that hash, as written by another process.
    pub(crate) fn from_hash(hash: Option<u64>) -> Self {
        Self(hash)
    }

    /// Returns the hash that identifies the owner in another process as well.
    pub(crate) fn to_hash(self) -> Option<u64> {
        self.0
    }

    /// Returns whether these clients may read what was made for `made_by`.
    pub(crate) fn may_read(self, made_by: Self) -> bool {
        made_by == Self::ANYONE || self == made_by
    }
}
