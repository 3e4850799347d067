//! Clients by the hash of their key: the cost of a look-up does not grow with the number of keys.

use std::collections::hash_map::Entry;
use std::hash::{BuildHasherDefault, Hasher};
use std::sync::{Arc, OnceLock};

use ahash::HashMap;

use penstock_config::{ClientKey, KeyHash, UnixTime};

use super::ClientIdentity;

/// The keys of one source.
#[derive(Debug, Clone, Default)]
pub struct KeyTable {
    keys: std::collections::HashMap<KeyHash, KnownKey, BuildHasherDefault<FirstBytes>>,
    /// The keys by the names and ids of their clients; made when a certificate first names one.
    by_name: OnceLock<HashMap<Arc<str>, Vec<KeyHash>>>,
}

/// A key, which may no longer be valid: its client gets a better message than that of a stranger.
#[derive(Debug, Clone)]
pub struct KnownKey {
    pub client: Arc<ClientIdentity>,
    pub validity: Validity,
}

/// The time in which a key is valid.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Validity {
    pub not_before: Option<UnixTime>,
    pub expires_at: Option<UnixTime>,
    pub is_revoked: bool,
}

/// The reason why a known key is refused.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum KeyRefusal {
    Revoked,
    NotYetValid(UnixTime),
    Expired(UnixTime),
}

impl Validity {
    /// Returns why a key is not valid now. `now` is called only if the time matters: most keys
    /// are valid until they are revoked.
    ///
    /// # Errors
    /// When it is not valid.
    pub fn check(&self, now: impl FnOnce() -> UnixTime) -> Result<(), KeyRefusal> {
        if self.is_revoked {
            return Err(KeyRefusal::Revoked);
        }
        if self.not_before.is_none() && self.expires_at.is_none() {
            return Ok(());
        }
        let now = now();
        match (self.not_before, self.expires_at) {
            (Some(from), _) if now < from => Err(KeyRefusal::NotYetValid(from)),
            (_, Some(until)) if now >= until => Err(KeyRefusal::Expired(until)),
            _ => Ok(()),
        }
    }
}

impl KeyTable {
    /// Returns the table of the keys in a configuration.
    pub fn of_config(keys: &[ClientKey]) -> Self {
        let mut table = Self::default();
        for key in keys {
            let validity = Validity {
                not_before: key.not_before,
                expires_at: key.expires_at,
                is_revoked: false,
            };
            let client = Arc::new(ClientIdentity::of_key(key));
            table.insert(key.to_hash(), KnownKey { client, validity });
        }
        table
    }

    /// Adds a key; the first one with a hash counts.
    pub fn insert(&mut self, hash: KeyHash, key: KnownKey) {
        if let Entry::Vacant(place) = self.keys.entry(hash) {
            place.insert(key);
        }
    }

    pub fn find(&self, hash: &KeyHash) -> Option<&KnownKey> {
        self.keys.get(hash)
    }

    /// Returns the client whose name or id this is. Of keys that share the name those count that
    /// are valid now; if they belong to several clients, the name is that of none.
    ///
    /// # Errors
    /// [`KeyRefusal`] if no key of that name is valid now.
    pub fn find_named(
        &self,
        name: &str,
        now: UnixTime,
    ) -> Option<Result<&Arc<ClientIdentity>, KeyRefusal>> {
        let by_name = self.by_name.get_or_init(|| self.index());
        let keys = by_name.get(name)?.iter().filter_map(|hash| self.keys.get(hash));
        let (mut valid, mut refusal) = (None::<&Arc<ClientIdentity>>, None);
        for key in keys {
            match (key.validity.check(|| now), valid) {
                (Err(error), _) => refusal = Some(error),
                // Two keys of the file with one name may allow different things.
                (Ok(()), Some(other)) if **other != *key.client => return None,
                (Ok(()), _) => valid = Some(&key.client),
            }
        }
        valid.map(Ok).or_else(|| refusal.map(Err))
    }

    fn index(&self) -> HashMap<Arc<str>, Vec<KeyHash>> {
        let mut index: HashMap<Arc<str>, Vec<KeyHash>> = HashMap::default();
        for (hash, key) in &self.keys {
            let (name, id) = (&key.client.name, &key.client.id);
            index.entry(Arc::clone(name)).or_default().push(*hash);
            // The id of a key in the file is its name.
            if id != name {
                index.entry(Arc::clone(id)).or_default().push(*hash);
            }
        }
        index
    }

    /// Returns every key, in no order.
    pub fn iter(&self) -> impl Iterator<Item = &KnownKey> {
        self.keys.values()
    }

    /// Returns the number of keys.
    pub fn len(&self) -> usize {
        self.keys.len()
    }

    /// Returns whether there is no key.
    pub fn is_empty(&self) -> bool {
        self.keys.is_empty()
    }
}

/// Hashes what is a hash already: keeps its first bytes.
#[derive(Debug, Default)]
struct FirstBytes(u64);

impl Hasher for FirstBytes {
    fn finish(&self) -> u64 {
        self.0
    }

    fn write(&mut self, bytes: &[u8]) {
        debug_assert!(false, "a KeyHash writes one number, not {} bytes", bytes.len());
        for byte in bytes {
            self.0 = self.0.rotate_left(8) ^ u64::from(*byte);
        }
    }

    fn write_u64(&mut self, number: u64) {
        self.0 = number;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(validity: Validity, now: u64) -> Result<(), KeyRefusal> {
        validity.check(|| UnixTime(now))
    }

    #[test]
    fn keys_are_valid_from_their_start_until_they_expire() {
        let (from, until) = (UnixTime(10), UnixTime(20));
        let both = Validity { not_before: Some(from), expires_at: Some(until), is_revoked: false };
        assert_eq!(check(both, 9), Err(KeyRefusal::NotYetValid(from)));
        assert_eq!((check(both, 10), check(both, 19)), (Ok(()), Ok(())));
        assert_eq!(check(both, 20), Err(KeyRefusal::Expired(until)));
        let revoked = Validity { is_revoked: true, ..both };
        assert_eq!(check(revoked, 15), Err(KeyRefusal::Revoked));
        let unbounded = Validity::default();
        assert_eq!(unbounded.check(|| panic!("the time does not matter")), Ok(()));
    }

    #[test]
    fn keys_are_found_by_their_hash() {
        let mut table = KeyTable::default();
        for name in ["a", "b", "a"] {
            let client = Arc::new(ClientIdentity::new("id", name));
            let key = KnownKey { client, validity: Validity::default() };
            table.insert(KeyHash::of(name.as_bytes()), key);
        }
        let find = |key: &str| Some(&*table.find(&KeyHash::of(key.as_bytes()))?.client.name);
        assert_eq!((find("a"), find("b"), find("c")), (Some("a"), Some("b"), None));
        assert_eq!(table.len(), 2);
    }
}
