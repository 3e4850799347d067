//! The budgets in a dry run: what a request may cost, and which budgets have room for that.

use penstock_api::Operation;
use penstock_clock::unix_seconds;
use penstock_core::admission::budgets::{Budgets, highest_cost};
use penstock_core::routing::audit::{BudgetVerdict, DryRun, DryRunRequest};
use penstock_core::routing::{ModelAsked, SplitPoint};
use penstock_scan::{ScanOptions, scan};

/// Returns what the budgets of the client would do with a request.
pub fn budget_verdicts(
    dry_run: &DryRun<'_>,
    sample: &DryRunRequest,
    budgets: &Budgets,
) -> Vec<BudgetVerdict> {
    verdicts(dry_run, sample, budgets).unwrap_or_default()
}

fn verdicts(
    dry_run: &DryRun<'_>,
    sample: &DryRunRequest,
    budgets: &Budgets,
) -> Option<Vec<BudgetVerdict>> {
    if budgets.is_empty() {
        return None;
    }
    let DryRun { config, router, topology, now, .. } = *dry_run;
    let path = sample.path.split_once('?').map_or(&*sample.path, |(path, _)| path);
    let operation = Operation::from_path(path)?;
    let options = ScanOptions { estimate: config.routing.token_estimate, arrived_at: now };
    let profile = scan(operation, sample.header("content-type"), &sample.body, options).ok()?;
    let requested = router.requested_model(&profile, &sample.body, topology).ok()?;
    let asked = ModelAsked { name: &requested.name, fleet: topology, split: SplitPoint::default() };
    let policy = dry_run.policy(sample, &asked).ok()?;
    let client = dry_run.client(sample);
    let estimate = highest_cost(router, &asked, &policy, &profile);
    Some(budgets.examine(client.as_deref(), estimate, unix_seconds()))
}
