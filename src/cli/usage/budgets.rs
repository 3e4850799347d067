//! `penstock usage --budgets`: what was spent of each budget, by the configuration and its ledger.

use std::path::Path;

use penstock_api::escape;
use penstock_config::Config;
use penstock_core::admission::budgets::{BudgetReport, Budgets, Money};
use serde_json::Value;

use super::export::{MAX_NAME, aligned, quoted};
use crate::observe::ledger::{DatabaseError, spent};

const COLUMNS: [&str; 8] =
    ["budget", "per", "subject", "limit", "spent", "used", "left", "resets at"];
/// The columns of names, which are aligned to the left.
const NAMES: usize = 3;

/// Returns the state of every budget at `unix` seconds since 1970, by what the ledger at `path`
/// has.
pub(super) fn states(
    config: &Config,
    path: &Path,
    unix: u64,
) -> Result<Vec<BudgetReport>, DatabaseError> {
    let budgets = Budgets::new(config);
    for stored in spent(path, budgets.oldest(unix))? {
        budgets.restore(&stored, Money::ZERO);
    }
    Ok(budgets.reports(unix))
}

/// Formats a table with aligned columns.
pub(super) fn to_table(states: &[BudgetReport]) -> String {
    if states.is_empty() {
        return "no budgets, or nothing was spent of them in this period\n".to_owned();
    }
    let head = COLUMNS.map(str::to_uppercase).to_vec();
    let rows = states.iter().map(|state| {
        let used = state.balance.spent.amount() / state.limit.amount().max(f64::MIN_POSITIVE);
        let subject = match &*state.subject {
            "" => "(all)".to_owned(),
            name => escape(name, MAX_NAME).to_string(),
        };
        vec![
            escape(&state.budget, MAX_NAME).to_string(),
            state.scope.name().to_owned(),
            subject,
            format!("{:.4}", state.limit.amount()),
            format!("{:.4}", state.balance.spent.amount()),
            format!("{:.0}%", (used * 100.0).min(9999.0)),
            format!("{:.4}", state.left().amount()),
            state.resets_at().to_string(),
        ]
    });
    aligned(&[vec![head], rows.collect()].concat(), NAMES)
}

/// Formats CSV (RFC 4180) with a line of names.
pub(super) fn to_csv(states: &[BudgetReport]) -> String {
    let mut text = "budget,per,subject,limit,spent,left,resets_at\r\n".to_owned();
    for state in states {
        text.push_str(&format!(
            "{},{},{},{},{},{},{}\r\n",
            quoted(&state.budget),
            state.scope.name(),
            quoted(&state.subject),
            state.limit.amount(),
            state.balance.spent.amount(),
            state.left().amount(),
            state.resets_at(),
        ));
    }
    text
}

/// Formats a JSON array of objects. What only a running penstock knows is left out.
pub(super) fn to_json(states: &[BudgetReport]) -> String {
    let row = |state: &BudgetReport| {
        let mut row = state.to_json();
        if let Some(fields) = row.as_object_mut() {
            fields.remove("reserved");
            fields.remove("refused");
        }
        row
    };
    format!("{:#}\n", Value::Array(states.iter().map(row).collect()))
}
