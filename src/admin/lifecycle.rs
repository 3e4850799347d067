//! Control of the process: reload and graceful upgrade.

use penstock_api::query_value;
use penstock_api::units::parse_duration;
use serde_json::json;

use super::response::{AdminResponse, PendingResponse, Refusal};
use super::{Admin, Call};

/// `POST /reload`: reloads the configuration; returns the changes, or why it is refused. With
/// `?simulate=15m` it simulates the recent traffic first.
pub(super) fn reload(admin: &Admin, call: &Call<'_>) -> PendingResponse {
    let commands = admin.commands.clone();
    let given = query_value(call.query, "simulate");
    let window = given.as_deref().map(parse_duration).transpose();
    Box::pin(async move {
        let window = window.map_err(Refusal::NotADuration)?;
        let report = commands.reload(window).await.map_err(Refusal::ReloadFailed)?;
        let mut body = json!(report);
        if let Some(object) = body.as_object_mut() {
            object.insert("result".to_owned(), json!("applied"));
        }
        Ok(AdminResponse::json(&body))
    })
}

/// `POST /upgrade`: graceful upgrade; returns the id of the new process, or why it failed.
pub(super) fn upgrade(admin: &Admin, _call: &Call<'_>) -> PendingResponse {
    let commands = admin.commands.clone();
    Box::pin(async move {
        let pid = commands.upgrade().await.map_err(Refusal::UpgradeFailed)?;
        Ok(AdminResponse::json(&json!({"result": "upgraded", "pid": pid})))
    })
}
