//! Decides a captured decision again, by its recorded readings and the functions of live decisions.

use penstock_api::units::Timestamp;
use penstock_config::{RoutingConfig, Strategy};
use rand::SeedableRng;
use rand::rngs::SmallRng;

use super::capture::{Capture, CaptureError};
use super::explain::CandidateReport;
use super::trace::{Pass, Trace};
use crate::fleet::ModelId;
use crate::routing::filters::{self, RejectReason};
use crate::routing::random::ReplaySource;
use crate::routing::recorder::Recorder;
use crate::routing::scratch::RouteContext;
use crate::routing::{Router, Scratch};

/// The id of the captured model: a capture is about one model, identified by its name.
const MODEL: ModelId = ModelId(0);

/// A captured decision made again.
#[derive(Debug, Clone)]
pub struct Replayed {
    /// The backend that would get the request.
    pub backend: Option<String>,
    /// The weighted sum of its scores, if scorers decide.
    pub total: Option<f64>,
    /// The model that the split of its alias selects.
    pub model: String,
    /// Every candidate with its scores.
    pub candidates: Vec<CandidateReport>,
}

impl Replayed {
    /// Returns whether backend and model are those of the capture, and the total bit by bit.
    pub fn is_identical(&self, capture: &Capture) -> bool {
        // Bit by bit: another order of the same sums would show that another function decided.
        let [total, recorded] = [self.total, capture.total()].map(|all| all.map(f64::to_bits));
        self.goes_there(capture) && total == recorded
    }

    /// Returns whether the request would go to the same backend.
    pub fn goes_there(&self, capture: &Capture) -> bool {
        self.backend.as_deref() == Some(&capture.decision.backend) && self.model == capture.model
    }
}

impl Capture {
    /// Returns a configuration with the captured strategy.
    ///
    /// # Errors
    /// [`CaptureError`] if there is no such strategy.
    pub fn routing(&self) -> Result<RoutingConfig, CaptureError> {
        self.strategy.to_routing()
    }

    /// Returns the name of the captured strategy.
    pub fn strategy(&self) -> &str {
        &self.strategy.name
    }

    /// Returns the total that decided, if scorers did.
    pub fn total(&self) -> Option<f64> {
        self.decision.total
    }

    /// Returns every rejected backend with the reason.
    pub fn rejected(&self) -> impl Iterator<Item = CandidateReport> {
        self.rejected.iter().map(|one| CandidateReport {
            backend: one.backend.clone(),
            model: one.model.clone(),
            excluded: Some(one.excluded.clone()),
            reason: Some(one.reason.clone()),
            ..CandidateReport::default()
        })
    }

    /// Returns the backend to probe while all are in cooldown.
    fn next_probe(&self) -> Option<&str> {
        let of_model = || self.rejected.iter().filter(|one| one.model == self.model);
        let rejected = of_model().map(|one| {
            let reason = match (one.excluded.as_str(), one.cooldown_remaining_ms) {
                ("full" | "model_full" | "backlog" | "batch" | "kept" | "not_cached", _) => {
                    RejectReason::Full { limit: 0 }
                }
                ("cooldown", Some(remaining)) => {
                    let remaining = std::time::Duration::try_from_secs_f64(remaining / 1000.0);
                    // The clock of the capture is gone; only the order of the ends counts.
                    let until = Timestamp(0).after(remaining.unwrap_or_default());
                    RejectReason::Cooldown { until, status: 503, is_known: !one.assumed }
                }
                _ => RejectReason::Tried,
            };
            (one.row, reason)
        });
        let row = filters::next_probe(rejected)?.row;
        of_model().find(|one| one.row == row).map(|one| one.backend.as_str())
    }
}

impl Router {
    /// Decides again by recorded readings. `turn` is the model's turn if the capture has none.
    pub fn replay(&self, capture: &Capture, turn: u64) -> Replayed {
        let model = capture.split_model().to_owned();
        // No strategy decided then, so that none can decide again.
        if capture.decision.next_probe {
            let backend = capture.next_probe().map(str::to_owned);
            return Replayed { backend, total: None, model, candidates: Vec::new() };
        }
        let candidates = capture.readings();
        let (mut scratch, mut trace) = (Scratch::default(), Trace::default());
        trace.start_pass(MODEL);
        trace.read(&capture.features(), &candidates);
        // As recorded: nothing of the present fleet may enter the decision.
        scratch.readings.candidates = candidates;
        let mut rng = SmallRng::seed_from_u64(capture.seed.0);
        let mut random = ReplaySource { turn: capture.turn.unwrap_or(turn), rng: &mut rng };
        let features = capture.features();
        let strategy = self.strategy_again(capture);
        let context =
            &mut RouteContext { random: &mut random, scratch: &mut scratch, recorder: &mut trace };
        let picked = self.choose(strategy, &features, MODEL, context);
        let row = picked.map(|picked| picked.row);
        let pass = trace.pass(MODEL);
        let found = capture.candidates.iter().find(|one| Some(one.readings.row) == row);
        Replayed {
            backend: found.map(|one| one.backend.clone()),
            model,
            total: row.and_then(|row| pass?.total(row)),
            candidates: pass.map(|pass| self.replay_reports(capture, pass)).unwrap_or_default(),
        }
    }

    /// Returns the strategy that decides again. Of `auto` a capture holds only the choice.
    fn strategy_again(&self, capture: &Capture) -> Strategy {
        match self.strategy() {
            Strategy::Auto => Strategy::from_name(capture.strategy()).unwrap_or(Strategy::Smart),
            strategy => strategy,
        }
    }

    fn replay_reports(&self, capture: &Capture, pass: &Pass) -> Vec<CandidateReport> {
        let reports = capture.candidates.iter().map(|one| {
            let reason = pass.reason(one.readings.row);
            let readings = pass.candidate(one.readings.row).unwrap_or(&one.readings);
            CandidateReport {
                backend: one.backend.clone(),
                excluded: reason.map(|reason| reason.name().to_owned()),
                ..self.report(self.strategy_again(capture), &capture.model, pass, readings)
            }
        });
        reports.collect()
    }
}
