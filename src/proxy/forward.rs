//! One attempt, for every purpose: a chat, a conversion, a request for one backend, a tunnel, a
//! call of an ensemble, a count of tokens, a model to load. The backend gets the request, its
//! response is judged, and the outcome is recorded once.

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use penstock_api::{Capabilities, ErrorCode};
use penstock_clock::now;
use penstock_core::fleet::Outcome;

use crate::proxy::attempt::{
    Attempt, AttemptEnd, AttemptResult, Elsewhere, Permit, record_outcome,
};
use crate::proxy::exchange::{Reply, exchange};
use crate::proxy::failure::OwnError;
use crate::proxy::flow::Flow;
use crate::proxy::moves::Movable;
use crate::proxy::own_response::{send_error, send_held};
use crate::proxy::request::{Decided, RequestView, ScannedRequest};
use crate::proxy::response::{held_of, learn_framing, relay};
use crate::proxy::rewrite::{adapt, remove_unsupported};
use crate::proxy::shift_state::TooLong;
use crate::upstream::disposition::{Disposition, SeenResponse};
use crate::upstream::failure::{AttemptFailure, ConnectError, ExchangeError};
use crate::upstream::response_head::ResponseHead;

/// The longest wait of a response's head for the body, or for its first event. A backend that does
/// no work fails at once. A working engine may take any time, and the head shows the client that it
/// works.
const MAX_EVENT_WAIT: Duration = Duration::from_millis(250);

/// The longest wait of a converted stream's head for its first output. Nothing before that output
/// reaches the client, and proxies in front of it close connections that are silent for a minute.
const MAX_OUTPUT_WAIT: Duration = Duration::from_secs(30);

/// The longest wait of an error for its body: a backend that hangs after the head has said enough
/// by its status.
const MAX_ERROR_WAIT: Duration = Duration::from_secs(2);

/// The recipient of an attempt's response.
#[derive(Clone, Copy)]
pub(crate) enum Recipient<'a> {
    /// The client of a request for a model.
    Client,
    /// A request beside the spine.
    Other(&'a dyn TakeResponse),
}

/// A request beside the spine, such as a tunnel or a call of an ensemble. It makes the same
/// attempts, and has another use for their responses.
#[async_trait]
pub(crate) trait TakeResponse: Send + Sync {
    /// Takes a response whose head has been read.
    ///
    /// # Errors
    /// When the attempt fails before its response has gone anywhere.
    async fn take(
        &self,
        flow: &mut Flow<'_>,
        request: &mut ScannedRequest,
        reply: Reply<'_>,
    ) -> Result<AttemptEnd, AttemptFailure>;
}

/// Makes one attempt at a decision, and reports its outcome to the backend's state.
pub(crate) async fn make_attempt(
    flow: &mut Flow<'_>,
    to: Recipient<'_>,
    request: &mut ScannedRequest,
    decided: Box<Decided>,
) -> AttemptEnd {
    let Decided { decision, permit } = *decided;
    let mut permit = Some(permit);
    request.decision = Some(decision);
    let fleet = Arc::clone(&request.fleet);
    let client = flow.ctx.client.clone();
    // Everything that is sent for a client passes here: no way around the filters, now or later,
    // leads out of the zones of a policy.
    let scope = request.policy.restriction;
    let is_admitted = decision.serving(&fleet).is_some_and(|row| scope.admits_zone(row.zone));
    let attempt = client
        .as_ref()
        .filter(|_| is_admitted)
        .and_then(|client| Attempt::start(flow.ctx, &decision, &fleet, client, &flow.proxy.seeds));
    let Some(mut attempt) = attempt else {
        debug_assert!(false, "not of this fleet, outside the zones, or without a client");
        return AttemptEnd::Failed(AttemptFailure::NotSent(ConnectError::NoAddress));
    };
    let ended = run(flow, to, request, &mut attempt, &mut permit).await;
    let end = ended.unwrap_or_else(AttemptEnd::Failed);
    let result = AttemptResult::of(&end, flow.ctx, flow.proxy.seeds.next_share());
    // The record of a call of an ensemble is made here: nothing is relayed.
    if !flow.client.takes_response() {
        flow.ctx.record.response.outcome = Some(result.outcome);
        flow.ctx.record.response.code = result.code;
    }
    // Does nothing for a response that was relayed: it was recorded with its last part.
    record_outcome(&attempt, &mut permit, &result, flow.ctx, flow.proxy);
    let routing = &mut flow.ctx.record.routing;
    if routing.backend.is_none() {
        routing.attempted = Some(attempt.serving.state.name.clone());
    }
    end
}

async fn run(
    flow: &mut Flow<'_>,
    to: Recipient<'_>,
    request: &mut ScannedRequest,
    attempt: &mut Attempt<'_>,
    permit: &mut Permit,
) -> Result<AttemptEnd, AttemptFailure> {
    match attempt.serving.conversion(request.profile.operation) {
        // There may be one from an attempt at another backend.
        None => request.conversion = None,
        // Boxed: no other request should carry room for it.
        Some(target) => {
            if let Some(end) = Box::pin(adapt(flow, request, attempt, target)).await {
                return Ok(end);
            }
        }
    }
    let attempt = &*attempt;
    let may_move =
        matches!(to, Recipient::Client) && flow.ctx.generation.config.routing.move_waiting;
    let movable = may_move.then(|| Movable::of(request.view(flow.ctx), attempt)).flatten();
    let reply = exchange(flow, request, attempt, permit);
    let reply = match movable {
        None => reply.await?,
        // Boxed: no other request should carry room for it.
        Some(movable) => match Box::pin(movable.wait(flow, request, attempt, reply)).await {
            Ok(reply) => reply,
            Err(end) => return Ok(end),
        },
    };
    match to {
        Recipient::Client => deliver(flow, request, reply).await,
        Recipient::Other(recipient) => recipient.take(flow, request, reply).await,
    }
}

/// Decides the disposition of a response, and reads only the part of it that this takes.
/// `is_gathered`: it becomes text, for an ensemble.
///
/// # Errors
/// When the backend ends the connection before the body has started, a deadline passes, or the
/// client leaves.
pub(crate) async fn judge(
    view: RequestView<'_>,
    reply: &mut Reply<'_>,
    is_gathered: bool,
) -> Result<Disposition, AttemptFailure> {
    let status = reply.head.status;
    let is_success = matches!(status, 200..=299);
    let (mut has_started, mut is_over, mut late) = (false, false, None);
    let terms = reply.attempt.response_terms(view.request, view.ctx, status, is_gathered);
    loop {
        if let Some(expected) = reply.open_framing(view.request) {
            learn_framing(expected, reply);
        }
        let body = has_started.then(|| reply.started.payload());
        let is_whole = is_over || reply.started.is_whole();
        let seen = seen_of(&reply.head, body, is_whole).read_result(terms.sent);
        let result = seen.result;
        if let Some(disposition) = Disposition::of(&terms, &seen) {
            learn_missing(view, reply.attempt, terms.missing(reply.started.payload()));
            reply.result = result;
            return Ok(disposition);
        }
        if !has_started {
            has_started = true;
            // Most engines write a short body together with its head: then nothing has to wait for
            // it.
            // A malformed start is no progress: the read below meets the same error.
            if reply.exchange.take_arrived(&mut reply.started).unwrap_or(false) {
                continue;
            }
        }
        let longest = longest_wait(&reply.head, terms.is_converted);
        let late = late.get_or_insert_with(|| Box::pin(tokio::time::sleep(longest)));
        let known = reply.started.payload().len();
        // A conversion shows its client nothing yet. Without a byte, the framing may be unknown,
        // and with it the time that the response may take.
        let is_unseen = is_success
            && terms.is_converted
            && (known > 0 || reply.open_framing(view.request).is_none());
        let read = reply.exchange.read_until(&mut reply.started, |payload| payload.len() > known);
        let read = tokio::select! {
            // A body that has arrived beats the timer.
            biased;
            read = read => read,
            () = late, if !is_over && (!is_unseen || reply.head.stream.is_some()) => match is_success {
                true => return Ok(Disposition::Relay),
                false => {
                    is_over = true;
                    // The announced body may never come: the client is not kept waiting for it.
                    let deadline = &mut reply.exchange.interrupts.deadline;
                    deadline.set(now(), MAX_ERROR_WAIT, ErrorCode::ResponseTimeout);
                    continue;
                }
            },
        };
        match read {
            Ok(()) if is_unseen => reply.attempt.serving.state.note_bytes(now()),
            Ok(()) => {}
            Err(ExchangeError::ClientGone) => return Err(AttemptFailure::ClientGone),
            // Not a byte of the body has come, so that another attempt is possible.
            Err(ExchangeError::TimedOut(code)) if is_success && known == 0 => {
                return Err(AttemptFailure::TimedOut(code));
            }
            // The engine has started its response. The client gets what has come, with a visible
            // end: the relay meets the same error.
            Err(_) if is_success => return Ok(Disposition::Relay),
            // The status says enough.
            Err(_) => is_over = true,
        }
    }
}

/// Returns the longest wait of a head for what decides about its response.
fn longest_wait(head: &ResponseHead, is_converted: bool) -> Duration {
    match head.status {
        200..=299 if is_converted && head.stream.is_some() => MAX_OUTPUT_WAIT,
        200..=299 => MAX_EVENT_WAIT,
        _ => MAX_ERROR_WAIT,
    }
}

/// A response as far as it is known. `body`: the part of it that has been read.
fn seen_of<'a>(head: &ResponseHead, body: Option<&'a [u8]>, is_whole: bool) -> SeenResponse<'a> {
    SeenResponse {
        status: head.status,
        framing: head.framing,
        stream: head.stream,
        is_json: head.is_json,
        is_text: head.is_text,
        is_encoded: head.is_encoded,
        body,
        is_whole,
        result: None,
    }
}

/// Learns the capabilities that the model lacks there.
fn learn_missing(view: RequestView<'_>, attempt: &Attempt<'_>, missing: Capabilities) {
    let serving = attempt.serving;
    if !missing.is_empty() && view.ctx.generation.fleet.learn_missing(serving, missing, now()) {
        let (backend, model) = (&serving.state.name, &serving.model);
        tracing::info!(%backend, %model, %missing, "backend's model lacks a capability");
    }
}

/// Sends a response to the client, or holds it back because another backend may do better.
async fn deliver(
    flow: &mut Flow<'_>,
    request: &mut ScannedRequest,
    mut reply: Reply<'_>,
) -> Result<AttemptEnd, AttemptFailure> {
    Ok(match judge(request.view(flow.ctx), &mut reply, false).await? {
        Disposition::Relay => {
            // From here on there is no retry, so the body is released.
            request.body = None;
            AttemptEnd::Relayed(relay(flow, request, reply).await)
        }
        Disposition::Hold(refusal) => {
            let held = held_of(flow.proxy, request, reply, Some(refusal));
            return Err(AttemptFailure::Held(refusal, held));
        }
        Disposition::ConvertError => send_refused(flow, request, reply).await,
        Disposition::Shorten(refusal) => {
            let held = held_of(flow.proxy, request, reply, None);
            let too_long = Box::new(TooLong { held, refusal });
            AttemptEnd::Elsewhere(Elsewhere::TooLong(too_long))
        }
        Disposition::Drop(what) => match remove_unsupported(flow.ctx, request, what) {
            true => AttemptEnd::Changed,
            false => send_refused(flow, request, reply).await,
        },
        Disposition::NoStream => {
            flow.ctx.record_backend(reply.attempt.serving, reply.attempt.backend);
            flow.ctx.record.response.outcome = Some(Outcome::Fault);
            let message = "The backend sent no stream to a request for one";
            let error = OwnError::new(ErrorCode::BadUpstreamResponse, message);
            AttemptEnd::Relayed(send_error(flow, error).await)
        }
    })
}

/// Sends an engine's refusal to the client, in the client's dialect.
async fn send_refused(
    flow: &mut Flow<'_>,
    request: &ScannedRequest,
    reply: Reply<'_>,
) -> AttemptEnd {
    flow.ctx.record_backend(reply.attempt.serving, reply.attempt.backend);
    let held = held_of(flow.proxy, request, reply, None);
    AttemptEnd::Relayed(send_held(flow, held).await)
}
