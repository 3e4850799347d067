//! The accounts of client addresses: a bounded table in shards. A full table evicts the least
//! recently used address, which starts with no usage when it returns. To profit from that, a client
//! must send from as many addresses as the table holds.

use std::fmt;
use std::net::IpAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

use ahash::HashMap;
use parking_lot::Mutex;
use penstock_config::KeyHash;

use super::account::ClientAccount;

const SHARDS: usize = 16;

/// A client address as limits see it: an IPv4 address, or the /64 network of an IPv6 address, since
/// one host commonly has all addresses of it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct AddressKey(u128);

impl fmt::LowerHex for AddressKey {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::LowerHex::fmt(&self.0, out)
    }
}

impl AddressKey {
    /// Returns the key of a token's client in a table for those alone.
    pub(super) fn of_token_client(id: &str) -> Self {
        // SHA-256, so that no subject can be chosen to share the account of another.
        let hash = KeyHash::of(id.as_bytes());
        let (half, _) = hash.as_bytes().split_at(16);
        Self(half.iter().fold(0, |number, byte| number << 8 | u128::from(*byte)))
    }
}

impl From<IpAddr> for AddressKey {
    fn from(address: IpAddr) -> Self {
        match address.to_canonical() {
            // No network has this form: the lower half of a network is 0.
            IpAddr::V4(address) => Self(address.to_ipv6_mapped().to_bits()),
            IpAddr::V6(address) => Self(address.to_bits() >> 64 << 64),
        }
    }
}

#[derive(Debug, Default)]
pub(super) struct ClientAddresses {
    shards: [Mutex<Shard>; SHARDS],
    hashes: ahash::RandomState,
    /// The most addresses per shard.
    capacity: AtomicUsize,
    evicted: AtomicU64,
}

impl ClientAddresses {
    /// Sets the capacity to `most` addresses, rounded up to a multiple of the number of shards.
    pub(super) fn set_capacity(&self, most: usize) {
        self.capacity.store(most.div_ceil(SHARDS).max(1), Ordering::Relaxed);
    }

    /// The account of an address, which becomes the most recently used one.
    pub(super) fn account(&self, key: AddressKey) -> Arc<ClientAccount> {
        let place = usize::try_from(self.hashes.hash_one(key) >> 60).unwrap_or_default();
        let Some(shard) = self.shards.get(place) else {
            debug_assert!(false, "four bits name a shard");
            return Arc::default();
        };
        let mut shard = shard.lock();
        let (account, evicted) = shard.account(key, self.capacity.load(Ordering::Relaxed));
        if evicted > 0 {
            self.evicted.fetch_add(evicted, Ordering::Relaxed);
        }
        account
    }

    pub(super) fn len(&self) -> usize {
        self.shards.iter().map(|shard| shard.lock().places.len()).sum()
    }

    pub(super) fn evicted(&self) -> u64 {
        self.evicted.load(Ordering::Relaxed)
    }
}

/// A list of entries in order of use, with the neighbours named by position: constant time for a
/// use and an eviction.
#[derive(Debug, Default)]
struct Shard {
    places: HashMap<AddressKey, usize>,
    entries: Vec<AddressEntry>,
    newest: Option<usize>,
    oldest: Option<usize>,
}

#[derive(Debug)]
struct AddressEntry {
    key: AddressKey,
    account: Arc<ClientAccount>,
    newer: Option<usize>,
    older: Option<usize>,
}

impl Shard {
    /// The account of an address, and the number of addresses evicted for it.
    fn account(&mut self, key: AddressKey, capacity: usize) -> (Arc<ClientAccount>, u64) {
        if let Some(place) = self.places.get(&key).copied() {
            self.unlink(place);
            self.link_newest(place);
            return (self.entries.get(place).map_or_else(Arc::default, |it| it.account.clone()), 0);
        }
        let mut evicted = 0;
        // A reload may have lowered the capacity: the table shrinks when the next address comes.
        while self.places.len() >= capacity {
            let Some(oldest) = self.oldest else { break };
            self.remove(oldest);
            evicted += 1;
        }
        let account = Arc::<ClientAccount>::default();
        let place = self.entries.len();
        let entry = AddressEntry { key, account: Arc::clone(&account), newer: None, older: None };
        self.entries.push(entry);
        self.places.insert(key, place);
        self.link_newest(place);
        (account, evicted)
    }

    /// Removes an entry; the last one takes its position.
    fn remove(&mut self, place: usize) {
        self.unlink(place);
        let last = self.entries.len().saturating_sub(1);
        let removed = self.entries.swap_remove(place);
        self.places.remove(&removed.key);
        if place == last {
            return;
        }
        let Some(moved) = self.entries.get(place) else { return };
        let (key, newer, older) = (moved.key, moved.newer, moved.older);
        self.places.insert(key, place);
        match newer.and_then(|newer| self.entries.get_mut(newer)) {
            Some(newer) => newer.older = Some(place),
            None => self.newest = Some(place),
        }
        match older.and_then(|older| self.entries.get_mut(older)) {
            Some(older) => older.newer = Some(place),
            None => self.oldest = Some(place),
        }
    }

    fn unlink(&mut self, place: usize) {
        let Some(entry) = self.entries.get_mut(place) else { return };
        let (newer, older) = (entry.newer.take(), entry.older.take());
        match newer.and_then(|newer| self.entries.get_mut(newer)) {
            Some(entry) => entry.older = older,
            None => self.newest = older,
        }
        match older.and_then(|older| self.entries.get_mut(older)) {
            Some(entry) => entry.newer = newer,
            None => self.oldest = newer,
        }
    }

    fn link_newest(&mut self, place: usize) {
        let second = self.newest.replace(place);
        if let Some(second) = second.and_then(|second| self.entries.get_mut(second)) {
            second.newer = Some(place);
        }
        if let Some(entry) = self.entries.get_mut(place) {
            entry.older = second;
        }
        self.oldest = self.oldest.or(Some(place));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn key(address: &str) -> AddressKey {
        address.parse::<IpAddr>().unwrap().into()
    }

    #[test]
    fn addresses_of_one_ipv6_network_share_a_key() {
        assert_eq!(key("2001:db8:0:1::1"), key("2001:db8:0:1:ffff::2"));
        assert_ne!(key("2001:db8:0:1::1"), key("2001:db8:0:2::1"));
        assert_ne!(key("192.0.2.1"), key("192.0.2.2"));
        assert_eq!(key("::ffff:192.0.2.1"), key("192.0.2.1"));
        assert_ne!(key("::1"), key("0.0.0.1"));
    }

    #[test]
    fn least_recently_used_address_makes_room() {
        let mut shard = Shard::default();
        let mut model: Vec<u128> = Vec::new();
        let mut random = 7_u64;
        for step in 0..20_000 {
            random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            let wanted = u128::from((random >> 33) % 40);
            let capacity = if step % 5000 < 2500 { 16 } else { 5 };
            let (_, evicted) = shard.account(AddressKey(wanted), capacity);
            let known = model.iter().position(|one| *one == wanted);
            known.map(|place| model.remove(place));
            let mut expected = 0;
            while known.is_none() && model.len() >= capacity {
                model.remove(0);
                expected += 1;
            }
            model.push(wanted);
            assert_eq!(evicted, expected, "step {step}");
            let (mut order, mut next) = (Vec::new(), shard.oldest);
            while let Some(place) = next {
                order.push(shard.entries[place].key.0);
                next = shard.entries[place].newer;
            }
            assert_eq!(order, model, "step {step}");
            assert_eq!(shard.places.len(), shard.entries.len());
        }
    }

    #[test]
    fn table_is_bounded() {
        let addresses = ClientAddresses::default();
        addresses.set_capacity(160);
        for number in 0..100_000_u32 {
            addresses.account(IpAddr::from(number.to_be_bytes()).into());
        }
        assert_eq!(addresses.len(), 160);
        assert_eq!(addresses.evicted(), 100_000 - 160);
    }
}
