//! Operations and capabilities in one integer, so that a decision checks both of a candidate at
//! once.

use super::{Capabilities, Operation, Operations};

/// The operations and capabilities that a model offers on a backend, or that a request needs.
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
