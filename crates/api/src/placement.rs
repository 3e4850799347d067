//! Zones and tiers of backends, as decisions compare them: small numbers and sets of bits.

/// The number of a zone in one configuration.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, PartialOrd, Ord)]
pub struct ZoneId(u8);

impl ZoneId {
    /// The zone of a backend whose zone is not known. No policy admits it.
    pub const UNKNOWN: Self = Self(0);
    /// The maximum number of named zones.
    // An `Offer` has 20 bits for zones, and one of them is for the unknown zone.
    pub const MAX: usize = 19;

    /// Returns the id of the named zone at `position`; unknown from [`ZoneId::MAX`] on.
    pub fn at(position: usize) -> Self {
        let number = u8::try_from(position + 1).ok();
        number.filter(|_| position < Self::MAX).map_or(Self::UNKNOWN, Self)
    }

    /// Returns the position of the named zone; `None` if unknown.
    pub fn position(self) -> Option<usize> {
        usize::from(self.0).checked_sub(1)
    }

    const fn bit(self) -> u32 {
        1 << self.0
    }
}

/// The zones that a request may reach.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ZoneSet(u32);

impl ZoneSet {
    /// Every zone, the unknown one included: no policy speaks of zones.
    pub const ALL: Self = Self((1 << (ZoneId::MAX + 1)) - 1);
    /// No zone.
    pub const NONE: Self = Self(0);

    /// Adds a zone. The unknown zone is never part of a set that was made by names.
    #[must_use]
    pub const fn with(self, zone: ZoneId) -> Self {
        Self(self.0 | (zone.bit() & !ZoneId::UNKNOWN.bit()))
    }

    /// Returns the zones of both sets.
    #[must_use]
    pub const fn and(self, other: Self) -> Self {
        Self(self.0 & other.0)
    }

    /// Returns whether a zone is in the set.
    pub const fn contains(self, zone: ZoneId) -> bool {
        self.0 & zone.bit() != 0
    }

    /// Returns whether zones are left out.
    pub fn restricts(self) -> bool {
        self != Self::ALL
    }

    pub(super) const fn without(self, zone: ZoneId) -> Self {
        Self(self.0 & !zone.bit())
    }

    pub(super) const fn complement(self) -> Self {
        Self(Self::ALL.0 & !self.0)
    }

    pub(super) const fn to_bits(self) -> u32 {
        self.0
    }
}

impl Default for ZoneSet {
    fn default() -> Self {
        Self::ALL
    }
}

/// The quality of a model's responses by the operator's judgement, from 1 to 5.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct Tier(u8);

impl Tier {
    /// The tier of backends that name none.
    pub const LOWEST: Self = Self(1);
    /// The best tier.
    pub const HIGHEST: Self = Self(5);

    /// Returns a tier by its number; `None` outside 1 to 5.
    pub fn new(number: u8) -> Option<Self> {
        let tier = Self(number);
        (Self::LOWEST..=Self::HIGHEST).contains(&tier).then_some(tier)
    }

    /// Returns its number, 1 to 5.
    pub const fn number(self) -> u8 {
        self.0
    }

    /// Returns a bit for each tier from 2 to this one.
    pub(super) const fn bits(self) -> u32 {
        // The lowest tier needs no bit: every backend has it, and no request demands less.
        (1 << (self.0 - 1)) - 1
    }
}

impl Default for Tier {
    fn default() -> Self {
        Self::LOWEST
    }
}
