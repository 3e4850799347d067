//! `--regret N`: the cost of sampled decisions, as a table or as JSON.

use std::fmt::Write;

use penstock_sim::regret::{Decision, examine, sampled};
use penstock_sim::statistics::Percentiles;
use serde_json::{Value, json};

use super::arguments::SimulateArgs;
use super::error::SimulateError;
use super::parallel::run_all;
use super::setup::SimulationPlan;
use super::table::seconds;
use crate::cli::output::Output;

/// The cost in seconds below which a pick counts as good as the best.
const AS_GOOD: f64 = 0.001;

pub(super) fn report(
    args: &SimulateArgs,
    plan: &SimulationPlan,
    count: usize,
    output: &mut Output,
) -> Result<String, SimulateError> {
    let variant = plan.variants.first().ok_or(SimulateError::NoVariant)?;
    let requests = plan.setting.workloads.first().map_or(0, |workload| workload.requests.len());
    let jobs = sampled(requests, count);
    let decisions = run_all(&jobs, args.threads(), output, |request| {
        Ok(examine(&plan.setting, variant, *request)?)
    })?;
    let decisions: Vec<Decision> = decisions.into_iter().flatten().collect();
    Ok(if args.json { to_json(&decisions) } else { to_text(&variant.name, &decisions) })
}

/// Returns each way to decide, with the cost of its decision to each request.
fn rows(decisions: &[Decision]) -> Vec<(String, Vec<f64>)> {
    let mut rows =
        vec![("as decided".to_owned(), decisions.iter().map(Decision::regret).collect())];
    let names = decisions.first().map_or(&[][..], |first| &first.picks);
    for (name, _) in names {
        let regrets = decisions.iter().filter_map(|decision| decision.regret_of(name));
        rows.push((format!("{name} alone"), regrets.collect()));
    }
    rows.push(("at random".to_owned(), decisions.iter().map(Decision::random_regret).collect()));
    rows
}

fn to_text(name: &str, decisions: &[Decision]) -> String {
    let mut text = format!(
        "\nWhat {} decisions of {name} cost their requests, against the best backend\n{:<26}  {:>10}  {:>10}  {:>10}  {:>8}\n",
        decisions.len(),
        "",
        "mean",
        "p90",
        "p99",
        "best"
    );
    for (who, regrets) in rows(decisions) {
        let best = regrets.iter().filter(|regret| **regret < AS_GOOD).count();
        let share = 100.0 * best as f64 / regrets.len().max(1) as f64;
        let Percentiles { mean, p90, p99, .. } = Percentiles::of(regrets);
        let [mean, p90, p99] = [mean, p90, p99].map(seconds);
        // The costs at random are means over the backends, not those of one pick.
        let best = if who == "at random" { "-".to_owned() } else { format!("{share:.0} %") };
        _ = writeln!(text, "{who:<26}  {mean:>10}  {p90:>10}  {p99:>10}  {best:>8}");
    }
    text
}

fn to_json(decisions: &[Decision]) -> String {
    let one = |decision: &Decision| {
        json!({
            "request": decision.request, "decided_seconds": decision.decided,
            "by_backend_seconds": decision.by_backend, "regret_seconds": decision.regret(),
            "picks": decision.picks.iter().cloned().collect::<std::collections::BTreeMap<_, _>>(),
        })
    };
    format!("{}\n", json!({"regret": decisions.iter().map(one).collect::<Vec<Value>>()}))
}
