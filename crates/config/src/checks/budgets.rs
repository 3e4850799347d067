//! Rules about `budgets:` and the prices that they count by.

use super::models::{declared_models, is_served, resolve};
use crate::sections::Config;
use crate::sections::backends::BackendConfig;
use crate::sections::budgets::{BudgetConfig, BudgetScope, MAX_BUDGETS};
use crate::syntax::document::Node;
use crate::syntax::errors::Problem;
use crate::syntax::reader::Reader;
use crate::syntax::suggest::nearest;
use crate::syntax::warnings::Warning;

/// Checks the budgets of `config`.
pub(super) fn check(config: &Config, root: &Node, reader: &mut Reader) {
    check_currencies(config, root, reader);
    let node = root.at("budgets");
    let count = config.budgets.len();
    // The checks below compare each with all before it.
    if count > MAX_BUDGETS {
        let problem = Problem::TooManyBudgets { count, limit: MAX_BUDGETS };
        reader.fault(root.key_place("budgets"), problem);
        return;
    }
    if count > 0 && config.ledger.path.is_none() {
        reader.fault(root.key_place("budgets"), Problem::BudgetsWithoutLedger);
    }
    if count > 0 && config.prices().next().is_none() {
        reader.warn(root.key_place("budgets"), Warning::NoPrices);
    }
    for (index, (budget, item)) in config.budgets.iter().zip(node.items()).enumerate() {
        let earlier = config.budgets.get(..index).unwrap_or_default();
        let name = || budget.name.clone();
        if earlier.iter().any(|other| other.name == budget.name) {
            reader.fault(item.key_place("name"), Problem::BudgetTwice { name: name() });
        }
        if !budget.zones.is_empty() && budget.model.is_some() {
            reader.fault(item.key_place("model"), Problem::TwoReactions { budget: name() });
        }
        check_budget(config, budget, item, reader);
    }
    if count > 0 && !config.routing.passthrough.is_empty() {
        let place = root.at("routing").key_place("passthrough");
        reader.warn(place, Warning::UncountedPassthrough);
    }
    check_keys(config, root, reader);
}

/// Warns of a budget that counts nothing, or whose reaction leads nowhere.
fn check_budget(config: &Config, budget: &BudgetConfig, item: &Node, reader: &mut Reader) {
    let name = || budget.name.clone();
    let keys = &config.auth.keys;
    let has_subject = match budget.per {
        BudgetScope::Everything => true,
        BudgetScope::Team => keys.iter().any(|key| key.team.is_some()),
        BudgetScope::Key => !keys.is_empty(),
    };
    // Keys that are made at run time may have a team, and so may tokens.
    let makes_clients = config.auth.store.is_some() || !config.auth.jwt.is_empty();
    if !has_subject && !makes_clients {
        let (budget, per) = (name(), budget.per.name());
        reader.warn(item.key_place("per"), Warning::BudgetWithoutClients { budget, per });
    }
    if let (Some(model), Some(declared)) = (&budget.model, declared_models(config))
        && !is_served(&declared, &resolve(&config.routing, Some(&declared), model))
    {
        let (budget, model) = (name(), model.clone());
        reader.warn(item.key_place("model"), Warning::UnknownBudgetModel { budget, model });
    }
    let is_in_zone = |backend: &BackendConfig| {
        backend.zone_name().is_some_and(|zone| budget.zones.iter().any(|listed| listed == zone))
    };
    if !budget.zones.is_empty() && !config.backends.iter().any(is_in_zone) {
        reader.warn(item.key_place("zones"), Warning::NoBudgetZone { budget: name() });
    }
}

/// Refuses keys that name a budget that is not there.
fn check_keys(config: &Config, root: &Node, reader: &mut Reader) {
    let items = root.at("auth").at("keys").items();
    for (index, (key, item)) in config.auth.keys.iter().zip(items).enumerate() {
        let Some(given) = &key.budget else { continue };
        let known = || config.budgets.iter().map(|budget| budget.name.as_str());
        if known().any(|name| name == given) {
            continue;
        }
        let problem = Problem::UnknownValue {
            key: format!("auth.keys[{index}].budget"),
            given: given.clone(),
            suggestion: nearest(given, known()).map(str::to_owned),
            known: known().collect::<Vec<_>>().join(", "),
        };
        reader.fault(item.key_place("budget"), problem);
    }
}

/// Refuses prices in several currencies: nothing converts them.
fn check_currencies(config: &Config, root: &Node, reader: &mut Reader) {
    let mut named = config.prices().filter_map(|price| price.currency.as_deref());
    // A price without a currency has that of the others.
    let Some(first) = named.next() else { return };
    if let Some(other) = named.find(|other| *other != first) {
        let (first, second) = (first.to_owned(), other.to_owned());
        reader.fault(root.key_place("models"), Problem::TwoCurrencies { first, second });
    }
}
