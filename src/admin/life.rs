//! Steering the process itself.

use serde_json::json;

use super::answer::{Answer, Refusal};
use super::{Admin, Later};

/// `POST /reload`: loads the configuration again; what changed, or why it is refused.
pub(super) fn reload(admin: &Admin) -> Later {
    let commands = admin.commands.clone();
    Box::pin(async move {
        let report = commands.reload().await.map_err(Refusal::NotReloaded)?;
        let mut answer = json!(report);
        if let Some(object) = answer.as_object_mut() {
            object.insert("result".to_owned(), json!("applied"));
        }
        Ok(Answer::json(&answer))
    })
}

/// `POST /upgrade`: lets a new process take over; its id, or why this one goes on.
pub(super) fn hand_over(admin: &Admin) -> Later {
    let commands = admin.commands.clone();
    Box::pin(async move {
        let pid = commands.hand_over().await.map_err(Refusal::NotHandedOver)?;
        Ok(Answer::json(&json!({"result": "handed over", "pid": pid})))
    })
}
