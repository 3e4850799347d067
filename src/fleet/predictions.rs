//! What is predicted of a request on a candidate, and what the fleet knows of engines for it.

use super::Fleet;
use super::serving::Serving;
use crate::predict::{Estimate, Sent};
use crate::units::Timestamp;

impl Serving {
    /// The latencies of a request that is sent there at `now`. Takes no lock and allocates nothing, but for the first
    /// prediction of the model there.
    #[inline]
    pub fn estimate(&self, sent: &Sent, now: Timestamp) -> Estimate {
        self.model_state.predictor().estimate(sent, now.0 as f64)
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
        for row in topology.models().iter().flat_map(|model| &model.serving) {
            row.refresh_prediction(now);
        }
    }
}
