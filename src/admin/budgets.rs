//! `/budgets`: what was spent of each budget.

use penstock_api::query_value;
use penstock_clock::unix_seconds;
use penstock_core::admission::budgets::BudgetReport;
use serde_json::json;

use super::response::{AdminResponse, Refusal};
use super::{Admin, Call};

/// The number of rows in a response without `n`.
const DEFAULT_ROWS: usize = 100;
/// The maximum number of rows in a response.
const MAX_ROWS: usize = 1000;

/// `/budgets`: every budget, by its name and the team or key whose amount it is. `name` is that of
/// one budget; `n` limits the rows.
pub(super) fn states(admin: &Admin, call: &Call<'_>) -> Result<AdminResponse, Refusal> {
    // A form sends `name=` for a field that was left empty.
    let given = |name| query_value(call.query, name).filter(|value| !value.is_empty());
    let count = match given("n") {
        None => DEFAULT_ROWS,
        Some(count) => count.parse().map_err(|_not_a_number| Refusal::NotACount)?,
    };
    let count = count.min(MAX_ROWS);
    let mut all = admin.proxy.budgets.reports(unix_seconds());
    if let Some(name) = given("name") {
        all.retain(|report| *report.budget == *name);
    }
    let rows: Vec<_> = all.iter().take(count).map(BudgetReport::to_json).collect();
    Ok(AdminResponse::json(&json!({
        "currency": call.generation.config.currency(),
        "budgets": rows,
        "has_more": all.len() > count,
    })))
}
