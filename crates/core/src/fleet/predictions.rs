//! Predictions for a request on a candidate, and the fleet's knowledge of engines for them.

use std::time::Duration;

use penstock_api::units::Timestamp;
use penstock_predict::{
    Estimate, LearnedState, MAX_LOOKAHEAD, MeanAndP90, ReportedLimits, RequestShape,
};
use penstock_scoring::{Objectives, PredictedLatency};
use serde::{Deserialize, Serialize};

use super::serving::Serving;
use super::telemetry::Readings;
use super::{Fleet, Identity};

/// The most predictions, one per model and backend, that pass to another process: those with the
/// most first tokens.
const MAX_PASSED: usize = 1024;
/// The KV cache utilization above which an engine's requests wait for blocks, not for slots.
const NEARLY_FULL_KV: f32 = 0.9;

/// The learned predictions of one model on one backend, as an upgrade passes them to the new
/// process.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct LearnedPrediction {
    pub backend: String,
    pub url: String,
    pub engine: String,
    /// The model's name there.
    pub model: String,
    pub learned: LearnedState,
}

impl Serving {
    /// Predicts the latencies of a request sent there at `now`. Takes no lock and allocates
    /// nothing, except for the first prediction of the model there.
    #[inline(always)]
    pub fn estimate(&self, request: &RequestShape, now: Timestamp) -> Estimate {
        self.model_state.predictor().estimate(request, now.0 as f64)
    }

    /// The predicted time from admission to the first token of a request, in microseconds: the mean
    /// and the 90th percentile; 0 if its predictions are not trusted.
    pub fn admitted_ttft(&self, request: &RequestShape, now: Timestamp) -> MeanAndP90 {
        let predictor = self.model_state.used_predictor();
        predictor.map_or(MeanAndP90::default(), |predictor| {
            predictor.admitted_ttft(request, self.max_backlog, now.0 as f64)
        })
    }

    /// The time until a request would meet its objectives there, if nothing else arrives; at most
    /// 120 s. `None` if an idle engine would miss them, too.
    pub fn time_until_met(
        &self,
        request: &RequestShape,
        objectives: &Objectives,
        now: Timestamp,
    ) -> Option<Duration> {
        let micros =
            self.model_state.predictor().time_until(request, now.0 as f64, meets(objectives))?;
        Some(Duration::from_secs_f64(micros.max(0.0) / 1e6))
    }

    /// The number of requests like this one that would meet their objectives if they arrived
    /// together in `wait`, and nothing else does.
    pub fn met_together(
        &self,
        request: &RequestShape,
        objectives: &Objectives,
        wait: Duration,
        now: Timestamp,
    ) -> u32 {
        let predictor = self.model_state.predictor();
        let (wait_us, is_met) = (wait.as_secs_f64() * 1e6, meets(objectives));
        predictor.met_together(request, now.0 as f64, wait_us, is_met)
    }

    /// The time until the backend is idle, if nothing else arrives; at most 120 s.
    pub fn time_until_idle(&self, request: &RequestShape, now: Timestamp) -> Duration {
        // The predicted count is a fraction: half a request or less is none.
        self.time_until_fewer(0.5, request, now)
    }

    /// The time until it has one request less, if nothing else arrives; at most 120 s.
    pub fn time_until_room(&self, request: &RequestShape, now: Timestamp) -> Duration {
        let requests = self.estimate(request, now).prediction.request_count;
        self.time_until_fewer((requests - 1.0).max(0.5), request, now)
    }

    fn time_until_fewer(
        &self,
        max_requests: f64,
        request: &RequestShape,
        now: Timestamp,
    ) -> Duration {
        let is_met = |estimate: &Estimate| estimate.prediction.request_count <= max_requests;
        let micros = self.model_state.predictor().time_until(request, now.0 as f64, is_met);
        micros.map_or(MAX_LOOKAHEAD, |micros| Duration::from_secs_f64(micros.max(0.0) / 1e6))
    }

    /// Learns from requests that wait longer than predicted, and from the engine's reports.
    /// `is_alone` is set if the backend serves no other model, whose requests the engine would also
    /// count.
    fn refresh_prediction(&self, is_alone: bool, now: Timestamp) {
        let Some(predictor) = self.model_state.used_predictor() else { return };
        let slots = Some(self.model_state.slots()).filter(|slots| *slots != u32::MAX);
        let capacity = self.state.telemetry.details().and_then(|one| one.capacity_tokens());
        let read = self.state.telemetry.read(&self.state.load, now);
        let kv_tokens = capacity.map_or(f64::INFINITY, |tokens| tokens as f64);
        // What waits, or gave way to others, is there and not in the cache.
        let waits = read.waiting.is_none_or(|waiting| waiting >= 1.0);
        let used_share = read.kv_utilization.filter(|_| kv_tokens.is_finite() && !waits);
        let reported = ReportedLimits {
            slots: slots.map_or(f64::INFINITY, f64::from),
            kv_tokens,
            used_kv_tokens: used_share.map(|share| f64::from(share) * kv_tokens),
            // The engine reports all of its models together.
            running: read.running.filter(|_| is_alone).map(f64::from),
            is_queued: is_queued(&read),
            request_count: read.waiting.and(read.running).map(|_| f64::from(read.load)),
        };
        predictor.refresh(reported, now.0 as f64);
    }
}

impl Fleet {
    /// Keeps predictions current. Must be called about once a second.
    pub fn refresh_predictions(&self, now: Timestamp) {
        let topology = &self.topology();
        let rows = || topology.models().iter().flat_map(|model| &model.serving);
        let mut models = vec![0_u32; topology.backends.len()];
        for row in rows() {
            if let Some(count) = models.get_mut(usize::from(row.backend)) {
                *count += 1;
            }
        }
        for row in rows() {
            let count = models.get(usize::from(row.backend));
            row.refresh_prediction(count == Some(&1), now);
        }
        for model in topology.models() {
            adopt_known(&model.serving);
            lend_slots(&model.serving);
        }
    }

    /// Returns the learned predictions of every model on every backend.
    pub fn learned_predictions(&self) -> Vec<LearnedPrediction> {
        let topology = self.topology();
        let rows = topology.models().iter().flat_map(|model| &model.serving);
        let learned = rows.filter_map(|row| {
            let learned = row.model_state.used_predictor()?.learned_state();
            let backend = topology.backends.get(usize::from(row.backend))?;
            let Identity { name, url, engine } = Identity::of(&backend.config);
            Some(LearnedPrediction {
                backend: name,
                url,
                engine: engine.name().to_owned(),
                model: row.model.to_string(),
                learned,
            })
        });
        // One that has learned nothing is what the next process starts with anyway.
        let mut all: Vec<_> = learned.filter(|one| one.learned.first_token_count() > 0.0).collect();
        all.sort_by(|a, b| b.learned.first_token_count().total_cmp(&a.learned.first_token_count()));
        // After the sort: what took longest to learn is passed on first.
        all.truncate(MAX_PASSED);
        all
    }

    /// Applies the predictions of another process for the same models on the same backends. Returns
    /// the number applied.
    pub fn apply_learned_predictions(&self, all: Vec<LearnedPrediction>) -> usize {
        let topology = self.topology();
        let mut applied = 0;
        for one in all.into_iter().filter(|one| one.learned.is_readable()) {
            let is_of = |row: &&Serving| {
                let backend = topology.backends.get(usize::from(row.backend));
                *row.model == *one.model
                    && backend.is_some_and(|backend| {
                        Identity::of(&backend.config).is_of(&one.backend, &one.url, &one.engine)
                    })
            };
            let mut rows = topology.models().iter().flat_map(|model| &model.serving);
            if let Some(row) = rows.find(is_of) {
                row.model_state.predictor().restore(one.learned);
                applied += 1;
            }
        }
        applied
    }
}

/// Returns the test of whether a request with an estimate would meet its objectives.
fn meets(objectives: &Objectives) -> impl Fn(&Estimate) -> bool {
    |estimate| {
        let headroom = objectives.headroom(&PredictedLatency::from(*estimate));
        headroom.is_none_or(|headroom| headroom.is_met())
    }
}

/// Returns whether requests wait in the engine, by its report, although its KV cache has room.
fn is_queued(read: &Readings) -> bool {
    let has_room = read.kv_utilization.is_none_or(|share| share < NEARLY_FULL_KV);
    has_room && read.waiting.is_some_and(|waiting| waiting >= 1.0)
}

/// Lends the slots that backends have shown to the others of the same model and the same kind of
/// engine.
fn lend_slots(rows: &[Serving]) {
    let known = rows.iter().filter_map(|row| {
        let predictor = row.model_state.used_predictor()?;
        Some((row.engine(), predictor.shown_slots(), predictor.max_running()))
    });
    let known: Vec<_> = known.collect();
    for row in rows {
        let Some(predictor) = row.model_state.used_predictor() else { continue };
        let alike = known.iter().filter(|(engine, ..)| *engine == row.engine());
        predictor.lend_slots(slots_of_kind(alike.map(|(_, shown, ran)| (*shown, *ran))));
    }
}

/// Returns the slots of a kind of engine, by those that each of them has shown and by the most
/// requests that it has run; infinite if none has shown any.
// The largest number: a request that need not wait shows more than one that is kept away.
fn slots_of_kind(engines: impl Iterator<Item = (f64, f64)>) -> f64 {
    let (mut most, mut is_shown) = (0.0_f64, false);
    for (shown, ran) in engines {
        is_shown |= shown.is_finite();
        most = most.max(ran).max(if shown.is_finite() { shown } else { 0.0 });
    }
    if is_shown { most } else { f64::INFINITY }
}

/// Seeds new predictors from the best-trained backend of the same model. Configured step times take
/// precedence.
fn adopt_known(rows: &[Serving]) {
    let is_unknown = |row: &&Serving| row.model_state.is_unpredicted();
    // The usual case, once a second for each model: nothing is copied.
    if !rows.iter().any(|row| is_unknown(&row)) {
        return;
    }
    let known = rows.iter().filter_map(|row| row.model_state.used_predictor());
    let known = known.filter(|one| one.is_trusted()).map(|one| one.learned_state());
    let best =
        known.max_by(|one, other| one.first_token_count().total_cmp(&other.first_token_count()));
    if let Some(best) = best {
        rows.iter().filter(is_unknown).for_each(|row| row.model_state.predictor().adopt(&best));
    }
}

#[cfg(test)]
mod tests {
    use super::slots_of_kind;

    #[test]
    fn kind_of_engine_has_as_many_slots_as_any_of_them_has_shown_or_run() {
        let of = |engines: &[(f64, f64)]| slots_of_kind(engines.iter().copied());
        assert_eq!(of(&[(f64::INFINITY, 90.0), (f64::INFINITY, 3.0)]), f64::INFINITY);
        assert_eq!(of(&[(16.0, 16.0), (f64::INFINITY, 3.0), (8.0, 8.0)]), 16.0);
        assert_eq!(of(&[(14.0, 14.0), (f64::INFINITY, 90.0)]), 90.0, "one waits for its cache");
        assert_eq!(of(&[]), f64::INFINITY);
    }
}
