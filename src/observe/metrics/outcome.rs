//! The classes of outcomes as label values.

use penstock_core::fleet::Outcome;

/// The classes of outcomes, by their names in metrics.
pub(super) const OUTCOMES: [&str; 6] = ["ok", "client", "busy", "fault", "cancel", "empty"];

/// The position of an outcome's class in [`OUTCOMES`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(super) struct OutcomeId(u8);

impl OutcomeId {
    pub(super) const OK: Self = Self(0);

    pub(super) fn of(outcome: Outcome) -> Self {
        match outcome {
            Outcome::Ok => Self::OK,
            Outcome::Client => Self(1),
            Outcome::Busy { .. } | Outcome::Shortage => Self(2),
            Outcome::Refused { .. } | Outcome::Unreachable | Outcome::Fault => Self(3),
            Outcome::Cancel => Self(4),
            Outcome::Empty => Self(5),
        }
    }

    pub(super) fn index(self) -> usize {
        usize::from(self.0)
    }

    pub(super) fn name(self) -> &'static str {
        OUTCOMES.get(self.index()).copied().unwrap_or("unknown")
    }
}

/// Returns the status label of a response. Engines may send any number and labels must stay
/// bounded, so unassigned status codes count as the first of their class (`599` as `500`).
pub(super) fn status_label(status: u16) -> u16 {
    let has_meaning = http::StatusCode::from_u16(status)
        // No registry has these two: nginx's for a client that left, and Anthropic's for an
        // overload.
        .is_ok_and(|code| code.canonical_reason().is_some() || matches!(status, 499 | 529));
    if has_meaning { status } else { status / 100 * 100 }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn outcome_classes_have_the_names_of_the_fleet() {
        for outcome in [
            Outcome::Ok,
            Outcome::Client,
            Outcome::Busy { cooldown: Duration::ZERO, status: 429 },
            Outcome::Unreachable,
            Outcome::Fault,
            Outcome::Cancel,
            Outcome::Shortage,
            Outcome::Empty,
        ] {
            assert_eq!(OutcomeId::of(outcome).name(), outcome.name());
        }
    }

    #[test]
    fn unassigned_statuses_count_as_their_class() {
        for (status, label) in [(200, 200), (499, 499), (529, 529), (599, 500), (298, 200), (0, 0)]
        {
            assert_eq!(status_label(status), label);
        }
        let labels: std::collections::BTreeSet<u16> = (0..=u16::MAX).map(status_label).collect();
        assert!(labels.len() < 800, "{}", labels.len());
    }
}
