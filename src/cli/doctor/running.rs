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
    findings
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
