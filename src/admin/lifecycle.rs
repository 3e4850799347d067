//! Control of the process: reload and graceful upgrade.

use serde_json::json;

use super::response::{AdminResponse, Refusal};
use super::{Admin, Call, PendingResponse};

/// `POST /reload`: reloads the configuration; returns the changes, or why it is refused.
pub(super) fn reload(admin: &Admin, _call: &Call<'_>) -> PendingResponse {
    let commands = admin.commands.clone();
    Box::pin(async move {
        let report = commands.reload().await.map_err(Refusal::ReloadFailed)?;
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
