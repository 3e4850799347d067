//! Quotes: the backends that would meet a request's objectives now, or the time until they would.
//! For clients that ask before they send; the predictions are those of decisions.

use std::time::Duration;

use penstock_api::units::Timestamp;
use penstock_predict::RequestShape;
use penstock_scoring::{Headroom, Objectives, PredictedLatency};

use super::generation::Generation;
use super::{ModelAsked, PolicyClient, PolicyWishes, SplitPoint};
use crate::fleet::{Health, Serving};

/// A backend that serves the model.
#[derive(Debug, Clone, PartialEq)]
pub struct QuotedBackend {
    pub name: Box<str>,
    /// The predicted latency of the request there.
    pub prediction: PredictedLatency,
    /// Its margin below the objectives; `None` without any.
    pub headroom: Option<Headroom>,
    /// The time until they are met if nothing else arrives; `None` if even an idle engine misses
    /// them.
    pub wait: Option<Duration>,
}

impl QuotedBackend {
    /// Returns whether the objectives are met there.
    pub fn is_feasible(&self) -> bool {
        self.headroom.is_none_or(|headroom| headroom.is_met())
    }

    fn of(row: &Serving, shape: &RequestShape, objectives: &Objectives, now: Timestamp) -> Self {
        let prediction = PredictedLatency::from(row.estimate(shape, now));
        let headroom = objectives.headroom(&prediction);
        let wait = row.time_until_met(shape, objectives, now);
        Self { name: row.state.name.clone(), prediction, headroom, wait }
    }
}

/// Predicts a request for `model` on every backend that serves it and is not known to be unhealthy:
/// the largest headroom first, without objectives the fastest. `None` if no backend serves it. The
/// client is not known: backends that the policies of requests without a key exclude are left out.
pub fn quote(
    generation: &Generation,
    model: &str,
    shape: &RequestShape,
    objectives: &Objectives,
    now: Timestamp,
) -> Option<Vec<QuotedBackend>> {
    let fleet = generation.fleet.topology();
    let router = &generation.router;
    let split = SplitPoint::default();
    let asked = ModelAsked { name: model, fleet: &fleet, split };
    // Without wishes there is no error.
    let scope = router.policy_of(&asked, &PolicyClient::default(), &PolicyWishes::default());
    let admitted = scope.unwrap_or_default().restriction;
    let name = router.names.resolve(model, &fleet, split);
    let model = fleet.model(fleet.model_id(name)?)?;
    let serves = |row: &&Serving| {
        admitted.admits(row) && matches!(row.state.status(), Health::Healthy | Health::Unknown)
    };
    let rows = model.serving.iter().filter(serves);
    let mut all: Vec<QuotedBackend> =
        rows.map(|row| QuotedBackend::of(row, shape, objectives, now)).collect();
    let rank = |one: &QuotedBackend| {
        let share = one.headroom.map_or(0.0, |headroom| headroom.share);
        (-share, f64::from(one.prediction.ttft))
    };
    all.sort_by(|one, other| {
        let ((a, b), (c, d)) = (rank(one), rank(other));
        a.total_cmp(&c).then(b.total_cmp(&d))
    });
    Some(all)
}
