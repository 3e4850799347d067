//! Where a request would meet its objectives now, and if nowhere, when: the same predictions as decisions read, for
//! clients that want to know before they send.

use std::time::Duration;

use super::SplitPoint;
use super::generation::Generation;
use crate::fleet::{Health, Serving};
use penstock_api::units::Timestamp;
use penstock_predict::Sent;
use penstock_scoring::{Headroom, Objectives, PredictedLatency};

/// A backend that serves the model.
#[derive(Debug, Clone, PartialEq)]
pub struct QuotedBackend {
    /// Its name.
    pub name: Box<str>,
    /// What is predicted of the request there.
    pub prediction: PredictedLatency,
    /// How far that is below the objectives; `None` without any.
    pub headroom: Option<Headroom>,
    /// In how long the objectives are met there, if nothing else arrives; `None` where they would not be on an idle
    /// engine either.
    pub wait: Option<Duration>,
}

impl QuotedBackend {
    /// Whether the objectives are met there.
    pub fn is_feasible(&self) -> bool {
        self.headroom.is_none_or(|headroom| headroom.is_met())
    }

    fn of(row: &Serving, sent: &Sent, objectives: &Objectives, now: Timestamp) -> Self {
        let prediction = PredictedLatency::from(row.estimate(sent, now));
        let headroom = objectives.headroom(&prediction);
        let wait = row.time_until_met(sent, objectives, now);
        Self { name: row.state.name.clone(), prediction, headroom, wait }
    }
}

/// Predicts a request for `model` on every backend that serves it and is not known to be unhealthy, the one with the most
/// headroom first, else the fastest. `None` for a model that no backend serves.
pub fn quote(
    generation: &Generation,
    model: &str,
    sent: &Sent,
    objectives: &Objectives,
    now: Timestamp,
) -> Option<Vec<QuotedBackend>> {
    let fleet = generation.fleet.topology();
    let name = generation.router.names.resolve(model, &fleet, SplitPoint::default());
    let model = fleet.model(fleet.model_id(name)?)?;
    let serves = |row: &&Serving| matches!(row.state.status(), Health::Healthy | Health::Unknown);
    let rows = model.serving.iter().filter(serves);
    let mut all: Vec<QuotedBackend> =
        rows.map(|row| QuotedBackend::of(row, sent, objectives, now)).collect();
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
