//! The short endpoints: metrics, the fleet, the configuration in force, the report of the shadow
//! strategy, the amounts that were spent of budgets, and commands: drain and resume of backends,
//! reload and graceful upgrade.

use penstock_api::query_value;
use penstock_api::units::parse_duration;
use penstock_clock::{now, unix_seconds};
use penstock_core::admission::budgets::BudgetReport;
use penstock_core::fleet::Model;
use penstock_core::routing::ChosenStrategy;
use serde_json::{Value, json};

use super::ledger::{DEFAULT_ROWS, MAX_ROWS};
use super::response::{AdminRefusal, AdminResponse, PendingResponse};
use super::{Admin, AdminCall};
use crate::observe::metrics::Scrape;

pub(super) fn metrics(admin: &Admin, call: &AdminCall<'_>) -> Result<AdminResponse, AdminRefusal> {
    let page = admin.metrics.render(&Scrape {
        now: now(),
        generation: call.generation,
        fleet: &call.generation.fleet.topology(),
        proxy: &admin.proxy,
        scraping: &admin.scraping,
        access_log: admin.access_log.as_deref(),
        spans: admin.spans.as_deref(),
        usage: Some(&admin.usage),
    });
    Ok(AdminResponse::of("text/plain; version=0.0.4; charset=utf-8", page))
}

pub(super) fn shadow(_admin: &Admin, call: &AdminCall<'_>) -> Result<AdminResponse, AdminRefusal> {
    let shadow = call.generation.shadow.as_ref().ok_or(AdminRefusal::NoShadow)?;
    Ok(AdminResponse::json(&shadow.report(now())))
}

/// `/fleet`: the full state of every backend, and the strategy of each model.
pub(super) fn fleet(_admin: &Admin, call: &AdminCall<'_>) -> Result<AdminResponse, AdminRefusal> {
    let mut dump = penstock_core::fleet::dump::dump(&call.generation.fleet, now());
    if let Some(fields) = dump.as_object_mut() {
        fields.insert("strategies".to_owned(), strategies(call).into());
    }
    Ok(AdminResponse::json(&dump))
}

fn strategies(call: &AdminCall<'_>) -> Vec<Value> {
    let (router, topology) = (&call.generation.router, call.generation.fleet.topology());
    let of = |model: &Model| {
        let ChosenStrategy { strategy, preset, reason } = router.chosen_strategy(model, now());
        let strategy = strategy.name();
        json!({ "model": model.name, "strategy": strategy, "preset": preset, "reason": reason })
    };
    topology.models().iter().map(of).collect()
}

/// `/config`: the configuration in force, secrets masked.
pub(super) fn config(_admin: &Admin, call: &AdminCall<'_>) -> Result<AdminResponse, AdminRefusal> {
    Ok(AdminResponse::of(
        "application/yaml; charset=utf-8",
        call.generation.config.to_masked_yaml(),
    ))
}

/// `/backends/{name}/drain`: the backend receives no new requests; those in flight continue.
pub(super) fn drain(_admin: &Admin, call: &AdminCall<'_>) -> Result<AdminResponse, AdminRefusal> {
    set_draining(call, true)
}

/// `/backends/{name}/resume`
pub(super) fn resume(_admin: &Admin, call: &AdminCall<'_>) -> Result<AdminResponse, AdminRefusal> {
    set_draining(call, false)
}

fn set_draining(call: &AdminCall<'_>, draining: bool) -> Result<AdminResponse, AdminRefusal> {
    let fleet = call.generation.fleet.topology();
    let Some(backend) = fleet.backend(call.name) else {
        return Err(AdminRefusal::UnknownBackend { name: call.name.to_owned() });
    };
    let state = &backend.state;
    let before = state.set_draining(draining);
    let in_flight = state.load.in_flight();
    if before != draining {
        tracing::info!(backend = %state.name, draining, in_flight, "drain state changed via admin API");
    }
    Ok(AdminResponse::json(&json!({
        "backend": &*state.name,
        "health": state.status().name(),
        "draining": draining,
        "in_flight": in_flight,
        "empty_in_s": penstock_core::fleet::dump::empty_in(state, now()),
    })))
}

/// `POST /reload`: reloads the configuration; returns the changes, or why it is refused. With
/// `?simulate=15m` it simulates the recent traffic first.
pub(super) fn reload(admin: &Admin, call: &AdminCall<'_>) -> PendingResponse {
    let commands = admin.commands.clone();
    let given = query_value(call.query, "simulate");
    let window = given.as_deref().map(parse_duration).transpose();
    Box::pin(async move {
        let window = window.map_err(AdminRefusal::NotADuration)?;
        let report = commands.reload(window).await.map_err(AdminRefusal::ReloadFailed)?;
        let mut body = json!(report);
        if let Some(object) = body.as_object_mut() {
            object.insert("result".to_owned(), json!("applied"));
        }
        Ok(AdminResponse::json(&body))
    })
}

/// `POST /upgrade`: graceful upgrade; returns the id of the new process, or why it failed.
pub(super) fn upgrade(admin: &Admin, _call: &AdminCall<'_>) -> PendingResponse {
    let commands = admin.commands.clone();
    Box::pin(async move {
        let pid = commands.upgrade().await.map_err(AdminRefusal::UpgradeFailed)?;
        Ok(AdminResponse::json(&json!({"result": "upgraded", "pid": pid})))
    })
}

/// `/budgets`: every budget, by its name and the team or key whose amount it is. `name` is that of
/// one budget; `n` limits the rows.
pub(super) fn budgets(admin: &Admin, call: &AdminCall<'_>) -> Result<AdminResponse, AdminRefusal> {
    // A form sends `name=` for a field that was left empty.
    let given = |name| query_value(call.query, name).filter(|value| !value.is_empty());
    let count = match given("n") {
        None => DEFAULT_ROWS,
        Some(count) => count.parse().map_err(|_not_a_number| AdminRefusal::NotACount)?,
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
