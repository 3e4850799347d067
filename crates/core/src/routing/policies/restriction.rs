//! The places that a request may reach: zones, tiers, bounds of quality, and what costs nothing.

use penstock_api::{Tier, ZoneId, ZoneSet};

use crate::fleet::{QualityRuleId, Serving};

/// The places that a request may reach.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Restriction {
    /// The zones of its backends.
    pub zones: ZoneSet,
    /// The lowest tier of its backends.
    pub tier: Tier,
    /// The lowest tier that is preferred; below it backends are used while no other can take the
    /// request.
    pub preferred_tier: Tier,
    /// The bounds for what is measured of its backends.
    pub quality: Option<QualityRuleId>,
    /// True if its backends must cost nothing.
    pub is_free_only: bool,
}

impl Restriction {
    /// Returns what both allow. The quality of the first counts if both have one.
    #[must_use]
    pub fn and(self, other: Self) -> Self {
        Self {
            zones: self.zones.and(other.zones),
            tier: self.tier.max(other.tier),
            preferred_tier: self.preferred_tier.max(other.preferred_tier),
            quality: self.quality.or(other.quality),
            is_free_only: self.is_free_only || other.is_free_only,
        }
    }

    /// Returns the same with its preferred tier as the lowest.
    #[must_use]
    pub fn strict(self) -> Self {
        Self { tier: self.tier.max(self.preferred_tier), ..self }
    }

    /// Returns whether a model on a backend may be reached.
    pub fn admits(self, row: &Serving) -> bool {
        self.admits_zone(row.zone) && row.tier >= self.tier
    }

    /// Returns whether a zone may be reached.
    pub fn admits_zone(self, zone: ZoneId) -> bool {
        self.zones.contains(zone)
    }

    /// Returns whether some backends are only preferred.
    pub fn has_preferences(self) -> bool {
        self.preferred_tier > self.tier || self.quality.is_some()
    }

    /// Returns the restrictions to try in turn: each preference is given up only if no backend
    /// that the others leave can take the request.
    // The tier is judged first, then the quality among what the tier leaves. If no backend of the
    // tier is left, the tier says nothing about the rest, and the quality is judged among all.
    pub(in crate::routing) fn narrowings(self) -> impl Iterator<Item = Self> {
        let by_tier = self.strict();
        let without_quality = |one: Self| Self { quality: None, ..one };
        let all = [by_tier, without_quality(by_tier), self, without_quality(self)];
        let is_new = move |position: usize, one: Self| {
            all.iter().take(position).all(|earlier| *earlier != one)
        };
        all.into_iter()
            .enumerate()
            .filter_map(move |(position, one)| is_new(position, one).then_some(one))
    }
}
