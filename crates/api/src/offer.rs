//! Operations, capabilities, zones and tiers in one integer, so that a decision checks all of a
//! candidate at once.

use super::{Capabilities, Operation, Operations, Tier, ZoneId, ZoneSet};

/// The first of 20 bits for zones, after 8 for capabilities and 32 for operations.
const ZONES: u32 = 40;
/// The first of 4 bits for tiers.
const TIERS: u32 = 60;

/// The offer of a model on a backend, or the needs of a request: operations, capabilities, places.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Offer(u64);

impl Offer {
    /// Creates the offer of all `operations` with all `capabilities`.
    pub const fn new(operations: Operations, capabilities: Capabilities) -> Self {
        Self((operations.0 as u64) << 8 | capabilities.0 as u64)
    }

    /// Creates the requirements of a request: `operation`, and the capabilities that it `needs`.
    pub const fn asked(operation: Operation, needs: Capabilities) -> Self {
        Self((1 << operation as u64) << 8 | needs.0 as u64)
    }

    /// Adds the place of a backend: its zone and its tier.
    #[must_use]
    pub const fn placed(self, zone: ZoneId, tier: Tier) -> Self {
        let other_zones = ZoneSet::ALL.without(zone).to_bits();
        Self(self.0 | (other_zones as u64) << ZONES | (tier.bits() as u64) << TIERS)
    }

    /// Adds the places that a request may reach: a zone of `zones`, and at least `tier`.
    // A zone that is left out is required as "another zone than that": so one comparison of bits
    // covers needs, zones and tiers, and a request without policies costs nothing.
    #[must_use]
    pub const fn within(self, zones: ZoneSet, tier: Tier) -> Self {
        let left_out = zones.complement().to_bits();
        Self(self.0 | (left_out as u64) << ZONES | (tier.bits() as u64) << TIERS)
    }

    /// Returns whether this set includes all of `required`.
    #[inline(always)]
    pub const fn contains(self, required: Self) -> bool {
        self.0 & required.0 == required.0
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::OPERATIONS;

    #[test]
    fn places_are_compared_with_the_rest() {
        let plain = Offer::asked(Operation::Chat, Capabilities::NONE);
        let zones = [ZoneId::UNKNOWN, ZoneId::at(0), ZoneId::at(1), ZoneId::at(ZoneId::MAX - 1)];
        let tiers: Vec<Tier> = (1..=5).filter_map(Tier::new).collect();
        for zone in zones {
            for tier in &tiers {
                let offer = Offer::new(Operations::ALL, Capabilities::NONE).placed(zone, *tier);
                assert!(offer.contains(plain.within(ZoneSet::ALL, Tier::LOWEST)));
                for wanted in zones {
                    let set = ZoneSet::NONE.with(wanted);
                    let is_there = wanted != ZoneId::UNKNOWN && wanted == zone;
                    assert_eq!(offer.contains(plain.within(set, Tier::LOWEST)), is_there);
                }
                for least in &tiers {
                    assert_eq!(offer.contains(plain.within(ZoneSet::ALL, *least)), tier >= least);
                }
            }
        }
        let nowhere = Offer::new(Operations::ALL, Capabilities::NONE);
        assert!(!nowhere.contains(plain.within(ZoneSet::NONE.with(ZoneId::at(0)), Tier::LOWEST)));
    }

    #[test]
    fn an_offer_holds_what_both_sets_hold() {
        for row in OPERATIONS {
            for other in OPERATIONS {
                let operations = Operations::default().with(other.operation);
                for (capability, _) in Capabilities::NAMED {
                    let offer = Offer::new(operations, capability);
                    for (needed, _) in Capabilities::NAMED {
                        let has_both =
                            operations.contains(row.operation) && capability.contains(needed);
                        assert_eq!(offer.contains(Offer::asked(row.operation, needed)), has_both);
                    }
                    let plain = Offer::asked(row.operation, Capabilities::NONE);
                    assert_eq!(offer.contains(plain), operations.contains(row.operation));
                }
            }
        }
    }
}
