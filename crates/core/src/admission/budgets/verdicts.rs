//! The budgets in a dry run: what a request may cost, and which budgets have room for that.

use penstock_api::Operation;
use penstock_scan::{ScanOptions, scan};

use super::{Budgets, Money, highest_cost};
use crate::routing::audit::{BudgetVerdict, DryRun, DryRunRequest};
use crate::routing::{ModelAsked, SplitPoint};

impl Budgets {
    /// Returns what the budgets of the client would do with a request. `now` is in seconds since
    /// 1970.
    pub fn verdicts(
        &self,
        dry_run: &DryRun<'_>,
        sample: &DryRunRequest,
        now: u64,
    ) -> Vec<BudgetVerdict> {
        if self.is_empty() {
            return Vec::new();
        }
        // A request that cannot be read or decided has no cost: its report says why.
        let client = dry_run.client(sample);
        let cost = cost_of(dry_run, sample);
        cost.map(|cost| self.examine(client.as_deref(), cost, now)).unwrap_or_default()
    }
}

/// The most that a request may cost.
fn cost_of(dry_run: &DryRun<'_>, sample: &DryRunRequest) -> Option<Money> {
    let DryRun { config, router, topology, now, .. } = *dry_run;
    let path = sample.path.split_once('?').map_or(&*sample.path, |(path, _)| path);
    let operation = Operation::from_path(path)?;
    let options = ScanOptions { estimate: config.routing.token_estimate, arrived_at: now };
    let profile = scan(operation, sample.header("content-type"), &sample.body, options).ok()?;
    let requested = router.requested_model(&profile, &sample.body, topology).ok()?;
    let asked = ModelAsked { name: &requested.name, fleet: topology, split: SplitPoint::default() };
    let policy = dry_run.policy(sample, &asked).ok()?;
    Some(highest_cost(router, &asked, &policy, &profile))
}
