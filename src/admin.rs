//! The admin port: metrics, health, the fleet, decisions and dry runs. It has a dedicated listener and
//! thread, so that it responds while the data port is overloaded. `endpoints` is the table of its
//! endpoints; each group of endpoints has a file; `access_control` checks each request.

mod access_control;
mod connection_limit;
mod dashboard;
mod decisions;
mod endpoints;
mod event_stream;
mod fleet;
mod health;
mod ledger;
mod lifecycle;
mod metrics;
mod path;
mod quote;
mod response;
mod shadow;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize};
use std::time::Duration;

use async_trait::async_trait;
use http::{HeaderMap, Method, header};
use pingora::apps::{HttpPersistentSettings, HttpServerApp, ReusedHttpStream, ServerApp};
use pingora::protocols::http::ServerSession;
use pingora::server::ShutdownWatch;

use crate::api::UsageRequest;
use crate::discovery::ScrapeBudget;
use crate::downstream::client::Client;
use crate::lifecycle::CommandSender;
use crate::observe::access_log::AccessLog;
use crate::observe::decision_log::DecisionLog;
use crate::observe::metrics::Metrics;
use crate::observe::otlp::SpanExporter;
use crate::observe::usage::{LiveUsage, UsageReply, UsageStream};
use crate::proxy::Proxy;
use crate::routing::Generation;
use access_control::Access;
use connection_limit::ConnectionLimit;
use endpoints::{Handler, Verb, find};
use response::{AdminResponse, Refusal};

/// How long a client may stall while it reads a response.
const WRITE_TIMEOUT: Duration = Duration::from_secs(30);

/// Whether a connection is kept; for how many seconds is up to `connection_limit`.
const KEEP_ALIVE: u64 = 60;

/// What the admin port reports and controls.
pub struct Admin {
    /// The data plane.
    pub proxy: Arc<Proxy>,
    /// Its metrics.
    pub metrics: Arc<Metrics>,
    /// Its latest decisions.
    pub decisions: Arc<DecisionLog>,
    /// The access log, if configured.
    pub access_log: Option<Arc<AccessLog>>,
    /// The span exporter, if configured.
    pub spans: Option<Arc<SpanExporter>>,
    /// Live usage and the token ledger.
    pub usage: Arc<LiveUsage>,
    /// Backends whose first health check has not finished.
    pub waiting: Arc<AtomicUsize>,
    /// The cost of scraping engines.
    pub scraping: Arc<ScrapeBudget>,
    /// Set once the process shuts down.
    pub stopping: Arc<AtomicBool>,
    /// Sends reload and upgrade to the control loop.
    pub commands: CommandSender,
}

/// The parts of a request that handlers use.
struct Call<'a> {
    generation: &'a Generation,
    query: &'a str,
    /// The path segment that matched `{name}`.
    name: &'a str,
    body: &'a [u8],
}

impl Admin {
    /// The Pingora application of the admin port's listener.
    pub fn into_app(self) -> impl ServerApp + Send + Sync + 'static {
        let (proxy, metrics) = (Arc::clone(&self.proxy), Arc::clone(&self.metrics));
        ConnectionLimit::new(self, proxy, metrics)
    }

    async fn respond(&self, session: &mut ServerSession) -> Result<Reply, Refusal> {
        let generation = self.proxy.generation();
        let head = session.req_header();
        let verb = Verb::of(&head.method);
        let (path, query) = (head.uri.path().to_owned(), head.uri.query().map(str::to_owned));
        let found = find(&path);
        let access = found.first().map_or(Access::Token, |(endpoint, _)| endpoint.access);
        access_control::check(&head.headers, generation.config.admin.token.as_ref(), access)?;
        let Some((endpoint, name)) = found.iter().find(|(one, _)| Some(one.verb) == verb) else {
            return Err(match found.first() {
                None => Refusal::UnknownPath,
                Some((endpoint, _)) => Refusal::MethodNotAllowed { allow: endpoint.verb.name() },
            });
        };
        let body = match endpoint.verb {
            Verb::Get => Vec::new(),
            Verb::Post => read_body(session, &generation).await?,
        };
        let query = query.as_deref().unwrap_or_default();
        let call = Call { generation: &generation, query, name, body: &body };
        match endpoint.handle {
            Handler::Sync(handle) => handle(self, &call).map(Reply::Whole),
            Handler::Async(handle) => handle(self, &call).await.map(Reply::Whole),
            Handler::Usage(call) => {
                match self.usage.respond(UsageRequest { call, query, body: &body }).await? {
                    UsageReply::Page(page) => {
                        Ok(Reply::Whole(AdminResponse::of_bytes("application/json", page)))
                    }
                    UsageReply::Stream(stream) => Ok(Reply::Stream(stream)),
                }
            }
        }
    }
}

/// What a request gets.
enum Reply {
    Whole(AdminResponse),
    Stream(UsageStream),
}

#[async_trait]
impl HttpServerApp for Admin {
    async fn process_new_http(
        self: &Arc<Self>,
        mut session: ServerSession,
        shutdown: &ShutdownWatch,
    ) -> Option<ReusedHttpStream> {
        match session.read_request().await {
            Ok(true) => {}
            Ok(false) => return None,
            Err(error) => {
                tracing::debug!(%error, "admin port: the request cannot be read");
                return None;
            }
        }
        // How long an idle connection is kept is up to `connection_limit`.
        let keep_alive = if *shutdown.borrow() { None } else { Some(KEEP_ALIVE) };
        session.set_keepalive(keep_alive);
        session.set_write_timeout(Some(WRITE_TIMEOUT));
        let head = session.req_header();
        let is_head = head.method == Method::HEAD;
        if !Client::keeps_alive(head.version, &head.headers) {
            session.set_keepalive(None);
        }
        // Do not wait long for a body that no endpoint reads.
        let generation = self.proxy.generation();
        session.set_total_drain_timeout(Some(generation.config.admin.header_timeout));
        drop(generation);
        let sent = match self.respond(&mut session).await {
            Ok(Reply::Whole(response)) => response.send(&mut session, is_head).await,
            Ok(Reply::Stream(stream)) => event_stream::send(stream, &mut session, is_head).await,
            Err(refusal) => {
                // Unread body bytes must not be parsed as the next request.
                session.set_keepalive(None);
                refusal.to_response().send(&mut session, is_head).await
            }
        };
        if let Err(error) = sent {
            tracing::debug!(%error, "admin port: the client left");
            return None;
        }
        let settings = HttpPersistentSettings::for_session(&session);
        let stream = session.finish().await.ok()??;
        Some(ReusedHttpStream::from_reusable_stream(stream, settings))
    }
}

async fn read_body(
    session: &mut ServerSession,
    generation: &Generation,
) -> Result<Vec<u8>, Refusal> {
    let limits = &generation.config.limits;
    let headers = &session.req_header().headers;
    let too_large = || Refusal::BodyTooLarge { limit: limits.max_body_size };
    if declared_length(headers).is_some_and(|length| length > limits.max_body_size.0) {
        return Err(too_large());
    }
    if headers.contains_key(header::EXPECT) {
        let written = session.write_continue_response().await;
        written.map_err(|_gone| Refusal::BodyCut)?;
    }
    let reading = async {
        let mut body = Vec::new();
        while let Some(part) = session.read_request_body().await.map_err(|_cut| Refusal::BodyCut)? {
            if body.len() + part.len() > limits.max_body_size.to_usize() {
                return Err(too_large());
            }
            body.extend_from_slice(&part);
        }
        Ok(body)
    };
    let read = tokio::time::timeout(limits.body_read_timeout, reading).await;
    read.map_err(|_late| Refusal::BodyTimeout)?
}

fn declared_length(headers: &HeaderMap) -> Option<u64> {
    headers.get(header::CONTENT_LENGTH)?.to_str().ok()?.parse().ok()
}

#[cfg(test)]
mod tests;
