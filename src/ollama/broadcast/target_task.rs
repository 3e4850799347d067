//! The part of a command that one backend carries out.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use penstock_core::fleet::Backend;
use serde_json::Value;
use tokio::sync::mpsc;

use crate::ollama::broadcast::targets::is_up;
use crate::ollama::broadcast::verdict::{TargetEnd, read_refusal};
use crate::proxy::backend_call::error_of;
use crate::upstream::connect::Connector;
use crate::upstream::engine_exchange::{EngineExchange, EngineRequest, ExchangeFailure};

/// A report of a task, with the number of its backend.
#[derive(Debug)]
pub(crate) enum TargetReport {
    /// A line of progress: a JSON object.
    Line(usize, Value),
    Ended(usize, TargetEnd),
}

/// The task of one backend.
pub(crate) struct TargetTask {
    pub(crate) backend: Backend,
    pub(crate) request: EngineRequest,
    pub(crate) body: Bytes,
    pub(crate) connect_timeout: Duration,
    /// True if the engine reports progress, and success in its last line.
    pub(crate) has_progress: bool,
}

impl TargetTask {
    /// Runs the task, and reports the progress and the end as backend `number`.
    pub(crate) async fn run(
        self,
        connector: Arc<Connector>,
        number: usize,
        reports: mpsc::Sender<TargetReport>,
    ) {
        let end = match self.exchange(&connector, number, &reports).await {
            Ok(end) => end,
            Err(failure) => TargetEnd::Failed { status: None, text: failure.to_string() },
        };
        if reports.send(TargetReport::Ended(number, end)).await.is_err() {
            tracing::debug!(backend = %self.backend.state.name, "the client left a broadcast");
        }
    }

    async fn exchange(
        &self,
        connector: &Connector,
        number: usize,
        reports: &mpsc::Sender<TargetReport>,
    ) -> Result<TargetEnd, ExchangeFailure> {
        if !is_up(&self.backend) {
            return Ok(TargetEnd::Failed { status: None, text: "it is not healthy".to_owned() });
        }
        let Self { backend, request, connect_timeout, .. } = self;
        let mut exchange =
            EngineExchange::begin(connector, backend, request, *connect_timeout).await?;
        exchange.send(&self.body).await?;
        let status = exchange.finish().await?;
        if status >= 300 {
            return Ok(read_refusal(&mut exchange, status).await);
        }
        // A response of status 200 may still report an error in one of its lines.
        let mut is_done = !self.has_progress;
        while let Some(line) = exchange.next_line().await? {
            let Ok(line) = serde_json::from_slice::<Value>(&line) else { continue };
            if let Some(error) = error_of(&line) {
                return Ok(TargetEnd::Failed { status: None, text: error });
            }
            match line.get("status").and_then(Value::as_str) {
                // Not passed on: the broadcast has succeeded once every backend has.
                Some("success") => is_done = true,
                _ if line.is_object() => _ = reports.send(TargetReport::Line(number, line)).await,
                _ => {}
            }
        }
        let broke_off = || "the response broke off before its end".to_owned();
        Ok(match is_done {
            true => TargetEnd::Done,
            false => TargetEnd::Failed { status: None, text: broke_off() },
        })
    }
}
