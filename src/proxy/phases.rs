//! The data plane as Pingora sees it: `ProxyHttp`, with the whole life of a request in
//! `request_filter`. Pingora's own way to a backend is not used: it has one read timeout for
//! everything, and retries no POST.

use std::sync::Arc;

use async_trait::async_trait;
use http::HeaderMap;
use http::header::HeaderValue;
use penstock_api::{Dialect, ErrorCode};
use penstock_clock::now;
use penstock_core::fleet::Requester;
use pingora::apps::ServerApp;
use pingora::server::configuration::ServerConf;
use pingora::upstreams::peer::HttpPeer;
use pingora_proxy::{FailToProxy, HttpProxy, ProxyHttp, Session};

use super::Proxy;
use super::broadcast::{serve_blob, serve_command};
use super::context::{RequestContext, RequestRecord, Served};
use super::direct::passthrough::serve_passthrough;
use super::direct::show::serve_show;
use super::direct::stored_responses::serve_stored;
use super::direct::tunnel::{Upgrade, requested_websocket, serve_tunnel};
use super::ensemble::{plan_of, serve_ensemble};
use super::failure::OwnError;
use super::local_response::usage::send_usage;
use super::own_response::{send_body_error, send_error, send_refusal};
use super::queue::settle_charge;
use super::rate_hold::RateHold;
use super::rate_limits::{Estimate, limit_rate, settle_rate};
use super::request_body::{admit_scanned, read_body, scan_body};
use super::request_head::{Forwarded, read_head};
use super::retry::serve;
use crate::downstream::acceptor::Acceptor;
use crate::downstream::body::{BodyLength, HeldBody};
use crate::downstream::body_reader;
use crate::downstream::client::Client;
use crate::downstream::counted::Counted;

/// The data plane as a Pingora service, sharing one [`Proxy`].
#[derive(Clone)]
pub struct DataPlane(pub Arc<Proxy>);

impl DataPlane {
    /// The application behind the data port's listeners.
    pub fn into_app(self, conf: &Arc<ServerConf>) -> impl ServerApp + Send + Sync + 'static {
        let (current, observed) = (Arc::clone(&self.0), Arc::clone(&self.0));
        let clients = Arc::clone(&self.0.clients);
        let mut app = HttpProxy::new(self, Arc::clone(conf));
        app.handle_init_modules();
        Acceptor::new(
            app,
            clients,
            Box::new(move || current.generation()),
            Box::new(move |code, client| observed.observers.refused(code, client)),
        )
    }
}

#[async_trait]
impl ProxyHttp for DataPlane {
    type CTX = RequestContext;

    fn new_ctx(&self) -> RequestContext {
        RequestContext {
            generation: self.0.generation(),
            arrived_at: now(),
            request_id: HeaderValue::from_static("-"),
            trace: None,
            dialect: Dialect::OpenAi,
            operation: None,
            key: None,
            client: None,
            client_address: None,
            body_length: BodyLength::None,
            body_is_read: false,
            requester: Requester::default(),
            cors_origin: None,
            rate: RateHold::default(),
            record: RequestRecord::default(),
            _counted: Counted::new(&self.0.clients.in_flight),
        }
    }

    // No modules: responses are never compressed, buffered or otherwise touched.
    fn init_downstream_modules(&self, _modules: &mut pingora::modules::http::HttpModules) {}

    async fn request_filter(
        &self,
        session: &mut Session,
        ctx: &mut RequestContext,
    ) -> pingora::Result<bool> {
        let served = handle(&self.0, session, ctx).await;
        settle_rate(ctx);
        settle_charge(&self.0, &mut ctx.record);
        self.0.observers.finished(session, ctx);
        served.map(|()| true)
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

/// Handles one request, from its head to its end.
async fn handle(proxy: &Proxy, session: &mut Session, ctx: &mut RequestContext) -> Served {
    let config = &ctx.generation.config;
    let head = session.req_header();
    let keeps_alive = !proxy.is_stopping() && Client::keeps_alive(head.version, &head.headers);
    let keep_alive = keeps_alive.then(|| config.server.keep_alive.as_secs().max(1));
    session.set_keepalive(keep_alive);
    session.set_write_timeout(Some(config.limits.client_write_timeout));
    ctx.client = Client::of(session);
    let Some(client) = ctx.client.clone() else {
        let message = "The connection is not one this proxy reads from";
        let error = OwnError::new(ErrorCode::InternalError, message);
        return send_error(proxy, session, ctx, error).await;
    };
    let trusted = &config.server.trusted_proxies;
    if let Some(refused) = client.refused() {
        // No field of a refused head can be believed, `X-Forwarded-For` included.
        ctx.client_address = client.origin().client(&HeaderMap::new(), trusted);
        return send_refusal(proxy, session, ctx, refused).await;
    }
    let headers = &session.req_header().headers;
    ctx.client_address = client.origin().client(headers, trusted);
    ctx.body_length = client.body_length(headers);
    body_reader::take_over(session);
    let Some(forwarded) = read_head(proxy, session, ctx).await? else {
        if ctx.body_length == BodyLength::None {
            client.expect_head();
        }
        return Ok(());
    };
    if let Forwarded::Blob = forwarded {
        // The body of a blob is not held.
        if ctx.body_length == BodyLength::None {
            client.expect_head();
        }
        return serve_blob(proxy, session, ctx).await;
    }
    let body = match read_body(proxy, session, ctx, &client, forwarded.is_looked_into()).await {
        Ok(body) => body,
        Err(error) => return send_body_error(proxy, session, ctx, &error).await,
    };
    ctx.record.bytes_in = body.bytes.len();
    forward(proxy, session, ctx, forwarded, body).await
}

/// Forwards a request that needs a backend, with its body.
async fn forward(
    proxy: &Proxy,
    session: &mut Session,
    ctx: &mut RequestContext,
    forwarded: Forwarded,
    body: HeldBody,
) -> Served {
    let operation = match forwarded {
        Forwarded::Operation(operation) => operation,
        // Boxed: no request that waits in a queue should carry room for it.
        other => return Box::pin(forward_other(proxy, session, ctx, other, body)).await,
    };
    let scanned = match scan_body(session, ctx, operation, &body) {
        Ok(scanned) => scanned,
        Err(error) => return send_error(proxy, session, ctx, error).await,
    };
    let plan = plan_of(ctx, &scanned.named.model);
    let named = &scanned.named;
    let estimate = Estimate::of(&named.profile, &named.model, plan.as_ref());
    if let Err(error) = limit_rate(proxy, ctx, Some(&estimate)).await {
        return send_error(proxy, session, ctx, error).await;
    }
    if let Some(plan) = plan {
        // Boxed: no other request should carry room for one.
        return Box::pin(serve_ensemble(proxy, session, ctx, plan, (scanned, body))).await;
    }
    match admit_scanned(proxy, session, ctx, scanned, body) {
        Ok(request) => serve(proxy, session, ctx, request).await,
        Err(error) => send_error(proxy, session, ctx, error).await,
    }
}

/// Forwards a request that is not for a model.
async fn forward_other(
    proxy: &Proxy,
    session: &mut Session,
    ctx: &mut RequestContext,
    forwarded: Forwarded,
    body: HeldBody,
) -> Served {
    match forwarded {
        Forwarded::Usage(call) => send_usage(proxy, session, ctx, call, &body.bytes).await,
        Forwarded::Show => serve_show(proxy, session, ctx, body).await,
        Forwarded::Command(kind) => serve_command(proxy, session, ctx, kind, body).await,
        Forwarded::Operation(_) | Forwarded::Blob => {
            debug_assert!(false, "an operation is for a model, and the body of a blob is not held");
            Ok(())
        }
        Forwarded::StoredResponse => serve_stored(proxy, session, ctx, body).await,
        Forwarded::Passthrough(way) => {
            if let Err(error) = limit_rate(proxy, ctx, None).await {
                return send_error(proxy, session, ctx, error).await;
            }
            match requested_websocket(session.req_header()) {
                Some(protocol) => {
                    let upgrade = Upgrade { way: &way, protocol };
                    serve_tunnel(proxy, session, ctx, upgrade, body).await
                }
                None => serve_passthrough(proxy, session, ctx, &way, body).await,
            }
        }
    }
}
