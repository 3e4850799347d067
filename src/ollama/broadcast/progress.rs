//! The merged progress of a command: the lines of all backends in the order they come, each with
//! the name of its backend. A failure of one backend is a line without `error` until all have
//! ended, because clients stop at the first `error` and so would end the others.

use std::future::poll_fn;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use http::Version;
use http::header::{self, HeaderValue};
use pingora::http::ResponseHeader;
use serde_json::{Value, json};
use tokio::sync::mpsc;
use tokio::task::JoinSet;

use crate::downstream::client::Client;
use crate::ollama::broadcast::target_task::{TargetReport, TargetTask};
use crate::ollama::broadcast::verdict::TargetEnd;
use crate::proxy::flow::Flow;
use crate::proxy::own_response::add_common_fields;
use crate::upstream::connect::Connector;
use crate::upstream::relay::ResponseSink;

pub(crate) const NDJSON: HeaderValue = HeaderValue::from_static("application/x-ndjson");

/// The maximum number of reports that wait for a slow client.
const MAX_WAITING_REPORTS: usize = 16;

/// The running tasks of a command.
pub(crate) struct CommandProgress {
    names: Vec<String>,
    reports: mpsc::Receiver<TargetReport>,
    ends: Vec<Option<TargetEnd>>,
    has_started: bool,
    /// Dropping this set ends the tasks.
    _tasks: JoinSet<()>,
}

impl CommandProgress {
    /// Starts a task per backend.
    pub(crate) fn start(connector: &Arc<Connector>, targets: Vec<TargetTask>) -> Self {
        let (sender, reports) = mpsc::channel(MAX_WAITING_REPORTS);
        let names: Vec<String> =
            targets.iter().map(|target| target.backend.config.name.clone()).collect();
        let mut tasks = JoinSet::new();
        for (number, target) in targets.into_iter().enumerate() {
            tasks.spawn(target.run(Arc::clone(connector), number, sender.clone()));
        }
        let ends = names.iter().map(|_| None).collect();
        Self { names, reports, ends, has_started: false, _tasks: tasks }
    }

    /// Returns whether the client has the head of a stream.
    pub(crate) fn has_started(&self) -> bool {
        self.has_started
    }

    /// Waits for all backends, and writes their progress if `is_streaming`. Returns `None` once the
    /// client has left.
    pub(crate) async fn run(
        &mut self,
        flow: &mut Flow<'_>,
        is_streaming: bool,
    ) -> pingora::Result<Option<Vec<TargetEnd>>> {
        let Some(client) = flow.ctx.client.clone() else { return Ok(None) };
        let limit = flow.ctx.generation.config.limits.client_write_timeout;
        while let Some(report) = self.next_report(&client).await {
            let Some(report) = report else { return Ok(None) };
            let line = match report {
                TargetReport::Line(number, line) => self.line_of(number, line),
                TargetReport::Ended(number, end) => self.end_of(number, end),
            };
            let is_ended = self.ends.iter().all(Option::is_some);
            // As long as nothing is written, the verdict sets the status.
            let Some(line) = line.filter(|_| is_streaming && !is_ended) else { continue };
            if !self.has_started {
                self.has_started = true;
                write_head(flow).await?;
            }
            let line = Bytes::from(format!("{line}\n"));
            // Flushed line by line: progress that waits in a buffer is none.
            let written = flow.client.write_body(line, false).await;
            if written.is_err() || !is_flushed(&client, limit).await {
                return Ok(None);
            }
        }
        let lost = || TargetEnd::Failed { status: None, text: "its task ended".to_owned() };
        let ends = self.ends.iter_mut().map(|end| end.take().unwrap_or_else(lost));
        Ok(Some(ends.collect()))
    }

    /// The next report; `None` after the last, `Some(None)` once the client has left.
    async fn next_report(&mut self, client: &Client) -> Option<Option<TargetReport>> {
        tokio::select! {
            biased;
            report = self.reports.recv() => report.map(Some),
            () = poll_fn(|cx| client.poll_gone(cx)) => Some(None),
        }
    }

    fn line_of(&self, number: usize, mut line: Value) -> Option<Value> {
        let name = self.names.get(number)?;
        line.as_object_mut()?.insert("backend".to_owned(), name.as_str().into());
        Some(line)
    }

    /// Records the end on a backend. Returns the line that reports it, once others have been
    /// written.
    fn end_of(&mut self, number: usize, end: TargetEnd) -> Option<Value> {
        let name = self.names.get(number)?;
        let status = match &end {
            TargetEnd::Done => format!("done on {name}"),
            TargetEnd::Failed { text, .. } => format!("failed on {name}: {text}"),
        };
        *self.ends.get_mut(number)? = Some(end);
        self.has_started.then(|| json!({"status": status, "backend": name}))
    }
}

/// Sends the buffered bytes. Returns false if the client left, or took nothing for `limit`.
async fn is_flushed(client: &Client, limit: Duration) -> bool {
    let flushed = tokio::time::timeout(limit, poll_fn(|cx| client.poll_flush(cx))).await;
    matches!(flushed, Ok(Ok(())))
}

async fn write_head(flow: &mut Flow<'_>) -> pingora::Result<()> {
    flow.ctx.record.response.status = 200;
    let mut head = ResponseHeader::build(200, Some(8))?;
    head.insert_header(header::CONTENT_TYPE, NDJSON)?;
    add_common_fields(&mut head, flow.ctx)?;
    match flow.client.head().version {
        Version::HTTP_11 => head.insert_header(header::TRANSFER_ENCODING, "chunked")?,
        // HTTP/1.0 has no chunks: the body ends with the connection.
        Version::HTTP_10 => flow.client.close_after(),
        _ => {}
    }
    flow.client.write_head(Box::new(head)).await
}
