//! Whether this penstock runs, may be sent traffic, and how its fleet is.

use std::sync::atomic::Ordering;

use http::StatusCode;
use serde_json::{Value, json};

use super::response::{AdminResponse, Refusal};
use super::{Admin, Call};
use crate::fleet::{Health, Topology};

/// `/health/live`: the answer itself is the news.
pub(super) fn live(_admin: &Admin, _call: &Call<'_>) -> Result<AdminResponse, Refusal> {
    Ok(AdminResponse::json(&json!({"status": "alive"})))
}

/// `/health/ready`: 503 until the first check of every backend has ended, and while stopping. A
/// fleet that is down does not make this process unready: it says so to its clients.
pub(super) fn ready(admin: &Admin, call: &Call<'_>) -> Result<AdminResponse, Refusal> {
    let fleet = call.generation.fleet.topology();
    let waiting = admin.waiting.load(Ordering::Acquire);
    let (status, reason) = match waiting {
        _ if admin.stopping.load(Ordering::Acquire) => {
            ("stopping", Some("told to stop: finishing what is in flight".to_owned()))
        }
        0 if count_healthy(&fleet) == 0 => {
            ("ready", Some("no backend is healthy: requests are answered with errors".to_owned()))
        }
        0 => ("ready", None),
        _ => ("starting", Some(format!("first checks under way: {waiting}"))),
    };
    let unchecked = fleet.backends.iter().filter(|one| one.state.checked_at().is_none());
    let unchecked: Vec<&str> = unchecked.map(|one| &*one.state.name).collect();
    let body = json!({
        "status": status,
        "reasons": reason.into_iter().collect::<Vec<_>>(),
        "unchecked": unchecked,
        "backends": count_backends(&fleet),
    });
    let code = if status == "ready" { StatusCode::OK } else { StatusCode::SERVICE_UNAVAILABLE };
    Ok(AdminResponse::json(&body).with_status(code))
}

/// `/health`: how many backends are healthy; always 200.
pub(super) fn overview(_admin: &Admin, call: &Call<'_>) -> Result<AdminResponse, Refusal> {
    let fleet = call.generation.fleet.topology();
    let total = fleet.backends.len();
    let status = match count_healthy(&fleet) {
        0 => "unhealthy",
        some if some < total => "degraded",
        _ => "healthy",
    };
    Ok(AdminResponse::json(&json!({"status": status, "backends": count_backends(&fleet)})))
}

/// `/version`
pub(super) fn version(_admin: &Admin, _call: &Call<'_>) -> Result<AdminResponse, Refusal> {
    Ok(AdminResponse::json(&json!({"name": "penstock", "version": env!("CARGO_PKG_VERSION")})))
}

fn count_healthy(fleet: &Topology) -> usize {
    let backends = fleet.backends.iter();
    backends.filter(|one| one.state.status() == Health::Healthy).count()
}

fn count_backends(fleet: &Topology) -> Value {
    json!({"total": fleet.backends.len(), "healthy": count_healthy(fleet)})
}
