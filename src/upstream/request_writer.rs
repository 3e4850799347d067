//! The request as the backend gets it: a head of penstock's making, and the client's body with the
//! backend's own name for the model in it.

use pingora_proxy::Session;

use super::exchange::{Exchange, Stop};
use super::headers::{Forwarding, OwnFields, write_request_head};
use super::response_head::AnswerHead;
use super::splice::{splice, total_len, wire_name};
use crate::api::Dialect;
use crate::downstream::client::Client;
use crate::fleet::Serving;
use crate::proxy::attempt::Attempt;
use crate::proxy::context::{Call, RequestContext};

/// Writes the request onto the connection and reads the answer's head; also says how many bytes
/// the request has.
pub(crate) async fn ask(
    exchange: &mut Exchange<'_>,
    session: &Session,
    ctx: &RequestContext,
    (call, attempt): (&Call, &Attempt<'_>),
) -> (Result<AnswerHead, Stop>, usize) {
    let body = call.body.as_ref().map(|held| &*held.bytes).unwrap_or_default();
    let name = upstream_name(call, attempt.serving);
    let wire = wire_name(call.profile.operation.row().body, name);
    // Compared decoded: a name the client wrote with escapes is still that name.
    let parts =
        if *name == *call.model { [body, &[], &[]] } else { splice(body, &call.profile, &wire) };
    let client = session.req_header();
    let target = client.uri.path_and_query().map_or("/", |target| target.as_str());
    let own = OwnFields {
        authority: &attempt.backend.authority,
        body_length: total_len(&parts),
        request_id: &ctx.request_id,
        trace: attempt.trace,
        key_in_anthropic_style: ctx.dialect == Dialect::Anthropic,
        forwarding: forwarding(ctx, attempt.client),
    };
    let mut head = Vec::with_capacity(1024);
    write_request_head(&mut head, target, &client.headers, &attempt.backend.config, own);
    let sent = head.len() + own.body_length;
    let [before, new, behind] = parts;
    (exchange.ask([&head, before, new, behind]).await, sent)
}

fn forwarding(ctx: &RequestContext, client: &Client) -> Forwarding {
    let server = &ctx.generation.config.server;
    let origin = client.origin();
    Forwarding {
        policy: server.forwarded_for,
        is_trusted: origin.peer.is_trusted(&server.trusted_proxies),
        peer: origin.peer.address(),
        is_tls: origin.is_tls,
    }
}

/// The name the backend knows the model by.
fn upstream_name<'a>(call: &'a Call, serving: &'a Serving) -> &'a str {
    let resolved = call.decision.as_ref().and_then(|found| call.fleet.model(found.model));
    let own = serving.upstream_id.as_deref();
    own.or(resolved.map(|model| &*model.name)).unwrap_or(&call.model)
}
