//! Metrics of budgets. Teams and keys are bounded: those past the limit are one sample.

use penstock_clock::unix_seconds;
use penstock_core::admission::budgets::BudgetReport;

use super::super::Scrape;
use super::super::row::{MetricRow, counter, gauge};
use super::super::samples::{Samples, flag, from_option, number, to_sample};

/// The maximum number of samples of each metric that name a team or a key.
const MAX_SUBJECTS: usize = 1000;
/// The subject of the sum of all others.
const OTHER: &str = "other";
const LABELS: &[&str] = &["budget", "subject"];

pub(super) const ROWS: &[MetricRow] = &[
    gauge(
        "penstock_budget_spent",
        LABELS,
        |_, scrape| samples(scrape, |report| report.balance.spent.amount()),
        "money spent in the period of a budget, in the currency of the prices; `subject` is the team or the id of the key whose amount it is, empty for all; from 1,000 subjects on, `other` is the sum of the rest",
    ),
    gauge(
        "penstock_budget_limit",
        LABELS,
        |_, scrape| samples(scrape, |report| report.limit.amount()),
        "limit of penstock_budget_spent: the `amount` of the budget",
    ),
    gauge(
        "penstock_budget_reserved",
        LABELS,
        |_, scrape| samples(scrape, |report| report.balance.reserved.amount()),
        "money that requests in flight have reserved of a budget",
    ),
    counter(
        "penstock_budget_refused_total",
        LABELS,
        |_, scrape| samples(scrape, |report| to_sample(report.balance.refused_count)),
        "requests for which a budget had no room: refused, limited to what costs nothing, or given another model",
    ),
    gauge(
        "penstock_budgets_shared",
        &[],
        |_, scrape| {
            let shared = scrape.proxy.shared_budgets.as_deref().filter(|_| has_budgets(scrape));
            from_option(shared.and_then(|shared| flag(shared.is_ready())))
        },
        "1 while the server of `shared_state` decides whether budgets have room; while it is 0, `shared_state.budgets_alone` holds",
    ),
    counter(
        "penstock_budget_alone_total",
        &[],
        |_, scrape| {
            let shared = scrape.proxy.shared_budgets.as_deref().filter(|_| has_budgets(scrape));
            from_option(shared.map(|shared| to_sample(shared.decided_alone())))
        },
        "requests that cost money and were admitted or refused without the server of `shared_state`",
    ),
];

fn has_budgets(scrape: &Scrape<'_>) -> bool {
    !scrape.proxy.budgets.is_empty()
}

/// A sample for each account, and the sums of those past the limit by budget.
fn samples(scrape: &Scrape<'_>, read: impl Fn(&BudgetReport) -> f64) -> Samples {
    let budgets = &scrape.proxy.budgets;
    if budgets.is_empty() {
        return Samples::new();
    }
    let mut reports = budgets.reports(unix_seconds());
    // Those that matter most have a separate sample, in the same order for every metric.
    reports.sort_by_key(|report| {
        let used = report.balance.spent.plus(report.balance.reserved);
        (report.subject.is_empty(), used, report.balance.refused_count)
    });
    reports.reverse();
    let own = reports.iter().take(MAX_SUBJECTS);
    let mut all: Samples = own.map(|one| number(&[&one.budget, &one.subject], read(one))).collect();
    let mut rest: std::collections::BTreeMap<&str, f64> = std::collections::BTreeMap::new();
    for report in reports.iter().skip(MAX_SUBJECTS) {
        *rest.entry(&report.budget).or_default() += read(report);
    }
    all.extend(rest.iter().map(|(budget, sum)| number(&[budget, OTHER], *sum)));
    all
}
