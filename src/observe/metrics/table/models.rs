//! Metrics of the models on each backend. `limits.metric_models` bounds their labels per backend; a
//! missing value has no sample.

use penstock_core::fleet::{Serving, Topology};
use penstock_scoring::Residency;

use super::super::Scrape;
use super::super::row::{MetricRow, gauge};
use super::super::samples::{Samples, number, to_sample};

pub(super) const LABELS: &[&str] = &["backend", "model"];

pub(super) const ROWS: &[MetricRow] = &[
    gauge(
        "penstock_model_resident",
        LABELS,
        |_, scrape| resident(scrape),
        "1 while the backend has the model in memory, 0 while it would load or wake it; absent while that is not known; at most `limits.metric_models` per backend, those in memory first",
    ),
    gauge(
        "penstock_model_vram_bytes",
        LABELS,
        |_, scrape| per_model(scrape, |row| row.model_state.vram().map(|vram| to_sample(vram.0))),
        "VRAM that the model occupies, where the engine reports it",
    ),
    gauge(
        "penstock_model_in_flight",
        LABELS,
        |_, scrape| {
            per_model(scrape, |row| {
                Some(row.model_state.in_flight()).filter(|count| *count > 0).map(f64::from)
            })
        },
        "requests for the model dispatched to the backend that have not ended; absent without one",
    ),
];

fn resident(scrape: &Scrape<'_>) -> Samples {
    let residency = |row: &Serving| row.residency(scrape.now);
    let mut samples = Bounded::new(scrape);
    samples.add(|row| (residency(row) == Residency::Resident).then_some(1.0));
    let is_elsewhere =
        |row: &Serving| matches!(residency(row), Residency::Loadable | Residency::Sleeping);
    samples.add(|row| is_elsewhere(row).then_some(0.0));
    samples.all
}

/// One sample for each model of each backend for which `read` returns a value.
pub(super) fn per_model(scrape: &Scrape<'_>, read: impl Fn(&Serving) -> Option<f64>) -> Samples {
    let mut samples = Bounded::new(scrape);
    samples.add(read);
    samples.all
}

/// The same, with the values of a further label.
pub(super) fn per_model_by<I: IntoIterator<Item = (String, f64)>>(
    scrape: &Scrape<'_>,
    read: impl Fn(&Serving) -> Option<I>,
) -> Samples {
    let mut samples = Bounded::new(scrape);
    samples.for_each(read, |all, [backend, model], found| {
        all.extend(found.into_iter().map(|(by, value)| number(&[backend, model, &by], value)));
    });
    samples.all
}

/// Samples of at most `limits.metric_models` models per backend.
struct Bounded<'a> {
    fleet: &'a Topology,
    /// The remaining number of models for each backend.
    room: Vec<usize>,
    all: Samples,
}

impl<'a> Bounded<'a> {
    fn new(scrape: &Scrape<'a>) -> Self {
        let limit = scrape.generation.config.limits.metric_models;
        let room = vec![limit; scrape.fleet.backends.len()];
        Self { fleet: scrape.fleet, room, all: Samples::new() }
    }

    fn add(&mut self, read: impl Fn(&Serving) -> Option<f64>) {
        self.for_each(read, |all, labels, value| all.push(number(&labels, value)));
    }

    fn for_each<T>(
        &mut self,
        read: impl Fn(&Serving) -> Option<T>,
        push: impl Fn(&mut Samples, [&str; 2], T),
    ) {
        for model in self.fleet.models() {
            for row in &model.serving {
                let Some(room) = self.room.get_mut(usize::from(row.backend)) else { continue };
                let Some(value) = read(row).filter(|_| *room > 0) else { continue };
                *room -= 1;
                push(&mut self.all, [&row.state.name, &model.name], value);
            }
        }
    }
}
