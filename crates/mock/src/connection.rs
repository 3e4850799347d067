//! One connection to a mock engine: reads and records each request, then responds or fails. Beside
//! it, the state that all connections of an engine share.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use penstock_api::Operation;
use tokio::net::TcpStream;
use tokio::task::JoinSet;

use super::deliver::{Delivery, Ending};
use super::fault::Fault;
use super::info;
use super::library::Library;
use super::memory::Memory;
use super::received::path_of;
use super::records::{OpenRequest, Records};
use super::responses::{self, Response, WholeResponse};
use super::script::FaultScript;
use super::spec::MockSpec;
use super::wire::{ClientSocket, ReadError};
use super::wire_head::{RequestHead, is_probe_line};

/// The state of a mock engine that its connections share.
#[derive(Debug)]
pub(super) struct Shared {
    pub(super) spec: MockSpec,
    pub(super) script: FaultScript,
    pub(super) records: Records,
    pub(super) memory: Option<Memory>,
    pub(super) library: Option<Library>,
    pub(super) connections: Mutex<Connections>,
}

#[derive(Debug, Default)]
pub(super) struct Connections {
    pub(super) open: JoinSet<()>,
    // The accept task may still run on another thread while the engine is dropped.
    pub(super) is_over: bool,
}

impl Shared {
    pub(super) fn connections(&self) -> MutexGuard<'_, Connections> {
        self.connections.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

pub(super) async fn serve(shared: Arc<Shared>, stream: TcpStream, number: u64) {
    let _open = shared.records.connection_opened();
    let fault = shared.script.take_at_accept();
    let mut wire = ClientSocket::new(stream);
    if let Some(fault) = fault {
        shared.records.count(|counters| counters.faults += 1);
        return if matches!(fault, Fault::ResetOnAccept) {
            wire.reset()
        } else {
            wire.close().await
        };
    }
    loop {
        match exchange(&shared, &mut wire, number).await {
            Ending::Again => {}
            Ending::Close | Ending::Cut => return wire.close().await,
            Ending::CloseSlowly => return wire.close_slowly().await,
            Ending::Reset => return wire.reset(),
            Ending::Drop => return,
        }
    }
}

async fn exchange(shared: &Shared, wire: &mut ClientSocket, number: u64) -> Ending {
    let Some(first) = wire.peek().await else { return Ending::Drop };
    if !is_probe_line(&first) && shared.script.take_unread() {
        shared.records.count(|counters| counters.faults += 1);
        // Unread bytes turn the close into a reset.
        return Ending::Drop;
    }
    let head = match wire.read_head().await {
        Ok(head) => head,
        Err(error) => return refuse(shared, wire, error).await,
    };
    let is_probe = head.is_probe();
    let fault = shared.script.take(is_probe);
    if fault.is_some() {
        shared.records.count(|counters| counters.faults += 1);
    }
    let request = shared.records.request_arrived(&head, number, is_probe, fault.clone());
    if let Some(Fault::EarlyStatus(status)) = fault {
        return refuse_early(wire, request, status).await;
    }
    if head.expects_continue() && wire.write(b"HTTP/1.1 100 Continue\r\n\r\n").await.is_err() {
        request.broke_off();
        return Ending::Drop;
    }
    let body = match wire.read_body(head.length).await {
        Ok(body) => body,
        Err(error) => {
            request.broke_off();
            return refuse(shared, wire, error).await;
        }
    };
    request.set_body(body.clone());
    // Only where none is queued: a test that scripts a sequence gets exactly that one.
    let fault = fault.or_else(|| shared.script.fault_of_body(&body).filter(|_| !is_probe));
    if let Some(memory) = shared.memory.as_ref().filter(|_| !is_probe)
        && memory.use_model_of(&body)
    {
        shared.records.count(|counters| counters.loads += 1);
    }
    let response = response(shared, &head, &body);
    // A long stream would otherwise hold the bytes of a large prompt to its end.
    drop(body);
    let mut delivery = Delivery::new(wire, &shared.records, &head);
    match delivery.run(response, fault).await {
        Ok(ending) => {
            // A scripted cut is neither a whole response nor a client that left: tests count it as
            // none.
            if matches!(ending, Ending::Again | Ending::Close) {
                request.responded();
            }
            ending
        }
        Err(_gone) => {
            request.cancelled(delivery.events());
            Ending::Drop
        }
    }
}

fn response(shared: &Shared, head: &RequestHead, body: &[u8]) -> Response {
    let path = path_of(&head.target);
    let operation = Operation::from_path(path);
    // Health and metrics are open, as vLLM's are with `--api-key`.
    let needs_key = path.starts_with("/v1/") || path.starts_with("/api/");
    if needs_key && !has_key(shared, head) {
        let message = "Incorrect API key provided.";
        return Response::Whole(responses::refusal(operation, 401, "invalid_api_key", message));
    }
    // Before every other page: a test may replace any of them, and the metrics most of all.
    if let Some(text) = shared.script.page(path) {
        return Response::Whole(WholeResponse::text(text));
    }
    if shared.spec.reports_load && path == "/metrics" {
        return Response::Whole(info::load_page(shared.records.counters().open_requests));
    }
    if let Some(memory) = shared.memory.as_ref().filter(|_| path == "/api/ps") {
        return Response::Whole(WholeResponse::value(200, &memory.page()));
    }
    // Read for each request: a model that was pulled meanwhile is served from then on.
    let changed = shared.library.as_ref().map(|library| library.apply(&shared.spec));
    let spec = changed.as_ref().unwrap_or(&shared.spec);
    let library = shared.library.as_ref();
    let managed = library.and_then(|library| library.response(spec, &head.method, path, body));
    if let Some(response) = managed {
        return response;
    }
    if head.is_probe() {
        return Response::Whole(info::page(spec, shared.script.health(), path, body));
    }
    match operation {
        Some(operation) if head.method == "POST" => {
            let content_type = head.header("content-type").unwrap_or("");
            responses::response(spec, operation, content_type, body)
        }
        Some(_) => {
            let message = "Method Not Allowed";
            Response::Whole(responses::refusal(operation, 405, "method_not_allowed", message))
        }
        None => Response::Whole(responses::refusal(None, 404, "not_found", "Not Found")),
    }
}

fn has_key(shared: &Shared, head: &RequestHead) -> bool {
    let Some(key) = &shared.spec.api_key else { return true };
    let bearer = head.header("authorization").and_then(|value| value.strip_prefix("Bearer "));
    bearer == Some(key) || head.header("x-api-key") == Some(key)
}

async fn refuse(shared: &Shared, wire: &mut ClientSocket, error: ReadError) -> Ending {
    match error {
        ReadError::Gone => Ending::Drop,
        ReadError::Malformed(why) => {
            shared.records.add_malformed(why, wire.leftover());
            let refusal = responses::refusal(None, 400, "bad_request", why);
            send_and_close(wire, refusal).await
        }
    }
}

async fn refuse_early(wire: &mut ClientSocket, request: OpenRequest<'_>, status: u16) -> Ending {
    let refusal = responses::refusal(None, status, "scripted", "refused before the body was read");
    let ending = send_and_close(wire, refusal).await;
    request.responded();
    ending
}

async fn send_and_close(wire: &mut ClientSocket, refusal: WholeResponse) -> Ending {
    match wire.write(&refusal.to_closing_bytes()).await {
        // The client may still send the body that is refused: a reset could cost it the response.
        Ok(()) => Ending::CloseSlowly,
        Err(_gone) => Ending::Drop,
    }
}
