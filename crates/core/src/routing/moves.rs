//! The decision to move a request that still waits for its first token. A function of two
//! predictions and the elapsed time; `proxy::moves` carries it out.

use penstock_predict::{Estimate, Prediction};

use super::RoutingDecision;
use crate::fleet::Probe;

/// A request moves only to a backend whose wait is below this fraction of its remaining wait.
const MAX_WAIT_RATIO: f64 = 0.5;

/// Returns the remaining wait for the first token, in microseconds, after `elapsed_us`.
///
/// Up to the predicted time it is what the prediction leaves. Past the predicted 90th percentile it
/// is the time already overdue: stalls are heavy-tailed, and a token that is late by a second is
/// seldom late by just a millisecond more.
pub fn rest_of_wait(predicted: &Prediction, elapsed_us: f64) -> f64 {
    (predicted.ttft_us - elapsed_us).max(elapsed_us - predicted.ttft_p90_us).max(0.0)
}

impl RoutingDecision {
    /// Returns whether a request with `remaining_us` left to wait at `from` should move to
    /// this decision's backend: the same model, a trusted prediction below half of the wait, and no
    /// stream there slowed beyond its objective.
    pub fn is_better_than(&self, from: &Self, remaining_us: f64, estimate: &Estimate) -> bool {
        let Estimate { prediction, tightest_tpot_us: tightest, is_trusted, .. } = estimate;
        // A request that has a place takes no risk: it neither probes nor exceeds a limit.
        let is_ordinary = self.probe == Probe::None && !self.spills;
        let is_elsewhere = self.model == from.model && self.backend != from.backend;
        is_ordinary
            && is_elsewhere
            && *is_trusted
            && prediction.tpot_us <= *tightest
            && prediction.ttft_us < MAX_WAIT_RATIO * remaining_us
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fleet::{BackendId, ModelId};

    fn after(ttft: f64) -> Prediction {
        Prediction {
            ttft_us: ttft,
            ttft_p90_us: 1.5 * ttft,
            tpot_us: 20.0,
            ..Prediction::default()
        }
    }

    fn to(backend: u16, model: u32) -> RoutingDecision {
        RoutingDecision::direct(BackendId(backend), ModelId(model), 0)
    }

    #[test]
    fn rest_of_a_wait_shrinks_until_it_is_late_and_then_grows() {
        let predicted = after(1000.0);
        let rest = [0.0, 400.0, 1000.0, 1500.0, 1700.0, 4000.0]
            .map(|elapsed| rest_of_wait(&predicted, elapsed));
        assert_eq!(rest, [1000.0, 600.0, 0.0, 0.0, 200.0, 2500.0]);
    }

    #[test]
    fn request_moves_only_where_less_than_half_of_its_wait_is_known_to_be() {
        let estimate = |ttft, is_trusted| Estimate {
            prediction: after(ttft),
            tightest_tpot_us: f64::INFINITY,
            is_trusted,
            ..Estimate::default()
        };
        let (from, elsewhere) = (to(0, 0), to(1, 0));
        let moves =
            |ttft, is_trusted| elsewhere.is_better_than(&from, 1000.0, &estimate(ttft, is_trusted));
        assert!(moves(499.0, true));
        assert!(!moves(500.0, true), "half is not less than half");
        assert!(!moves(1.0, false), "it is not known");
        let fast = estimate(1.0, true);
        assert!(!from.is_better_than(&from, 1000.0, &fast), "it is there");
        assert!(!to(1, 1).is_better_than(&from, 1000.0, &fast), "another model");
        let probe = RoutingDecision { probe: Probe::Breaker, ..elsewhere };
        assert!(!probe.is_better_than(&from, 1000.0, &fast), "no request is moved to probe");
        let spilled = RoutingDecision { spills: true, ..elsewhere };
        assert!(!spilled.is_better_than(&from, 1000.0, &fast));
        let crowded = Estimate { tightest_tpot_us: 19.0, ..fast };
        assert!(
            !elsewhere.is_better_than(&from, 1000.0, &crowded),
            "a stream there is slowed down"
        );
    }
}
