//! The owners of a model's requests in flight. A part of the capacity of its backends is kept for
//! owners that hold less than their share (`queue.reserve`).
//!
//! Owners are counted in a fixed number of buckets: many cost no more than few, and no decision
//! takes a lock. An owner takes the first free one of eight buckets from that of its hash on. Where
//! many owners crowd, one that finds none shares the bucket of its hash: both count as one that
//! holds the requests of both.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::time::Duration;

use penstock_api::units::Timestamp;

const BUCKETS: usize = 128;
/// The number of buckets in which an owner may be counted.
const MAX_PROBES: usize = 8;
/// The time for which capacity is kept for an owner after its last request.
const RECENT: Duration = Duration::from_secs(60);
/// The multiple of the others' mean from which an owner is far above its share.
const FAR_MULTIPLE: u64 = 2;
/// The largest value that counts as a limit.
const MAX_LIMIT: u32 = 1 << 24;

/// A key, an address or a tenant, whose requests take turns with those of others.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Owner {
    pub id: u64,
    /// Its share in relation to others; 0 counts as 1.
    pub weight: u32,
}

/// The part of a limit that is kept, rounded to whole requests: 1 of 8 with a reserve of an eighth,
/// 0 of 3.
#[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "at most the limit")]
pub(super) fn kept(limit: u32, reserve: f64) -> u32 {
    // `u32::MAX` stands for no limit, of which no part can be kept.
    if limit > MAX_LIMIT { 0 } else { (f64::from(limit) * reserve).round() as u32 }
}

#[derive(Debug, Default)]
struct Bucket {
    /// The owner that took it last.
    owner: AtomicU64,
    in_flight: AtomicU32,
    weight: AtomicU32,
    /// The time of the last request for which others keep capacity; 0 before the first.
    sent_at: AtomicU64,
}

impl Bucket {
    fn is_recent(&self, now: Timestamp) -> bool {
        let sent_at = self.sent_at.load(Ordering::Relaxed);
        sent_at > 0 && now.since(Timestamp(sent_at)) <= RECENT
    }

    fn is_free(&self, now: Timestamp) -> bool {
        self.in_flight.load(Ordering::Relaxed) == 0 && !self.is_recent(now)
    }
}

/// The requests in flight of a model, by owner.
#[derive(Debug)]
pub struct OwnerShares {
    buckets: Box<[Bucket]>,
}

impl Default for OwnerShares {
    fn default() -> Self {
        Self { buckets: (0..BUCKETS).map(|_| Bucket::default()).collect() }
    }
}

impl OwnerShares {
    /// Returns the bucket of an owner with its index. An owner that is not counted has a free one,
    /// or shares one.
    fn bucket(&self, owner: u64, now: Timestamp) -> Option<(usize, &Bucket)> {
        let home = usize::try_from(owner % BUCKETS as u64).ok()?;
        let near = || {
            let indexes = (home..home + MAX_PROBES).map(|index| index % BUCKETS);
            indexes.filter_map(|index| Some((index, self.buckets.get(index)?)))
        };
        let is_own = |bucket: &Bucket| bucket.owner.load(Ordering::Relaxed) == owner;
        let own = near().find(|(_, bucket)| is_own(bucket));
        own.or_else(|| near().find(|(_, bucket)| bucket.is_free(now))).or_else(|| near().next())
    }

    /// Returns whether an owner holds more than its share of the requests in flight. Two conditions
    /// must hold. It holds more than its weight's part among the owners of the last minute. And the
    /// surplus of larger owners, compared with its own holding by weight, is at most the part
    /// `reserve` of all requests. A single owner is never above its share.
    // By the first condition alone, an owner that uses spare capacity would count as large beside a
    // much larger one.
    pub fn is_above_share(&self, owner: Owner, reserve: f64, now: Timestamp) -> bool {
        let Some((_, own)) = self.bucket(owner.id, now) else { return false };
        let held_by_owner = u64::from(own.in_flight.load(Ordering::Relaxed));
        if held_by_owner == 0 {
            return false;
        }
        let own_weight = u64::from(owner.weight.max(1));
        let (mut held, mut weights, mut beyond) = (0, own_weight, 0);
        for bucket in &self.buckets {
            let in_flight = u64::from(bucket.in_flight.load(Ordering::Relaxed));
            held += in_flight;
            if std::ptr::eq(bucket, own) {
                continue;
            }
            let weight = u64::from(bucket.weight.load(Ordering::Relaxed));
            if bucket.is_recent(now) {
                weights += weight;
            }
            beyond += in_flight.saturating_sub(held_by_owner * weight / own_weight);
        }
        // Compared as products: a division would lose fractions of a request.
        held_by_owner * weights > held * own_weight && beyond as f64 <= reserve * held as f64
    }

    /// Returns whether an owner holds more than [`FAR_MULTIPLE`] times the mean of the others of
    /// the last minute, by weight. The mean counts as at least one request, and a single owner is
    /// not far above its share.
    pub fn is_far_above_share(&self, owner: Owner, now: Timestamp) -> bool {
        let Some((_, own)) = self.bucket(owner.id, now) else { return false };
        let (mut held, mut weights) = (0, 0);
        for bucket in self.buckets.iter().filter(|bucket| !std::ptr::eq(*bucket, own)) {
            held += u64::from(bucket.in_flight.load(Ordering::Relaxed));
            if bucket.is_recent(now) {
                weights += u64::from(bucket.weight.load(Ordering::Relaxed));
            }
        }
        let held_by_owner = u64::from(own.in_flight.load(Ordering::Relaxed));
        weights > 0
            && held_by_owner * weights
                > FAR_MULTIPLE * held.max(weights) * u64::from(owner.weight.max(1))
    }

    /// Counts a request of `owner` for as long as the result lives. From then on others keep
    /// capacity for the owner, unless the request `is_sheddable`.
    pub(super) fn hold(
        self: &Arc<Self>,
        owner: Owner,
        is_sheddable: bool,
        now: Timestamp,
    ) -> OwnerHold {
        let bucket = self.bucket(owner.id, now);
        if let Some((_, bucket)) = bucket {
            // If two owners take it at once, it belongs to the later one. Requests of the first one
            // count as those of the later one until they end.
            if bucket.is_free(now) {
                bucket.owner.store(owner.id, Ordering::Relaxed);
            }
            bucket.in_flight.fetch_add(1, Ordering::Relaxed);
            bucket.weight.store(owner.weight.max(1), Ordering::Relaxed);
            if !is_sheddable {
                bucket.sent_at.store(now.0, Ordering::Relaxed);
            }
        }
        OwnerHold { shares: Arc::clone(self), bucket: bucket.map(|(index, _)| index) }
    }
}

/// A request in flight, counted for its owner.
#[derive(Debug)]
pub(super) struct OwnerHold {
    shares: Arc<OwnerShares>,
    bucket: Option<usize>,
}

impl Drop for OwnerHold {
    fn drop(&mut self) {
        if let Some(bucket) = self.bucket.and_then(|index| self.shares.buckets.get(index)) {
            bucket.in_flight.fetch_sub(1, Ordering::Relaxed);
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::{prop_assert, proptest};

    use super::*;

    const NOW: Timestamp = Timestamp(1_000_000_000);

    fn owner(id: u64) -> Owner {
        Owner { id, weight: 1 }
    }

    fn hold(shares: &Arc<OwnerShares>, owner: Owner, count: usize) -> Vec<OwnerHold> {
        (0..count).map(|_| shares.hold(owner, false, NOW)).collect()
    }

    #[test]
    fn part_of_a_limit_is_kept_in_whole_requests() {
        let eighth = [1, 3, 4, 8, 11, 12, 16, 64].map(|limit| kept(limit, 0.125));
        assert_eq!(eighth, [0, 0, 1, 1, 1, 2, 2, 8]);
        assert_eq!((kept(u32::MAX, 0.125), kept(8, 0.0), kept(8, 1.0)), (0, 0, 8));
    }

    #[test]
    fn owner_is_above_its_share_while_others_were_there_lately() {
        let shares = Arc::new(OwnerShares::default());
        let large = hold(&shares, owner(1), 7);
        assert!(!shares.is_above_share(owner(1), 0.125, NOW), "alone");
        let batch = shares.hold(owner(3), true, NOW);
        assert!(
            !shares.is_above_share(owner(1), 0.125, NOW),
            "none keeps room for what may be refused"
        );
        let small = hold(&shares, owner(2), 1);
        assert!(
            shares.is_above_share(owner(1), 0.125, NOW)
                && !shares.is_above_share(owner(2), 0.125, NOW)
        );
        drop((small, batch));
        assert!(shares.is_above_share(owner(1), 0.125, NOW.after(RECENT)), "it may come back");
        assert!(!shares.is_above_share(owner(1), 0.125, NOW.after(RECENT * 2)));
        drop(large);
        assert!(!shares.is_above_share(owner(1), 0.125, NOW));
    }

    #[test]
    fn owner_far_above_its_share_holds_over_twice_the_mean_of_the_others() {
        let shares = Arc::new(OwnerShares::default());
        let is_far = |id, weight| shares.is_far_above_share(Owner { id, weight }, NOW);
        let mut held = hold(&shares, owner(1), 4);
        assert!(!is_far(1, 1), "alone");
        held.extend(hold(&shares, owner(2), 3).into_iter().chain(hold(&shares, owner(3), 1)));
        assert!(!is_far(1, 1), "4 beside 3 and 1");
        held.extend(hold(&shares, owner(1), 1));
        assert!(is_far(1, 1) && !is_far(1, 2) && !is_far(2, 1));
        let after = |duration| shares.is_far_above_share(owner(1), NOW.after(duration));
        assert!(after(RECENT) && !after(RECENT * 2));
    }

    #[test]
    fn owners_with_equal_hashes_have_their_own_buckets_until_many_crowd() {
        let shares = Arc::new(OwnerShares::default());
        let equal = |number: u64| owner(5 + number * BUCKETS as u64);
        let is_above = |number, now| shares.is_above_share(equal(number), 0.125, now);
        let large = hold(&shares, equal(1), 7);
        assert!(!is_above(0, NOW) && !is_above(1, NOW), "alone");
        let small = hold(&shares, equal(0), 1);
        assert!(is_above(1, NOW) && !is_above(0, NOW));
        drop(small);
        assert!(is_above(1, NOW) && !is_above(0, NOW), "its bucket stays its own");
        let later = NOW.after(RECENT * 2);
        let others: Vec<_> =
            (2..9).map(|number| shares.hold(equal(number), false, later)).collect();
        assert!(is_above(1, later) && !is_above(8, later), "a bucket of long ago is free");
        assert!(is_above(9, later), "it shares that of the large one: no other is free");
        drop((large, others));
        assert!(shares.buckets.iter().all(|one| one.is_free(later.after(RECENT * 2))));
    }

    #[test]
    fn shares_follow_weights() {
        let shares = Arc::new(OwnerShares::default());
        let heavy = Owner { id: 1, weight: 3 };
        let _held = (hold(&shares, heavy, 3), hold(&shares, owner(2), 1));
        assert!(
            !shares.is_above_share(heavy, 0.125, NOW)
                && !shares.is_above_share(owner(2), 0.125, NOW)
        );
        let _more = hold(&shares, heavy, 1);
        assert!(
            shares.is_above_share(heavy, 0.125, NOW)
                && !shares.is_above_share(owner(2), 0.125, NOW)
        );
    }

    #[test]
    fn owner_that_uses_what_others_leave_is_not_above_its_share_beside_a_larger_one() {
        let shares = Arc::new(OwnerShares::default());
        let held = [13, 7, 1, 1, 1];
        let _holds: Vec<_> =
            (0..).zip(held).map(|(id, count)| hold(&shares, owner(id), count)).collect();
        let above = (0..5).map(|id| shares.is_above_share(owner(id), 0.125, NOW));
        assert_eq!(above.collect::<Vec<_>>(), [true, false, false, false, false]);
        let _more = hold(&shares, owner(1), 4);
        let above = (0..5).map(|id| shares.is_above_share(owner(id), 0.125, NOW));
        assert_eq!(above.collect::<Vec<_>>(), [true, true, false, false, false], "13 and 11");
    }

    proptest! {
        /// Some owner may always take the kept capacity: not all are above their share.
        #[test]
        fn one_owner_is_not_above_its_share(
            owners in proptest::collection::vec((0..40_u64, 1..9_u32, 0..20_usize), 1..12),
        ) {
            let shares = Arc::new(OwnerShares::default());
            let owners: std::collections::BTreeMap<u64, (u32, usize)> =
                owners.into_iter().map(|(id, weight, count)| (id, (weight, count))).collect();
            let holds: Vec<_> = owners.iter()
                .map(|(id, (weight, count))| hold(&shares, Owner { id: *id, weight: *weight }, *count))
                .collect();
            let above = owners.iter()
                .filter(|(id, (weight, _))| shares.is_above_share(Owner { id: **id, weight: *weight }, 0.125, NOW))
                .count();
            prop_assert!(above < owners.len());
            drop(holds);
            prop_assert!(shares.buckets.iter().all(|one| one.in_flight.load(Ordering::Relaxed) == 0));
        }
    }
}
