//! The data plane's randomness: seeds, identifiers and hashes of clients, all from one counter.

use std::hash::{BuildHasher, Hash, Hasher};
use std::net::IpAddr;
use std::sync::atomic::{AtomicU64, Ordering};

use http::HeaderMap;
use http::header::{HeaderValue, SEC_WEBSOCKET_PROTOCOL};
use penstock_api::hex;
use penstock_api::mix::{GOLDEN_GAMMA, mix};

use crate::upstream::headers::is_key;

/// A sequence of random numbers shared by all threads: SplitMix64 (Steele, Lea, Flood 2014), whose
/// whole state is one counter.
pub(crate) struct Seeds {
    counter: AtomicU64,
    hashes: ahash::RandomState,
}

impl Seeds {
    pub(crate) fn new(seed: u64) -> Self {
        Self { counter: AtomicU64::new(seed), hashes: ahash::RandomState::new() }
    }

    pub(crate) fn next(&self) -> u64 {
        // Relaxed: the numbers of two threads need only differ.
        mix(self.counter.fetch_add(GOLDEN_GAMMA, Ordering::Relaxed))
    }

    /// The next number as a share in 0..1.
    pub(crate) fn next_share(&self) -> f64 {
        to_share(self.next())
    }

    /// A request id: 32 hexadecimal digits.
    pub(crate) fn next_request_id(&self) -> HeaderValue {
        let mut id = [0; 32];
        let (first, second) = id.split_at_mut(16);
        hex::write(&self.next().to_be_bytes(), first);
        hex::write(&self.next().to_be_bytes(), second);
        HeaderValue::from_bytes(&id).unwrap_or(HeaderValue::from_static("-"))
    }

    /// Identifies a client by its id, else by its address: the circuit breaker
    /// counts how many clients saw a fault. An IPv6 address counts by its network: one host
    /// commonly has all addresses of a /64, and must not pass for many clients.
    pub(crate) fn hash_client(&self, id: Option<&str>, address: Option<IpAddr>) -> u64 {
        let mut hasher = self.hashes.build_hasher();
        match (id, address.map(|address| address.to_canonical())) {
            (Some(id), _) => id.hash(&mut hasher),
            (None, Some(IpAddr::V4(address))) => address.hash(&mut hasher),
            (None, Some(IpAddr::V6(address))) => (address.to_bits() >> 64).hash(&mut hasher),
            (None, None) => {}
        }
        hasher.finish()
    }

    /// Identifies a tenant by the name that a trusted client gives it.
    pub(crate) fn hash_tenant(&self, name: &[u8]) -> u64 {
        self.hashes.hash_one(name)
    }

    /// Identifies the credential that a client sends along; never 0, even without one.
    pub(crate) fn hash_credential(&self, headers: &HeaderMap) -> u64 {
        let mut hasher = self.hashes.build_hasher();
        // A web page has its key among the subprotocols of a WebSocket.
        for (name, value) in headers {
            if is_key(name) || *name == SEC_WEBSOCKET_PROTOCOL {
                (name.as_str(), value.as_bytes()).hash(&mut hasher);
            }
        }
        hasher.finish().max(1)
    }
}

/// A random number as a share of a whole: 0 is possible, 1 is not.
fn to_share(random: u64) -> f64 {
    // 53 bits are what a float holds exactly.
    (random >> 11) as f64 / (1_u64 << 53) as f64
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_of_one_ipv6_network_are_one_client() {
        let seeds = Seeds::new(1);
        let hash = |address: &str| seeds.hash_client(None, Some(address.parse().unwrap()));
        assert_eq!(hash("2001:db8:0:1::1"), hash("2001:db8:0:1:ffff::2"));
        assert_ne!(hash("2001:db8:0:1::1"), hash("2001:db8:0:2::1"));
        assert_ne!(hash("192.0.2.1"), hash("192.0.2.2"));
        assert_ne!(hash("::ffff:192.0.2.1"), hash("::ffff:192.0.2.2"), "not IPv6");
        assert_eq!(hash("::ffff:192.0.2.1"), hash("192.0.2.1"));
    }

    #[test]
    fn shares_are_below_one() {
        assert_eq!(to_share(0), 0.0);
        assert!(to_share(u64::MAX) < 1.0);
        assert!(to_share(u64::MAX) > 0.999_999);
    }
}
