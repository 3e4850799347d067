//! Budgets in simulated time.

use penstock_core::admission::budgets::Money;

use super::*;
use crate::world::result::BudgetResult;

/// Returns a fleet of two backends: one with the model of the workload at 1 per million tokens, in
/// the cloud, and a local one with that model for nothing and a cheap one.
fn fleet(budgets: &str, more: &str) -> WorldSpec {
    let yaml = format!(
        "routing: {{ strategy: smart }}\n\
         ledger: {{ path: /var/lib/penstock/ledger.db }}\n\
         models: {{ cheap: {{ price: {{ input: 0.0001, output: 0.0001 }} }} }}\n\
         backends:\n\
         \x20 - {{ name: dear, url: 'http://10.0.0.1:1', engine: vllm, zone: cloud, \
         models: [{{ id: m, price: {{ input: 1, output: 1 }} }}] }}\n\
         \x20 - {{ name: own, url: 'http://10.0.0.1:2', engine: vllm, zone: local, \
         models: [cheap, m] }}\n\
         budgets: [{budgets}]\n{more}"
    );
    let config = Config::parse(&yaml, "test.yaml", Path::new(""), &Environment::default());
    WorldSpec { config: config.unwrap(), ..world("strategy: smart", 2) }
}

/// Returns requests that say how long their outputs may be, so that none costs more than it
/// reserves.
fn limited(requests: u32) -> Workload {
    let mut workload = chat(requests, 4.0);
    workload.requests.iter_mut().for_each(|one| one.max_tokens = one.output_tokens);
    workload
}

fn run(budgets: &str, more: &str, balancers: u32) -> (RunResult, BudgetResult) {
    let spec = WorldSpec { balancers, ..fleet(budgets, more) };
    let result = simulate(&spec, &limited(400)).unwrap();
    let budget = result.budgets[0].clone();
    (result, budget)
}

fn refused(result: &RunResult) -> usize {
    count(result, Status::Shed(ShedReason::BudgetExceeded))
}

#[test]
fn a_budget_is_spent_and_then_refuses() {
    let (free, unlimited) = run("{ name: b, amount: 1000 }", "", 1);
    assert_eq!((refused(&free), unlimited.refused, count(&free, Status::Done)), (0, 0, 400));
    assert!(unlimited.spent > Money::of(0.05), "{unlimited:?}");

    let (result, budget) = run("{ name: b, amount: 0.05 }", "", 1);
    assert_eq!(refused(&result), budget.refused);
    assert!(budget.refused > 100 && budget.spent <= Money::of(0.05), "{budget:?}");
    assert!(budget.spent > Money::of(0.045), "{budget:?}");
}

#[test]
fn periods_begin_with_the_run() {
    let (result, budget) = run("{ name: b, amount: 0.01, every: 1m }", "", 1);
    assert!(budget.spent > Money::of(0.012), "100 s have more than one minute: {budget:?}");
    assert!(refused(&result) > 100);
    let (_, month) = run("{ name: b, amount: 0.01, every: month }", "", 1);
    assert!(month.spent <= Money::of(0.01), "{month:?}");
}

#[test]
fn a_spent_budget_gives_another_model_or_leaves_what_is_free() {
    let (result, budget) = run("{ name: b, amount: 0.05, model: cheap }", "", 1);
    assert_eq!(refused(&result), 0);
    assert!(budget.changed > 100 && budget.spent <= Money::of(0.05), "{budget:?}");
    let own = result.requests.iter().filter(|one| one.backend == 1).count();
    assert!(own >= budget.changed, "only 'own' has the cheap model");

    let (result, budget) = run("{ name: b, amount: 0.05, zones: [local] }", "", 1);
    assert_eq!((refused(&result), count(&result, Status::Done)), (0, 400));
    assert!(budget.changed > 100 && budget.spent <= Money::of(0.05), "{budget:?}");
}

#[test]
fn a_model_in_place_of_another_has_a_separate_queue() {
    let more = "queue: { size: 1000, timeout: 1h }\n";
    let mut spec = fleet("{ name: b, amount: 0.02, model: cheap }", more);
    spec.config.backends.iter_mut().for_each(|backend| backend.max_in_flight = Some(1));
    let result = simulate(&spec, &limited(200)).unwrap();
    let done = count(&result, Status::Done);
    // The last ones do not even have the money for the cheap model.
    assert!(done + refused(&result) == 200 && done > 180, "{done}");
    assert!(result.budgets[0].changed > 50);
}

#[test]
fn balancers_share_a_budget_where_they_share_their_state() {
    let (_, alone) = run("{ name: b, amount: 0.02 }", "", 3);
    assert!(alone.spent > Money::of(0.04), "each has the amount: {alone:?}");
    let shared = "shared_state: { redis: 'redis://127.0.0.1:6379' }";
    let (_, together) = run("{ name: b, amount: 0.02 }", shared, 3);
    assert!(together.spent <= Money::of(0.02), "{together:?}");
}

#[test]
fn keys_have_separate_amounts() {
    let keys = "auth: { keys: [{ name: client-0, key: sk-1, budget: b }] }";
    let (result, _) = run("{ name: b, amount: 0.01, per: key, keys: [other] }", "", 1);
    assert_eq!(refused(&result), 0, "it is for no client of the workload");
    let workload = limited(400);
    let keys = keys.replace("client-0", &workload.clients[0]);
    let (_, budget) = run("{ name: b, amount: 0.01, per: key, keys: [other] }", &keys, 1);
    assert!(budget.refused > 0 && budget.spent <= Money::of(0.01), "{budget:?}");
}
