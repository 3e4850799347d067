//! The log of the strategies that the configuration does not name: a line per model at the start,
//! and one whenever its strategy changes, because an engine was detected, a backend joined, or a
//! reload.

use std::collections::HashMap;

use penstock_api::units::Timestamp;
use penstock_core::routing::{ChosenStrategy, Generation};

/// The largest number of models that are logged at a time.
const MAX_LINES: usize = 20;

/// The choices that were logged, by model.
#[derive(Default)]
pub struct StrategyLog {
    known: HashMap<Box<str>, ChosenStrategy>,
}

/// A new choice, and the one before it.
#[derive(Debug, PartialEq)]
struct StrategyChange<'a> {
    model: &'a str,
    chosen: ChosenStrategy,
    before: Option<ChosenStrategy>,
}

impl StrategyLog {
    /// Logs the choices that have changed.
    pub(super) fn update(&mut self, generation: &Generation, now: Timestamp) {
        let topology = generation.fleet.topology();
        let models = topology.models().iter();
        let chosen = models.filter_map(|model| {
            let chosen = generation.router.chosen_strategy(model, now);
            chosen.reason.is_some().then_some((&*model.name, chosen))
        });
        let changes = self.changes(chosen.collect());
        for StrategyChange { model, chosen, before } in changes.iter().take(MAX_LINES) {
            let ChosenStrategy { strategy, preset, reason } = chosen;
            let strategy = strategy.name();
            match before.map(|before| before.strategy.name()) {
                None => tracing::info!(%model, strategy, preset, reason, "strategy chosen"),
                Some(before) => {
                    tracing::info!(%model, strategy, preset, before, reason, "strategy changed");
                }
            }
        }
        let further = changes.len().saturating_sub(MAX_LINES);
        if further > 0 {
            tracing::info!(further, "strategies of further models chosen, see /fleet");
        }
    }

    /// Returns the choices that are not known yet, and remembers all of them.
    fn changes<'a>(&mut self, all: Vec<(&'a str, ChosenStrategy)>) -> Vec<StrategyChange<'a>> {
        let changed = all.iter().filter_map(|(model, chosen)| {
            let before = self.known.get(*model).copied();
            let is_new = before != Some(*chosen);
            is_new.then_some(StrategyChange { model, chosen: *chosen, before })
        });
        let changes: Vec<StrategyChange<'_>> = changed.collect();
        // Most ticks change nothing, and allocate no names.
        if !changes.is_empty() || self.known.len() != all.len() {
            self.known = all.iter().map(|(model, chosen)| ((*model).into(), *chosen)).collect();
        }
        changes
    }
}

#[cfg(test)]
mod tests {
    use penstock_config::Strategy;

    use super::*;

    const SMART: ChosenStrategy = ChosenStrategy {
        strategy: Strategy::Smart,
        preset: None,
        reason: Some("not all are known"),
    };
    const WEIGHTED: ChosenStrategy = ChosenStrategy {
        strategy: Strategy::Weighted,
        preset: Some("balanced"),
        reason: Some("they keep prefixes"),
    };

    #[test]
    fn choice_is_logged_once_per_change() {
        let mut log = StrategyLog::default();
        let models = |log: &mut StrategyLog, all: &[(&'static str, ChosenStrategy)]| {
            let changes = log.changes(all.to_vec()).into_iter();
            changes.map(|one| (one.model, one.chosen, one.before)).collect::<Vec<_>>()
        };
        assert_eq!(models(&mut log, &[("a", SMART)]), [("a", SMART, None)]);
        assert_eq!(models(&mut log, &[("a", SMART)]), []);
        let joined = [("a", WEIGHTED), ("b", SMART)];
        let expected = [("a", WEIGHTED, Some(SMART)), ("b", SMART, None)];
        assert_eq!(models(&mut log, &joined), expected);
        assert_eq!(models(&mut log, &joined), []);
        // A model that was gone is new again.
        assert_eq!(models(&mut log, &[("a", WEIGHTED)]), []);
        assert_eq!(models(&mut log, &joined), [("b", SMART, None)]);
    }
}
