//! The observations that predictors make of streams: the ages of outputs and the times between
//! tokens. A live balancer sees each token; here a step is not an event, so both are computed when
//! something else happens.

use super::engines::PICOS;
use super::events::WorldEvent;
use super::{START, World, timestamp};

/// The interval between updates of the predictors, as in the proxy.
const INTERVAL: u64 = 1_000_000;

impl World<'_> {
    pub(super) fn start_predictions(&mut self) {
        if self.predicts {
            self.queue.push(START + INTERVAL, WorldEvent::Refresh);
        }
    }

    /// Updates the predictors of all balancers.
    pub(super) fn refresh_predictions(&mut self, at: u64) {
        self.queue.push(at + INTERVAL, WorldEvent::Refresh);
        let mut streams = Vec::new();
        for one in &self.engines.all {
            one.engine.streams(at.saturating_mul(PICOS), &mut streams);
            for (id, emitted) in &streams {
                let live = self.live.get_mut(*id as usize).and_then(Option::as_mut);
                if let Some(ticket) = live.and_then(|live| live.prediction()) {
                    ticket.observe(*emitted, at as f64);
                }
            }
        }
        for balancer in &self.balancers {
            balancer.generation.fleet.refresh_predictions(timestamp(at));
        }
    }

    /// Passes on the end of an engine's last step, which tokens show live; called before an
    /// engine's event and before a decision.
    pub(super) fn learn_steps(&self, index: usize, at: u64) {
        if !self.predicts {
            return;
        }
        let Some(one) = self.engines.all.get(index) else { return };
        let Some((ended, count)) = one.engine.steps_ended(at.saturating_mul(PICOS)) else { return };
        let (ended, count) = (ended as f64 / PICOS as f64, count as f64);
        for balancer in &self.balancers {
            let models = balancer.topology.models().iter().flat_map(|model| &model.serving);
            for row in models.filter(|row| usize::from(row.backend) == index) {
                if let Some(predictor) = row.model_state.used_predictor() {
                    predictor.observe_steps(ended, count);
                }
            }
        }
    }
}
