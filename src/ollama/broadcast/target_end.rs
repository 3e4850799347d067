//! The end of a command or an upload on one backend.

use serde_json::Value;

use crate::proxy::backend_call::error_of;
use crate::upstream::engine_exchange::EngineExchange;

/// The end of a command on one backend.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum TargetEnd {
    Done,
    /// The command failed; `status` is the engine's, if it responded with one.
    Failed {
        status: Option<u16>,
        text: String,
    },
}

impl TargetEnd {
    pub(crate) fn is_missing(&self) -> bool {
        matches!(self, Self::Failed { status: Some(404), .. })
    }
}

/// The end of an exchange that the engine refused.
pub(crate) async fn read_refusal(exchange: &mut EngineExchange, status: u16) -> TargetEnd {
    // Engines report an error in one line of JSON; any other body is not worth reading.
    let line = exchange.next_line().await.ok().flatten();
    let text = line.and_then(|line| {
        let value: Value = serde_json::from_slice(&line).ok()?;
        error_of(&value)
    });
    let text = text.unwrap_or_else(|| format!("it responded with {status}"));
    TargetEnd::Failed { status: Some(status), text }
}
