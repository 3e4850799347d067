//! Findings on the running penstock, by its admin port.

use serde_json::Value;

use super::finding::Finding;
use crate::cli::admin::AdminPort;

pub(super) fn look(admin: &AdminPort) -> Vec<Finding> {
    let about = "running";
    let version = match admin.json("/version") {
        Ok(version) => version,
        Err(error) => {
            let remedy = "start it, or correct --admin and --admin-token-file";
            return vec![Finding::fail(about, error.to_string(), remedy)];
        }
    };
    let mut findings = vec![judge_version(&version)];
    match admin.json("/health") {
        Ok(health) => findings.push(judge_health(&health)),
        Err(error) => findings.push(Finding::fail(about, error.to_string(), "see its log")),
    }
    let fleet = admin.json("/fleet").unwrap_or_default();
    let backends = fleet.get("backends").and_then(Value::as_array);
    findings.extend(backends.into_iter().flatten().filter_map(judge_account));
    findings
}

/// The finding on a backend that pauses because it rejects penstock's key.
fn judge_account(backend: &Value) -> Option<Finding> {
    let name = backend.get("name")?.as_str()?;
    let (message, remedy) = match backend.get("cooldown_status")?.as_u64()? {
        401 => ("rejects penstock's key: paused", "set the correct api_key"),
        402 => ("reports an account without credit: paused", "add credit, or raise its limit"),
        _ => return None,
    };
    Some(Finding::fail(name, message, remedy))
}

fn judge_version(version: &Value) -> Finding {
    let ours = env!("CARGO_PKG_VERSION");
    match version.get("version").and_then(Value::as_str) {
        Some(version) if version == ours => Finding::ok("running", format!("penstock {version}")),
        Some(version) => Finding::warn(
            "running",
            format!("penstock {version} is running, but this is {ours}"),
            "restart or upgrade it",
        ),
        None => Finding::fail(
            "running",
            "the server at this address is not penstock",
            "correct --admin",
        ),
    }
}

fn judge_health(health: &Value) -> Finding {
    let healthy = health.pointer("/backends/healthy").and_then(Value::as_u64).unwrap_or(0);
    let total = health.pointer("/backends/total").and_then(Value::as_u64).unwrap_or(0);
    let message = format!("{healthy} of {total} backends are healthy");
    match healthy {
        0 => Finding::fail("running", message, "see the backends below"),
        some if some < total => Finding::warn("running", message, "see the backends below"),
        _ => Finding::ok("running", message),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn rejected_keys_are_found_in_the_fleet() {
        let judged = |status: Value| {
            judge_account(&json!({"name": "a", "cooldown_status": status})).is_some()
        };
        assert!(judged(json!(401)) && judged(json!(402)));
        assert!(!judged(json!(429)) && !judged(Value::Null));
    }
}
