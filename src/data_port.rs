//! The data plane as Pingora sees it: `ProxyHttp`, with the whole life of a request in
//! `request_filter`. Pingora's own way to a backend is not used: it has one read timeout for
//! everything, and retries no POST.

mod local_response;
mod model_list;
mod request_head;
mod target;
pub(crate) mod unknown_path;

use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use bytes::BytesMut;
use http::HeaderMap;
use penstock_api::ErrorCode;
use pingora::ErrorType;
use pingora::apps::ServerApp;
use pingora::protocols::Stream;
use pingora::protocols::http::ServerSession;
use pingora::server::ShutdownWatch;
use pingora::server::configuration::ServerConf;
use pingora::upstreams::peer::HttpPeer;
use pingora_proxy::{FailToProxy, HttpProxy, ProxyHttp, Session};

use crate::data_port::request_head::{Forwarded, read_head};
use crate::direct::passthrough::serve_passthrough;
use crate::direct::stored_responses::serve_stored;
use crate::direct::tunnel::{requests_websocket, serve_tunnel};
use crate::downstream::acceptor::{Acceptor, Host};
use crate::downstream::body::{BodyLength, HeldBody};
use crate::downstream::body_reader;
use crate::downstream::client::Client;
use crate::downstream::counted::Counted;
use crate::downstream::http1::RefusedHead;
use crate::ensemble::{plan_of, serve_ensemble};
use crate::ollama::broadcast::{serve_blob, serve_command};
use crate::ollama::show::serve_show;
use crate::ollama::usage::send_usage;
use crate::proxy::Proxy;
use crate::proxy::admission::admit;
use crate::proxy::failure::OwnError;
use crate::proxy::flow::{ClientSide, Flow, RequestContext, Served};
use crate::proxy::own_response::{send_body_error, send_error, send_refusal};
use crate::proxy::queue::settle_charge;
use crate::proxy::rate_limits::{EstimateInputs, limit_rate, settle_rate};
use crate::proxy::request::{read_body, scan_body};
use crate::proxy::retry::serve;
use penstock_core::fleet::Outcome;
use penstock_core::routing::{
    Generation, RequestDetails, RequestOutcome, RequestRecord, ResponseFacts,
};

/// The data plane as a Pingora service, sharing one [`Proxy`].
#[derive(Clone)]
pub struct DataPlane(pub Arc<Proxy>);

impl DataPlane {
    /// The application behind the data port's listeners.
    pub fn into_app(self, conf: &Arc<ServerConf>) -> impl ServerApp + Send + Sync + 'static {
        let (host, clients) = (Arc::new(self.clone()), Arc::clone(&self.0.clients));
        let mut app = HttpProxy::new(self, Arc::clone(conf));
        app.handle_init_modules();
        Acceptor::new(app, clients, host)
    }
}

#[async_trait]
impl Host for DataPlane {
    fn generation(&self) -> Arc<Generation> {
        self.0.generation()
    }

    fn refused(&self, code: ErrorCode, client: Option<IpAddr>) {
        let response = ResponseFacts {
            status: code.row().status,
            code: Some(code),
            ..ResponseFacts::default()
        };
        let outcome = RequestOutcome {
            record: &RequestRecord { response, ..RequestRecord::default() },
            operation: None,
            outcome: Outcome::Client,
            first_token: None,
            took: Duration::ZERO,
            details: RequestDetails { client, ..RequestDetails::default() },
        };
        for observer in &self.0.observers {
            observer.finished(&outcome);
        }
    }

    // As `HttpProxy` does up to the request filter, without the room for what would come after it:
    // that is 14 KB for each open request, and is copied twice.
    async fn serve(
        &self,
        stream: Stream,
        head: BytesMut,
        shutdown: &ShutdownWatch,
    ) -> Option<Stream> {
        let mut session = Session::new_h1(stream);
        session.set_pipelined_prefix(head);
        match session.read_request().await {
            Ok(true) => {}
            Ok(false) => return None,
            Err(error) => {
                if *error.etype() == ErrorType::InvalidHTTPHeader {
                    // Boxed: no other request should carry room for it.
                    _ = Box::pin(session.respond_error(400)).await;
                }
                session.shutdown().await;
                return None;
            }
        }
        if *shutdown.borrow() {
            session.set_keepalive(None);
        }
        {
            let mut ctx = self.new_ctx();
            self.serve_request(&mut session, &mut ctx).await.ok()?;
            // A request counts until its last byte is written.
            session.downstream_session.finish_body().await.ok()?;
        }
        // Not `ServerSession::finish`: it moves the session through four futures.
        let ServerSession::H1(connection) = *session.downstream_session else { return None };
        Some(connection.reuse().await.ok()??.into_parts().0)
    }
}

impl DataPlane {
    /// Serves one request, from its head to its record.
    async fn serve_request(
        &self,
        session: &mut Session,
        ctx: &mut RequestContext,
    ) -> pingora::Result<()> {
        let prepared = prepare(&self.0, session, ctx);
        let mut flow = Flow { proxy: &self.0, client: ClientSide::Session(session), ctx };
        let served = match prepared {
            Ok(()) => handle(&mut flow).await,
            Err(refused) => refuse(&mut flow, refused).await,
        };
        // After every end, errors included: what a request holds must not outlive it.
        if flow.ctx.holds_limits() {
            settle_rate(flow.ctx);
        }
        if flow.ctx.charge.is_some() {
            let response = &flow.ctx.record.response;
            settle_charge(&self.0, flow.ctx, response.usage, response.token_events);
        }
        flow.report_end();
        served
    }
}

#[async_trait]
impl ProxyHttp for DataPlane {
    type CTX = RequestContext;

    fn new_ctx(&self) -> RequestContext {
        RequestContext::new(self.0.generation(), Counted::new(&self.0.clients.in_flight))
    }

    // No modules: responses are never compressed, buffered or otherwise touched.
    fn init_downstream_modules(&self, _modules: &mut pingora::modules::http::HttpModules) {}

    async fn request_filter(
        &self,
        session: &mut Session,
        ctx: &mut RequestContext,
    ) -> pingora::Result<bool> {
        self.serve_request(session, ctx).await.map(|()| true)
    }

    // Every request ends in `request_filter`; none may reach an address past it.
    async fn upstream_peer(
        &self,
        _session: &mut Session,
        _ctx: &mut RequestContext,
    ) -> pingora::Result<Box<HttpPeer>> {
        let reason = "requests are forwarded by the request filter";
        pingora::Error::e_explain(pingora::ErrorType::HTTPStatus(404), reason)
    }

    async fn fail_to_proxy(
        &self,
        session: &mut Session,
        _error: &pingora::Error,
        _ctx: &mut RequestContext,
    ) -> FailToProxy {
        let has_response = session.response_written().is_some();
        tracing::debug!(has_response, "request ended without a complete response");
        FailToProxy { error_code: 0, can_reuse_downstream: false }
    }

    fn suppress_error_log(
        &self,
        _session: &Session,
        _ctx: &RequestContext,
        _error: &pingora::Error,
    ) -> bool {
        true
    }
}

/// Takes over the client's connection from Pingora.
///
/// # Errors
/// The reason why the head was refused, if that is known: then nothing more may be read.
fn prepare(
    proxy: &Proxy,
    session: &mut Session,
    ctx: &mut RequestContext,
) -> Result<(), Option<RefusedHead>> {
    let config = &ctx.generation.config;
    let head = session.req_header();
    let keeps_alive = !proxy.is_stopping() && Client::keeps_alive(head.version, &head.headers);
    let keep_alive = keeps_alive.then(|| config.server.keep_alive.as_secs().max(1));
    session.set_keepalive(keep_alive);
    session.set_write_timeout(Some(config.limits.client_write_timeout));
    ctx.client = Client::of(session);
    let Some(client) = &ctx.client else { return Err(None) };
    let trusted = &config.server.trusted_proxies;
    if let Some(refused) = client.refused() {
        // No field of a refused head can be believed, `X-Forwarded-For` included.
        ctx.client_address = client.origin().client(&HeaderMap::new(), trusted);
        return Err(Some(refused));
    }
    let headers = &session.req_header().headers;
    ctx.client_address = client.origin().client(headers, trusted);
    ctx.body_length = client.body_length(headers);
    body_reader::take_over(session);
    Ok(())
}

/// Responds to a request that is not read.
async fn refuse(flow: &mut Flow<'_>, refused: Option<RefusedHead>) -> Served {
    match refused {
        Some(refused) => send_refusal(flow, refused).await,
        None => {
            let message = "The connection is not one this proxy reads from";
            send_error(flow, OwnError::new(ErrorCode::InternalError, message)).await
        }
    }
}

/// Handles one request, from its head to its end.
async fn handle(flow: &mut Flow<'_>) -> Served {
    let Some(client) = flow.ctx.client.clone() else { return flow.ctx.end_cancelled() };
    let Some(forwarded) = read_head(flow).await? else {
        // With an unread body, the next bytes are no head.
        if flow.ctx.body_length == BodyLength::None {
            client.expect_head();
        }
        return Ok(());
    };
    if let Forwarded::Blob = forwarded {
        // The body of a blob is not held.
        if flow.ctx.body_length == BodyLength::None {
            client.expect_head();
        }
        return serve_blob(flow).await;
    }
    let body = match read_body(flow, &client, forwarded.is_looked_into()).await {
        Ok(body) => body,
        Err(error) => return send_body_error(flow, &error).await,
    };
    flow.ctx.record.request.bytes_in = body.bytes.len();
    forward(flow, forwarded, body).await
}

/// Forwards a request that needs a backend, with its body.
async fn forward(flow: &mut Flow<'_>, forwarded: Forwarded, body: HeldBody) -> Served {
    let operation = match forwarded {
        Forwarded::Operation(operation) => operation,
        // Boxed: no request that waits in a queue should carry room for it.
        other => return Box::pin(forward_other(flow, other, body)).await,
    };
    let named = match scan_body(flow, operation, &body) {
        Ok(named) => named,
        Err(error) => return send_error(flow, error).await,
    };
    // Before anything is refused, so that the log of a refusal names the model.
    flow.ctx.record.request.requested_model = Some(Arc::clone(&named.model));
    flow.ctx.record.request.is_streaming = named.profile.streaming;
    let has_ensembles = flow.ctx.generation.config.ensembles.enabled;
    let plan = if has_ensembles { plan_of(flow.ctx, &named.model) } else { None };
    if flow.ctx.has_rate_limits() {
        let estimate = EstimateInputs::of(&named.profile, &named.model, plan.as_ref(), &body.bytes);
        if let Err(error) = limit_rate(flow, Some(&estimate)).await {
            return send_error(flow, error).await;
        }
    }
    if let Some(plan) = plan {
        // Boxed: no other request should carry room for one.
        return Box::pin(serve_ensemble(flow, plan, named, body)).await;
    }
    match admit(flow, named, body).await {
        Ok(request) => serve(flow, request).await,
        Err(error) => send_error(flow, error).await,
    }
}

/// Forwards a request that is not for a model.
async fn forward_other(flow: &mut Flow<'_>, forwarded: Forwarded, body: HeldBody) -> Served {
    match forwarded {
        Forwarded::Usage(call) => send_usage(flow, call, &body.bytes).await,
        Forwarded::Show => serve_show(flow, body).await,
        Forwarded::Command(kind) => serve_command(flow, kind, body).await,
        Forwarded::Operation(_) | Forwarded::Blob => {
            debug_assert!(false, "an operation is for a model, and the body of a blob is not held");
            Ok(())
        }
        Forwarded::StoredResponse { id } => serve_stored(flow, &id, body).await,
        Forwarded::Passthrough(way) => {
            if flow.ctx.has_rate_limits()
                && let Err(error) = limit_rate(flow, None).await
            {
                return send_error(flow, error).await;
            }
            if requests_websocket(flow.client.head()) {
                return serve_tunnel(flow, &way, body).await;
            }
            serve_passthrough(flow, &way, body).await
        }
    }
}
