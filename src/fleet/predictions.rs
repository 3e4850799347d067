//! What is predicted of a request on a candidate, and what the fleet knows of engines for it.

use std::time::Duration;

use serde::{Deserialize, Serialize};

use super::serving::Serving;
use super::{Fleet, Identity};
use crate::predict::{Estimate, LONGEST_WAIT, Learned, Sent};
use crate::scoring::{Objectives, PredictedLatency};
use crate::units::Timestamp;

/// The most models on backends whose predictions pass to another process: those with the most first tokens.
const MOST_PASSED: usize = 1024;

/// What was learned of one model on one backend, as an upgrade passes it to the new process.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct LearnedPrediction {
    /// The backend's name.
    pub backend: String,
    /// Its URL.
    pub url: String,
    /// Its configured engine.
    pub engine: String,
    /// The model's name there.
    pub model: String,
    /// What was learned.
    pub learned: Learned,
}

impl Serving {
    /// The latencies of a request that is sent there at `now`. Takes no lock and allocates nothing, but for the first
    /// prediction of the model there.
    #[inline]
    pub fn estimate(&self, sent: &Sent, now: Timestamp) -> Estimate {
        self.model_state.predictor().estimate(sent, now.0 as f64)
    }

    /// How long the first token of a request takes once the backend takes it, in microseconds: the mean, and the 90th
    /// percentile; 0 where its predictions are not trusted.
    pub fn time_admitted(&self, sent: &Sent, now: Timestamp) -> (f64, f64) {
        let predictor = self.model_state.used_predictor();
        predictor.map_or((0.0, 0.0), |predictor| {
            predictor.time_admitted(sent, self.max_backlog, now.0 as f64)
        })
    }

    /// In how long a request would meet its objectives there, if nothing else arrives; at most 120 s. `None` where it would
    /// not on an idle engine either.
    pub fn time_until_met(
        &self,
        sent: &Sent,
        objectives: &Objectives,
        now: Timestamp,
    ) -> Option<Duration> {
        let is_met = |estimate: &Estimate| {
            let headroom = objectives.headroom(&PredictedLatency::from(*estimate));
            headroom.is_none_or(|headroom| headroom.is_met())
        };
        let micros = self.model_state.predictor().time_until(sent, now.0 as f64, is_met)?;
        Some(Duration::from_secs_f64(micros.max(0.0) / 1e6))
    }

    /// In how long it has nothing to do, if nothing else arrives; at most 120 s.
    pub fn time_until_idle(&self, sent: &Sent, now: Timestamp) -> Duration {
        let is_idle = |estimate: &Estimate| estimate.prediction.requests < 0.5;
        let micros = self.model_state.predictor().time_until(sent, now.0 as f64, is_idle);
        micros.map_or(LONGEST_WAIT, |micros| Duration::from_secs_f64(micros.max(0.0) / 1e6))
    }

    /// Learns from requests that wait for longer than was predicted, and what the engine reports of its limits.
    fn refresh_prediction(&self, now: Timestamp) {
        let Some(predictor) = self.model_state.used_predictor() else { return };
        let slots = Some(self.model_state.slots()).filter(|slots| *slots != u32::MAX);
        let capacity = self.state.telemetry.details().and_then(|one| one.capacity_tokens());
        predictor.refresh(
            slots.map_or(f64::INFINITY, f64::from),
            capacity.map_or(f64::INFINITY, |tokens| tokens as f64),
            now.0 as f64,
        );
    }
}

impl Fleet {
    /// Keeps predictions current. Call it about once a second.
    pub fn refresh_predictions(&self, now: Timestamp) {
        let topology = &self.topology();
        for model in topology.models() {
            model.serving.iter().for_each(|row| row.refresh_prediction(now));
            adopt_known(&model.serving);
        }
    }

    /// What was learned of every model on every backend.
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
        let mut all: Vec<_> = learned.filter(|one| one.learned.first_tokens() > 0.0).collect();
        all.sort_by(|a, b| b.learned.first_tokens().total_cmp(&a.learned.first_tokens()));
        all.truncate(MOST_PASSED);
        all
    }

    /// Continues with what another process has learned of the same models on the same backends. Returns of how many.
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

/// Has backends of which nothing is known start with what is known of the model on another one, the one that most is known
/// of. Where the configuration names step times, it knows better.
fn adopt_known(rows: &[Serving]) {
    let is_unknown = |row: &&Serving| row.model_state.is_unpredicted();
    if !rows.iter().any(|row| is_unknown(&row)) {
        return;
    }
    let known = rows.iter().filter_map(|row| row.model_state.used_predictor());
    let known = known.filter(|one| one.is_trusted()).map(|one| one.learned_state());
    let best = known.max_by(|one, other| one.first_tokens().total_cmp(&other.first_tokens()));
    if let Some(best) = best {
        rows.iter().filter(is_unknown).for_each(|row| row.model_state.predictor().adopt(&best));
    }
}
