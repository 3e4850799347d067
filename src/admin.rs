//! The admin port: metrics, health, the fleet, decisions and dry runs. It has a dedicated listener
//! and thread, so that it responds while the data port is overloaded. `ENDPOINTS` is the table of
//! its endpoints; each group of endpoints has a file; `access_control` checks each request.

mod access_control;
mod connection_limit;
mod dashboard;
mod decisions;
mod endpoint;
mod endpoints;
mod event_stream;
mod health;
mod keys;
mod ledger;
mod path;
mod quote;
mod response;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize};
use std::time::Duration;

use async_trait::async_trait;
use http::{HeaderMap, Method, header};
use penstock_api::{UsageCall, UsageRequest};
use penstock_core::routing::Generation;
use pingora::apps::{HttpPersistentSettings, HttpServerApp, ReusedHttpStream, ServerApp};
use pingora::protocols::http::ServerSession;
use pingora::server::ShutdownWatch;

use crate::discovery::ScrapeBudget;
use crate::downstream::client::Client;
use crate::lifecycle::CommandSender;
use crate::observe::access_log::AccessLog;
use crate::observe::decision_log::DecisionLog;
use crate::observe::metrics::Metrics;
use crate::observe::otlp::SpanExporter;
use crate::observe::usage::{LiveUsage, UsageReply, UsageStream};
use crate::proxy::Proxy;
use access_control::Access;
use connection_limit::AdminConnectionLimit;
use endpoint::{
    Endpoint, Handler, Verb, command, get, open, page, post, probe, query, usage, with,
};
use response::{AdminRefusal, AdminResponse};

/// The time that a client may stall while it reads a response.
const WRITE_TIMEOUT: Duration = Duration::from_secs(30);

/// Seconds that Pingora keeps an idle connection; `connection_limit` applies the actual timeout.
const KEEP_ALIVE: u64 = 60;

/// The state that the admin port reports and controls.
pub struct Admin {
    pub proxy: Arc<Proxy>,
    /// The metrics of the data plane.
    pub metrics: Arc<Metrics>,
    /// The latest decisions of the data plane.
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
struct AdminCall<'a> {
    generation: &'a Generation,
    query: &'a str,
    /// The path segment that matched `{name}`.
    name: &'a str,
    body: &'a [u8],
    /// True if the client may see more than a probe: no web page of another site can have sent the
    /// request.
    is_trusted: bool,
}

static ENDPOINTS: &[Endpoint] = &[
    get(&["/"], index, "this list"),
    page(get(&["/dashboard"], dashboard::page, "the fleet, live, for browsers")),
    get(&["/metrics"], endpoints::metrics, "Prometheus metrics"),
    probe(get(&["/health/live", "/livez", "/live"], health::live, "200 while the process runs")),
    probe(get(
        &["/health/ready", "/readyz", "/ready"],
        health::ready,
        "200 once every backend has been checked, 503 before and while stopping",
    )),
    open(get(&["/health"], health::overview, "the number of healthy backends")),
    get(&["/version"], health::version, "the version of this process"),
    get(
        &["/fleet"],
        endpoints::fleet,
        "every backend with its models, load and health; input of `penstock explain`",
    ),
    get(
        &["/decisions"],
        decisions::latest,
        "the latest decisions, newest first; ?n= limits their number; ?capture=true records all inputs for the next minute",
    ),
    get(&["/shadow"], endpoints::shadow, "live decisions compared with those of `routing.shadow`"),
    post(
        &["/explain"],
        decisions::explain,
        r#"a dry run of {"path", "body" or "body_b64", "headers"?}: the decision and its reasons"#,
    ),
    post(
        &["/quote"],
        quote::predicted,
        r#"{"model"?, "tokens", "max_tokens"?, "ttft_ms"?, "tpot_ms"?}: where a request would meet these objectives now, or when"#,
    ),
    query(
        &["/usage"],
        ledger::report,
        "tokens of the ledger, the largest sums first: ?by=key,model,backend,day, ?since= and ?until= a day or 7d, ?n=",
    ),
    get(
        &["/budgets"],
        endpoints::budgets,
        "what was spent of each budget, and what is left: ?name= of one budget, ?n=",
    ),
    usage(
        UsageCall::Usage,
        &["/api/usage"],
        "requests in flight and tokens per backend (by its URL) and model",
    ),
    usage(
        UsageCall::Stream,
        &["/api/usage-stream"],
        "the same as server-sent events: the state at once, then whenever it changes",
    ),
    usage(
        UsageCall::TokenCounts,
        &["/api/token_counts"],
        "input and output tokens per backend and model, those not yet written among them",
    ),
    usage(
        UsageCall::Stats,
        &["/api/stats"],
        r#"the tokens of a model, {"model"} or ?model=, by minute and backend, newest first"#,
    ),
    usage(UsageCall::Config, &["/api/config"], "the backends and their health"),
    usage(
        UsageCall::Days,
        &["/api/aggregate_time_series_days"],
        r#"{"days"?, "trim_old"?}: the daily sums that are older; trim_old deletes their minutes"#,
    ),
    usage(
        UsageCall::CacheStats,
        &["/api/cache/stats"],
        "for clients of the NOMYO Router: penstock caches no responses",
    ),
    usage(UsageCall::InvalidateCache, &["/api/cache/invalidate"], "the same"),
    get(&["/config"], endpoints::config, "the configuration in force, secrets masked"),
    post(&["/backends/{name}/drain"], endpoints::drain, "stop sending new requests to a backend"),
    post(&["/backends/{name}/resume"], endpoints::resume, "send requests to it again"),
    query(&["/keys"], keys::list, "the client keys of `auth.store`, without their secrets"),
    command(
        &["/keys"],
        keys::create,
        r#"make a key of {"name", "team"?, "models"?, "limits"?, "expires_at"?, …}; the response has its secret, once"#,
    ),
    query(&["/keys/{name}"], keys::show, "a key, by its id"),
    with(
        Verb::Patch,
        command(&["/keys/{name}"], keys::change, "change attributes of a key; null removes one"),
    ),
    with(Verb::Delete, command(&["/keys/{name}"], keys::revoke, "revoke a key, at once")),
    command(
        &["/keys/{name}/rotate"],
        keys::rotate,
        r#"make a new secret for a key; the old one stays valid for {"overlap"?: "24h"}"#,
    ),
    query(&["/revoked_tokens"], keys::revoked_tokens, "the revoked tokens of identity providers"),
    command(
        &["/revoked_tokens"],
        keys::revoke_token,
        r#"revoke a token of an identity provider, at once, by {"jti", "issuer"?, "expires_at"?}"#,
    ),
    with(
        Verb::Delete,
        command(
            &["/revoked_tokens/{name}"],
            keys::restore_token,
            "take back the revocation of a token, by its jti; ?issuer= unless it is that of every issuer",
        ),
    ),
    command(
        &["/upgrade"],
        endpoints::upgrade,
        "graceful upgrade: start a new process that takes over the listeners; this one exits after its last request",
    ),
    command(
        &["/reload"],
        endpoints::reload,
        "reload the configuration; an invalid one is refused; ?simulate=15m simulates it with the recent traffic first",
    ),
];

impl Admin {
    /// The Pingora application of the admin port's listener.
    pub fn into_app(self) -> impl ServerApp + Send + Sync + 'static {
        let (proxy, metrics) = (Arc::clone(&self.proxy), Arc::clone(&self.metrics));
        AdminConnectionLimit::new(self, proxy, metrics)
    }

    async fn respond(&self, session: &mut ServerSession) -> Result<AdminReply, AdminRefusal> {
        let generation = self.proxy.generation();
        let head = session.req_header();
        let verb = Verb::of(&head.method);
        let (path, query) = (head.uri.path().to_owned(), head.uri.query().map(str::to_owned));
        let found = find(&path);
        // Unknown paths are guarded as well: without the token a 404 reveals nothing.
        let access = found.first().map_or(Access::Token, |(endpoint, _)| endpoint.access);
        let token = generation.config.admin.token.as_ref();
        access_control::check(&head.headers, token, access)?;
        let is_trusted = access_control::check(&head.headers, token, Access::Open).is_ok();
        let Some((endpoint, name)) = found.iter().find(|(one, _)| Some(one.verb) == verb) else {
            return Err(match found.first() {
                None => AdminRefusal::UnknownPath,
                Some(_) => {
                    let allowed = found.iter().map(|(endpoint, _)| endpoint.verb.name());
                    AdminRefusal::MethodNotAllowed { allow: allowed.collect::<Vec<_>>().join(", ") }
                }
            });
        };
        let body = match endpoint.verb {
            Verb::Get | Verb::Delete => Vec::new(),
            Verb::Post | Verb::Patch => read_body(session, &generation).await?,
        };
        let query = query.as_deref().unwrap_or_default();
        let call = AdminCall { generation: &generation, query, name, body: &body, is_trusted };
        match endpoint.handle {
            Handler::Sync(handle) => handle(self, &call).map(AdminReply::Whole),
            Handler::Async(handle) => handle(self, &call).await.map(AdminReply::Whole),
            Handler::Usage(call) => {
                match self.usage.respond(UsageRequest { call, query, body: &body }).await? {
                    UsageReply::Page(page) => {
                        Ok(AdminReply::Whole(AdminResponse::of_bytes("application/json", page)))
                    }
                    UsageReply::Stream(stream) => Ok(AdminReply::Stream(stream)),
                }
            }
        }
    }
}

/// The reply to a request.
enum AdminReply {
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
        // `connection_limit` decides how long an idle connection is kept.
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
            Ok(AdminReply::Whole(response)) => response.send(&mut session, is_head).await,
            Ok(AdminReply::Stream(stream)) => {
                event_stream::send(stream, &mut session, is_head).await
            }
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
) -> Result<Vec<u8>, AdminRefusal> {
    let limits = &generation.config.limits;
    let headers = &session.req_header().headers;
    let too_large = || AdminRefusal::BodyTooLarge { limit: limits.max_body_size };
    // Before the client sends the body, which it may hold back until penstock continues.
    if declared_length(headers).is_some_and(|length| length > limits.max_body_size.0) {
        return Err(too_large());
    }
    if headers.contains_key(header::EXPECT) {
        let written = session.write_continue_response().await;
        written.map_err(|_gone| AdminRefusal::BodyCut)?;
    }
    let reading = async {
        let mut body = Vec::new();
        while let Some(part) =
            session.read_request_body().await.map_err(|_cut| AdminRefusal::BodyCut)?
        {
            if body.len() + part.len() > limits.max_body_size.to_usize() {
                return Err(too_large());
            }
            body.extend_from_slice(&part);
        }
        Ok(body)
    };
    let read = tokio::time::timeout(limits.body_read_timeout, reading).await;
    read.map_err(|_late| AdminRefusal::BodyTimeout)?
}

fn declared_length(headers: &HeaderMap) -> Option<u64> {
    headers.get(header::CONTENT_LENGTH)?.to_str().ok()?.parse().ok()
}

/// The endpoints of a path, with the segment that matches `{name}`.
fn find(path: &str) -> Vec<(&'static Endpoint, String)> {
    let rows = ENDPOINTS.iter().flat_map(|row| row.paths.iter().map(move |known| (row, *known)));
    rows.filter_map(|(row, known)| Some((row, path::capture(known, path)?))).collect()
}

fn index(_admin: &Admin, _call: &AdminCall<'_>) -> Result<AdminResponse, AdminRefusal> {
    let mut text = format!("penstock {}\n\n", env!("CARGO_PKG_VERSION"));
    for endpoint in ENDPOINTS {
        // Further paths are the names that other programs expect.
        for path in endpoint.paths.iter().take(1) {
            let line = format!("{:<7}{path:<33} {}\n", endpoint.verb.name(), endpoint.about);
            text.push_str(&line);
        }
    }
    Ok(AdminResponse::text(text))
}

#[cfg(test)]
mod tests;
