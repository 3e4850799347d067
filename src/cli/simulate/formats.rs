//! Results as JSON.

use std::io::Write;
use std::path::Path;

use penstock_sim::compare::Difference;
use penstock_sim::statistics::Percentiles;
use penstock_sim::summary::{
    PriorityFigures, ShedFigures, Stationarity, Summary, first_token, per_token,
};
use penstock_sim::world::{BudgetResult, Status};
use serde_json::{Map, Value, json};

use super::error::SimulateError;
use super::setup::SimulationPlan;

pub(super) fn percentiles(of: &Percentiles) -> Value {
    json!({"mean": of.mean, "p50": of.p50, "p90": of.p90, "p95": of.p95, "p99": of.p99})
}

pub(super) fn summary_json(one: &Summary) -> Value {
    let reasons = |pairs: &mut dyn Iterator<Item = (&'static str, usize)>| -> Map<String, Value> {
        pairs.map(|(name, count)| (name.to_owned(), count.into())).collect()
    };
    let shed = one.shed.iter().map(|(reason, count)| (reason.name(), *count));
    let failed = one.failed.iter().map(|(reason, count)| (reason.name(), *count));
    json!({
        "requests": one.requests, "done": one.done, "left": one.left, "abandoned": one.abandoned,
        "retries": one.retries,
        "shed": reasons(&mut shed.into_iter()), "failed": reasons(&mut failed.into_iter()),
        "sheds": one.sheds.as_ref().map(sheds_json),
        "ttft_seconds": percentiles(&one.first_token),
        "tpot_seconds": percentiles(&one.per_token),
        "e2e_seconds": percentiles(&one.total),
        "queued_seconds": percentiles(&one.queued),
        "goodput": one.goodput, "good_tokens_per_second": one.good_tokens,
        "tokens_per_second": one.tokens_per_second,
        "hit_rate": one.hit_rate, "believed_hit_rate": one.believed_rate,
        "imbalance": one.imbalance, "concentration": one.concentration,
        "preemptions": one.preemptions, "model_loads": one.loads,
        "utilization": one.utilization, "kv_use": one.kv_use, "fairness": one.fairness,
        "prediction": one.prediction.map(|one| json!({
            "mean_error": one.mean_error, "weighted_error": one.weighted_error,
            "p90_coverage": one.coverage,
        })),
        "budgets": one.budgets.iter().map(budget_json).collect::<Vec<_>>(),
        "priorities": one.priorities.iter().map(priority_json).collect::<Vec<_>>(),
        "saturated": match one.load {
            Stationarity::Sustained => Some(false),
            Stationarity::Saturated => Some(true),
            Stationarity::Unknown => None,
        },
        "duration_seconds": one.duration,
        "steps": one.steps,
    })
}

fn sheds_json(one: &ShedFigures) -> Value {
    json!({
        "judged": one.judged, "wrong": one.wrong, "harmful": one.harmful,
        "sheddable_admitted": one.admitted, "sheddable_missed": one.missed,
        "changes_per_minute": one.changes_per_minute,
    })
}

fn budget_json(one: &BudgetResult) -> Value {
    json!({
        "name": one.name, "spent": one.spent.amount(), "refused": one.refused,
        "changed": one.changed,
    })
}

fn priority_json(one: &PriorityFigures) -> Value {
    json!({
        "priority": one.priority, "requests": one.requests, "shed": one.shed,
        "goodput": one.goodput, "ttft_seconds": percentiles(&one.first_token),
    })
}

pub(super) fn difference_json(one: &Difference) -> Value {
    json!({
        "figure": one.figure, "first": one.base, "this": one.other, "difference": one.interval.mean,
        // The margin of a single seed is infinite.
        "margin": Some(one.interval.margin).filter(|margin| margin.is_finite()),
        "verdict": one.verdict.text(),
    })
}

fn status_name(status: Status) -> &'static str {
    match status {
        Status::Open => "open",
        Status::Done => "done",
        Status::Shed(reason) => reason.name(),
        Status::Failed(reason) => reason.name(),
        Status::Left => "left",
        Status::Abandoned => "abandoned",
    }
}

/// Writes one line per request of the first configuration and seed.
pub(super) fn write_requests(path: &Path, plan: &SimulationPlan) -> Result<(), SimulateError> {
    let Some(variant) = plan.variants.first() else { return Ok(()) };
    let (run, _) = plan.setting.run(variant, 0)?;
    let workload = plan.setting.workloads.first();
    let requests = workload.map_or(&[][..], |workload| &workload.requests);
    let mut lines = Vec::new();
    for (result, request) in run.requests.iter().zip(requests) {
        let arrived = result.arrived.saturating_sub(run.start) as f64 * 1e-6;
        let is_done = result.status == Status::Done;
        // Before the first attempt the number means nothing.
        let backend = run.backends.get(usize::from(result.backend)).filter(|_| result.attempts > 0);
        let queued = result.decided.saturating_sub(result.arrived) as f64 * 1e-6;
        let predicted =
            |micros: f32| (micros > 0.0).then(|| queued + f64::from(micros.round()) * 1e-6);
        let line = json!({
            "arrived": arrived, "priority": request.priority,
            "client": workload.and_then(|one| one.clients.get(request.client as usize)),
            "queued_seconds": is_done.then_some(queued),
            "status": status_name(result.status),
            "backend": backend.map(|backend| &backend.name), "attempts": result.attempts,
            "input_tokens": request.input_tokens, "output_tokens": result.output_tokens,
            "cached_tokens": result.cached_tokens,
            "believed_tokens": run.believes_caches.then_some(result.believed_tokens),
            "ttft_seconds": is_done.then(|| first_token(result)),
            "predicted_ttft_seconds": predicted(result.predicted),
            "predicted_ttft_p90_seconds": predicted(result.predicted_p90),
            "tpot_seconds": per_token(result).filter(|_| is_done),
            "e2e_seconds": is_done.then(|| result.ended.saturating_sub(result.arrived) as f64 * 1e-6),
        });
        // Writing to memory cannot fail.
        _ = writeln!(lines, "{line}");
    }
    std::fs::write(path, lines)
        .map_err(|source| SimulateError::Unwritable { path: path.to_owned(), source })
}
