//! Steering the process itself.

use serde_json::json;

use super::response::{AdminResponse, Refusal};
use super::{Admin, PendingResponse};

/// `POST /reload`: loads the configuration again; what changed, or why it is refused.
pub(super) fn reload(admin: &Admin) -> PendingResponse {
    let commands = admin.commands.clone();
    Box::pin(async move {
        let report = commands.reload().await.map_err(Refusal::ReloadFailed)?;
        let mut answer = json!(report);
        if let Some(object) = answer.as_object_mut() {
            object.insert("result".to_owned(), json!("applied"));
        }
        Ok(AdminResponse::json(&answer))
    })
}

/// `POST /upgrade`: lets a new process take over; its id, or why this one goes on.
pub(super) fn upgrade(admin: &Admin) -> PendingResponse {
    let commands = admin.commands.clone();
    Box::pin(async move {
        let pid = commands.upgrade().await.map_err(Refusal::UpgradeFailed)?;
        Ok(AdminResponse::json(&json!({"result": "upgraded", "pid": pid})))
    })
}
