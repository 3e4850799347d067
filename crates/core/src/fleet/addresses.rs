//! The addresses of a backend. A name may resolve to several, and some may be unreachable.
//! Addresses that failed since the last resolution are tried last.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use arc_swap::ArcSwapOption;
use smallvec::SmallVec;

/// The addresses of one backend, resolved in the background.
#[derive(Debug, Default)]
pub struct Addresses {
    known: ArcSwapOption<ResolvedAddresses>,
    next: AtomicU32,
    epoch: AtomicU32,
}

#[derive(Debug)]
struct ResolvedAddresses {
    all: Box<[SocketAddr]>,
    /// One bit for each of the first 64 addresses: set if connecting failed since the resolution.
    failed: AtomicU64,
}

impl ResolvedAddresses {
    fn has_failed(&self, index: usize) -> bool {
        index < 64 && self.failed.load(Ordering::Relaxed) >> index & 1 == 1
    }
}

impl Addresses {
    /// Replaces the addresses with the latest resolution and clears the failures. Returns whether
    /// other addresses were known before.
    pub fn publish(&self, all: Vec<SocketAddr>) -> bool {
        let before = self.known.load();
        if let Some(known) = before.as_ref().filter(|known| *known.all == *all) {
            known.failed.store(0, Ordering::Relaxed);
            return false;
        }
        let known = ResolvedAddresses { all: all.into(), failed: AtomicU64::new(0) };
        self.known.store(Some(Arc::new(known)));
        // After the list: a reader that sees the new epoch finds the new addresses.
        self.epoch.fetch_add(1, Ordering::Release);
        before.is_some()
    }

    /// The number of changes. A connection of an older epoch may lead to an address that is gone.
    pub fn epoch(&self) -> u32 {
        self.epoch.load(Ordering::Acquire)
    }

    /// The first address; `None` until the name has been resolved.
    pub fn first(&self) -> Option<SocketAddr> {
        self.known.load().as_ref()?.all.first().copied()
    }

    /// Returns all addresses in the order to try them: round robin, with failed ones last.
    pub fn in_turn(&self) -> SmallVec<[SocketAddr; 2]> {
        let known = self.known.load();
        let Some(known) = &*known else { return SmallVec::new() };
        let turn = self.next.fetch_add(1, Ordering::Relaxed) as usize;
        let start = turn.checked_rem(known.all.len()).unwrap_or(0);
        let indexed = known.all.iter().enumerate();
        let rotated = indexed.clone().skip(start).chain(indexed.take(start));
        let (bad, good): (SmallVec<[_; 2]>, SmallVec<[_; 2]>) =
            rotated.partition(|(index, _)| known.has_failed(*index));
        good.into_iter().chain(bad).map(|(_, address)| *address).collect()
    }

    /// Records that an address could not be connected to.
    pub fn note_failure(&self, address: SocketAddr) {
        if let Some(known) = &*self.known.load()
            && let Some(index) = known.all.iter().position(|one| *one == address)
            && index < 64
        {
            known.failed.fetch_or(1 << index, Ordering::Relaxed);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(port: u16) -> SocketAddr {
        SocketAddr::from(([127, 0, 0, 1], port))
    }

    fn ports(addresses: &Addresses) -> Vec<u16> {
        addresses.in_turn().iter().map(SocketAddr::port).collect()
    }

    #[test]
    fn addresses_rotate() {
        let addresses = Addresses::default();
        assert!(ports(&addresses).is_empty() && addresses.first().is_none());
        assert!(!addresses.publish(vec![at(1), at(2), at(3)]), "the first are no change");
        let epoch = addresses.epoch();
        assert!(!addresses.publish(vec![at(1), at(2), at(3)]));
        assert_eq!(addresses.epoch(), epoch, "the same addresses are the same epoch");
        assert_eq!(ports(&addresses), [1, 2, 3]);
        assert_eq!(ports(&addresses), [2, 3, 1]);
        assert_eq!(ports(&addresses), [3, 1, 2]);
        assert_eq!(addresses.first(), Some(at(1)));
    }

    #[test]
    fn failed_addresses_come_last_until_the_next_resolution() {
        let addresses = Addresses::default();
        addresses.publish(vec![at(1), at(2), at(3)]);
        addresses.note_failure(at(2));
        addresses.note_failure(at(9));
        assert_eq!(ports(&addresses), [1, 3, 2]);
        assert_eq!(ports(&addresses), [3, 1, 2]);
        addresses.publish(vec![at(1), at(2), at(3)]);
        assert_eq!(ports(&addresses), [3, 1, 2]);
        assert_eq!(ports(&addresses), [1, 2, 3]);
        assert_eq!(ports(&addresses), [2, 3, 1]);
    }
}
