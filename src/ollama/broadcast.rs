//! Requests of Ollama clients that go to all Ollama backends at once: pull, create, copy, delete,
//! and the files of models. Each backend has its own exchange in a task; the client reads one
//! merged response. When the client leaves, the tasks end, and with them the connections, so that
//! the engines stop. Nothing is retried.

mod blobs;
mod command;
mod progress;
mod target_task;
mod targets;
mod verdict;

pub(crate) use crate::ollama::broadcast::blobs::serve_blob;
pub(crate) use crate::ollama::broadcast::targets::{check_right, may_manage};

use std::time::Duration;

use bytes::Bytes;
use http::header;
use penstock_api::{ErrorCode, ModelCommand};
use penstock_clock::now;
use penstock_core::fleet::{Backend, Topology};
use pingora::http::ResponseHeader;
use serde_json::json;

use crate::downstream::body::HeldBody;
use crate::downstream::counted::Counted;
use crate::ollama::broadcast::command::BroadcastCommand;
use crate::ollama::broadcast::progress::CommandProgress;
use crate::ollama::broadcast::target_task::TargetTask;
use crate::ollama::broadcast::targets::{choose, is_up};
use crate::ollama::broadcast::verdict::{BroadcastVerdict, TargetEnd, judge};
use crate::proxy::Proxy;
use crate::proxy::failure::OwnError;
use crate::proxy::flow::{Flow, RequestContext, Served, own_outcome};
use crate::proxy::own_response::{OwnResponse, send, send_error};
use crate::upstream::engine_exchange::EngineRequest;
use crate::upstream::relay::ResponseSink;

/// The longest wait of a command until discovery sees the models it changed, so that the client's
/// next request finds them.
const MAX_SEEN_WAIT: Duration = Duration::from_secs(3);
const SEEN_CHECK: Duration = Duration::from_millis(20);

/// Counts a command or an upload while it is in flight: each reaches every Ollama backend.
///
/// # Errors
/// [`OwnError`] when `ollama.commands` are in flight.
fn count_command(proxy: &Proxy, ctx: &RequestContext) -> Result<Counted, OwnError> {
    let limit = ctx.generation.config.ollama.commands;
    Counted::try_new(&proxy.commands, limit).ok_or_else(|| {
        let message = "Too many commands at one time (ollama.commands)";
        OwnError::new(ErrorCode::TooManyCommands, message).closing()
    })
}

/// Sends a command to the Ollama backends.
pub(crate) async fn serve_command(
    flow: &mut Flow<'_>,
    kind: ModelCommand,
    body: HeldBody,
) -> Served {
    let fleet = flow.ctx.generation.fleet.topology();
    let command = check_right(flow.ctx)
        .and_then(|()| BroadcastCommand::read(flow.ctx, kind, body.bytes.clone()));
    let chosen = command.and_then(|command| {
        let all = choose(flow.ctx, &fleet, flow.client.head())?;
        let targets = match kind {
            // Once is enough: the registry gets the same files from each of them.
            ModelCommand::Push => vec![holder(&fleet, &all, &command.model)?],
            _ => all,
        };
        let permit = count_command(flow.proxy, flow.ctx)?;
        Ok((command, targets, permit))
    });
    let (command, targets, _permit) = match chosen {
        Ok(chosen) => chosen,
        Err(error) => return send_error(flow, error).await,
    };
    flow.ctx.record.request.requested_model = Some(command.model.as_str().into());
    let head = flow.client.head();
    let timeout = flow.ctx.generation.config.ollama.progress_timeout;
    let (method, path) = (head.method.clone(), head.uri.path().to_owned());
    let request = EngineRequest::new(method, path, &head.headers, &flow.ctx.request_id, timeout);
    let tasks = targets.iter().map(|backend| {
        let body = command.body_for(&fleet, backend);
        let request = EngineRequest { length: Some(body.len()), ..request.clone() };
        TargetTask {
            backend: (*backend).clone(),
            connect_timeout: fleet_timeout(flow.ctx, backend),
            has_progress: command.has_progress(),
            request,
            body,
        }
    });
    let tasks: Vec<TargetTask> = tasks.collect();
    let mut progress = CommandProgress::start(&flow.proxy.calls, tasks);
    let Some(ends) = progress.run(flow, command.is_streaming).await? else {
        return flow.ctx.end_cancelled();
    };
    let names = targets.iter().map(|backend| &*backend.config.name);
    let ends: Vec<(&str, TargetEnd)> = names.zip(ends).collect();
    let verdict = judge(&ends, command.may_miss());
    await_discovery(flow.ctx, &command, &targets, &ends).await;
    respond(flow, &command, progress.has_started(), verdict).await
}

fn fleet_timeout(ctx: &RequestContext, backend: &Backend) -> Duration {
    ctx.generation.config.timeouts.with(&backend.config.timeouts).connect
}

/// The backend that pushes a model: the first that is up and has it.
fn holder<'a>(fleet: &Topology, all: &[&'a Backend], name: &str) -> Result<&'a Backend, OwnError> {
    let model = fleet.model_named(name);
    let serves = |backend: &Backend| {
        model.is_some_and(|model| model.serving.iter().any(|row| row.id == backend.state.id))
    };
    let holder = all.iter().find(|backend| is_up(backend) && serves(backend));
    holder.copied().ok_or_else(|| {
        let message = format!("No healthy Ollama backend has model '{name}'");
        OwnError::new(ErrorCode::ModelNotFound, message).about(Some("model"))
    })
}

/// Invalidates the backends' lists of models and waits until they show the change, because the
/// client uses the model next. Models that the configuration lists are not awaited.
async fn await_discovery(
    ctx: &RequestContext,
    command: &BroadcastCommand,
    targets: &[&Backend],
    ends: &[(&str, TargetEnd)],
) {
    let done = targets.iter().zip(ends).filter(|(_, (_, end))| *end == TargetEnd::Done);
    let changed: Vec<&Backend> = done.map(|(backend, _)| *backend).collect();
    // A push changes no list of models.
    if command.kind == ModelCommand::Push {
        return;
    }
    for backend in &changed {
        backend.state.invalidate_models();
    }
    let Some(name) = command.result() else { return };
    let is_expected = command.kind != ModelCommand::Delete;
    // Declared models are no news to the fleet.
    let discovered = changed.iter().filter(|backend| backend.config.models.is_none());
    let discovered: Vec<_> = discovered.map(|backend| backend.state.id).collect();
    let until = now().after(MAX_SEEN_WAIT);
    while now() < until && ctx.generation.config.discovery.enabled {
        let fleet = ctx.generation.fleet.topology();
        let model = fleet.model_named(name);
        let lists = |id| model.is_some_and(|model| model.serving.iter().any(|row| row.id == id));
        if discovered.iter().all(|id| lists(*id) == is_expected) {
            return;
        }
        tokio::time::sleep(SEEN_CHECK).await;
    }
}

/// Ends the response: with the last line of a stream that has started, else whole.
async fn respond(
    flow: &mut Flow<'_>,
    command: &BroadcastCommand,
    has_started: bool,
    verdict: BroadcastVerdict,
) -> Served {
    let (status, page) = match verdict {
        BroadcastVerdict::Done => (200, json!({"status": "success"})),
        BroadcastVerdict::Failed { status, text } => (status, json!({ "error": text })),
    };
    if status != 200 {
        // The status of a stream has been sent: its last line shows the failure.
        flow.ctx.record.response.code = Some(ErrorCode::BadUpstreamResponse);
    }
    if has_started {
        // As for a whole response with the status of the verdict.
        let response = &mut flow.ctx.record.response;
        response.outcome = Some(own_outcome(response.code, status));
        let line = Bytes::from(format!("{page}\n"));
        return match flow.client.write_body(line, true).await {
            Ok(()) => Ok(()),
            Err(_gone) => flow.ctx.end_cancelled(),
        };
    }
    flow.ctx.record.response.status = status;
    let mut head = ResponseHeader::build(status, Some(8))?;
    // Ollama sends no body for commands without progress.
    let is_silent = status == 200 && !command.has_progress();
    let body = if is_silent { Bytes::new() } else { Bytes::from(format!("{page}\n")) };
    if status == 200 && command.is_streaming {
        head.insert_header(header::CONTENT_TYPE, progress::NDJSON)?;
    }
    send(flow, OwnResponse { head, body, closes: false }).await
}
