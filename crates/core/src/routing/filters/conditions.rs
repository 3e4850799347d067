//! The conditions under which the filters decide: by them the passes over a model's backends
//! differ.

/// The backends whose capabilities suffice.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in crate::routing) enum Candidacy {
    /// Only backends known to meet the request's needs.
    Known,
    /// Also backends assumed to meet them.
    Usable,
}

/// The conditions of one pass over a model's backends.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in crate::routing) struct Conditions {
    /// The backends whose capabilities suffice.
    pub(in crate::routing) candidacy: Candidacy,
    /// True if backends with failing checks count, because too few others are left.
    pub(in crate::routing) in_panic: bool,
    /// True if backends in slow start get their whole share, because there are no others.
    pub(in crate::routing) ignores_slow_start: bool,
    /// True if backends with recent faults or without progress count, because there are no others.
    pub(in crate::routing) ignores_faults: bool,
    /// True if the limits of models are ignored, because all of them are reached.
    pub(in crate::routing) spills: bool,
    /// True if the limits of work are ignored, because a backend is below them and predictions say
    /// what it costs to wait for another one.
    pub(in crate::routing) exceeds_work: bool,
    /// True if only idle backends and those with most of the prompt cached count, because its owner
    /// would take the room of others to compute it again.
    pub(in crate::routing) only_cached: bool,
}

impl Conditions {
    /// The conditions of the first pass.
    pub(in crate::routing) const STRICT: Self = Self {
        candidacy: Candidacy::Known,
        in_panic: false,
        ignores_slow_start: false,
        ignores_faults: false,
        spills: false,
        exceeds_work: false,
        only_cached: false,
    };

    /// The most lenient conditions of a fleet that is not in panic.
    pub(in crate::routing) const LENIENT: Self = Self {
        candidacy: Candidacy::Usable,
        in_panic: false,
        ignores_slow_start: true,
        ignores_faults: true,
        spills: false,
        exceeds_work: false,
        only_cached: false,
    };
}
