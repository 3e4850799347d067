//! The strategy of a model and the reason for it; with `auto` another one for each model, by what
//! its backends share.

use penstock_api::ModelLoading;
use penstock_api::units::Timestamp;
use penstock_config::Strategy;
use penstock_scoring::Standing;

use super::router::Router;
use super::weighted::Weighted;
use crate::fleet::{Model, Serving};

/// The strategy of a model, with the reason for the choice.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ChosenStrategy {
    /// The strategy, which is never [`Strategy::Auto`].
    pub strategy: Strategy,
    /// The preset of scorers of the strategy weighted.
    pub preset: Option<&'static str>,
    /// The reason; `None` if the configuration names the strategy.
    pub reason: Option<&'static str>,
}

impl Router {
    /// Returns the strategy for a model at `now`. It may change: engines are detected and scraped.
    #[inline]
    pub fn strategy_of(&self, model: &Model, now: Timestamp) -> Strategy {
        match self.strategy() {
            Strategy::Auto => choose(model, now).strategy,
            strategy => strategy,
        }
    }

    /// Returns the strategy for a model at `now`, with the reason for it.
    pub fn chosen_strategy(&self, model: &Model, now: Timestamp) -> ChosenStrategy {
        let reason = self.strategy_reason;
        let chosen = match self.strategy() {
            Strategy::Auto => choose(model, now),
            strategy => ChosenStrategy { strategy, preset: None, reason },
        };
        let preset = self.weighted_in(chosen.strategy).and_then(Weighted::preset);
        ChosenStrategy { preset, ..chosen }
    }
}

fn choose(model: &Model, now: Timestamp) -> ChosenStrategy {
    let of = |strategy, reason| ChosenStrategy { strategy, preset: None, reason: Some(reason) };
    let all = |holds: &dyn Fn(&Serving) -> bool| model.serving.iter().all(holds);
    let Some(first) = model.serving.first() else {
        return of(Strategy::Smart, "it has no backends");
    };
    // The operator has ordered them.
    if !all(&|row| row.priority == first.priority) {
        return of(Strategy::Smart, "its backends have different priorities");
    }
    if all(&|row| row.engine().row().loading == ModelLoading::OnDemand) {
        return of(Strategy::Deployment, "its engines load models on demand");
    }
    if all(&|row| row.engine().row().caches_prefixes || is_scraped(row, now)) {
        let reason = "its engines keep prefixes of prompts, or report their load";
        return of(Strategy::Weighted, reason);
    }
    of(
        Strategy::Smart,
        "not all of its engines are known to keep prefixes of prompts or report their load",
    )
}

/// Returns whether the telemetry of a backend is fresh.
fn is_scraped(row: &Serving, now: Timestamp) -> bool {
    row.state.telemetry.read(&row.state.load, now).standing == Standing::Fresh
}
