//! Liveness, readiness, and the health of the fleet.

use std::sync::atomic::Ordering;

use http::StatusCode;
use penstock_core::fleet::{Health, Topology};
use serde_json::{Value, json};

use super::response::{AdminRefusal, AdminResponse};
use super::{Admin, AdminCall};

/// `/health/live`: 200 while the process responds.
pub(super) fn live(_admin: &Admin, _call: &AdminCall<'_>) -> Result<AdminResponse, AdminRefusal> {
    Ok(AdminResponse::json(&json!({"status": "alive"})))
}

/// `/health/ready`: 503 until the first health check of every backend has finished, and during
/// shutdown. An unhealthy fleet does not make this process unready: clients get its errors. If a
/// web page could have made up the host name, the response contains only the status.
pub(super) fn ready(admin: &Admin, call: &AdminCall<'_>) -> Result<AdminResponse, AdminRefusal> {
    let fleet = call.generation.fleet.topology();
    let waiting = admin.waiting.load(Ordering::Acquire);
    let (status, reason) = match waiting {
        _ if admin.stopping.load(Ordering::Acquire) => {
            ("stopping", Some("shutting down: finishing requests in flight".to_owned()))
        }
        0 if count_healthy(&fleet) == 0 => {
            ("ready", Some("no backend is healthy: requests fail".to_owned()))
        }
        0 => ("ready", None),
        _ => ("starting", Some(format!("first health checks pending: {waiting}"))),
    };
    let unchecked = fleet.backends.iter().filter(|one| one.state.checked_at().is_none());
    let unchecked: Vec<&str> = unchecked.map(|one| &*one.state.name).collect();
    let code = if status == "ready" { StatusCode::OK } else { StatusCode::SERVICE_UNAVAILABLE };
    if !call.is_trusted {
        return Ok(AdminResponse::json(&json!({"status": status})).with_status(code));
    }
    let body = json!({
        "status": status,
        "reasons": reason.into_iter().collect::<Vec<_>>(),
        "unchecked": unchecked,
        "backends": count_backends(&fleet),
    });
    Ok(AdminResponse::json(&body).with_status(code))
}

/// `/health`: the number of healthy backends; always 200.
pub(super) fn overview(
    _admin: &Admin,
    call: &AdminCall<'_>,
) -> Result<AdminResponse, AdminRefusal> {
    let fleet = call.generation.fleet.topology();
    let total = fleet.backends.len();
    let status = match count_healthy(&fleet) {
        0 => "unhealthy",
        some if some < total => "degraded",
        _ => "healthy",
    };
    Ok(AdminResponse::json(&json!({"status": status, "backends": count_backends(&fleet)})))
}

pub(super) fn version(
    _admin: &Admin,
    _call: &AdminCall<'_>,
) -> Result<AdminResponse, AdminRefusal> {
    Ok(AdminResponse::json(&json!({"name": "penstock", "version": env!("CARGO_PKG_VERSION")})))
}

fn count_healthy(fleet: &Topology) -> usize {
    let backends = fleet.backends.iter();
    backends.filter(|one| one.state.status() == Health::Healthy).count()
}

fn count_backends(fleet: &Topology) -> Value {
    json!({"total": fleet.backends.len(), "healthy": count_healthy(fleet)})
}
