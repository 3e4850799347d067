//! The admin port: metrics, health, the fleet, decisions and dry runs. It has a dedicated listener and
//! thread, so that it responds while the data port is overloaded. `ENDPOINTS` is the table of its
//! endpoints; each group of endpoints has a file; `access_control` checks each request.

mod access_control;
mod connection_limit;
mod dashboard;
mod decisions;
mod fleet;
mod health;
mod lifecycle;
mod metrics;
mod path;
mod response;
mod shadow;

use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize};
use std::time::Duration;

use async_trait::async_trait;
use http::{HeaderMap, Method, Response, header};
use pingora::apps::ServerApp;
use pingora::apps::http_app::{HttpServer, ServeHttp};
use pingora::protocols::http::ServerSession;

use crate::discovery::ScrapeBudget;
use crate::downstream::client::Client;
use crate::lifecycle::CommandSender;
use crate::observe::access_log::AccessLog;
use crate::observe::decision_log::DecisionLog;
use crate::observe::metrics::Metrics;
use crate::observe::otlp::SpanExporter;
use crate::proxy::Proxy;
use crate::routing::Generation;
use access_control::Access;
use connection_limit::ConnectionLimit;
use response::{AdminResponse, Refusal};

/// How long a client may stall while it reads a response.
const WRITE_TIMEOUT: Duration = Duration::from_secs(30);

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

/// The method of an endpoint.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Verb {
    /// Also HEAD.
    Get,
    Post,
}

impl Verb {
    fn of(method: &Method) -> Option<Self> {
        match *method {
            Method::GET | Method::HEAD => Some(Self::Get),
            Method::POST => Some(Self::Post),
            _ => None,
        }
    }

    fn name(self) -> &'static str {
        match self {
            Self::Get => "GET",
            Self::Post => "POST",
        }
    }
}

/// One row of the table of endpoints.
struct Endpoint {
    verb: Verb,
    /// Its path, and aliases of it.
    paths: &'static [&'static str],
    access: Access,
    about: &'static str,
    handle: Handler,
}

/// A response that the control loop completes.
type PendingResponse = Pin<Box<dyn Future<Output = Result<AdminResponse, Refusal>> + Send>>;

#[derive(Clone, Copy)]
enum Handler {
    Sync(fn(&Admin, &Call<'_>) -> Result<AdminResponse, Refusal>),
    Async(fn(&Admin) -> PendingResponse),
}

const fn get(
    paths: &'static [&'static str],
    handle: fn(&Admin, &Call<'_>) -> Result<AdminResponse, Refusal>,
    about: &'static str,
) -> Endpoint {
    let handle = Handler::Sync(handle);
    Endpoint { verb: Verb::Get, paths, access: Access::Token, about, handle }
}

const fn post(
    paths: &'static [&'static str],
    handle: fn(&Admin, &Call<'_>) -> Result<AdminResponse, Refusal>,
    about: &'static str,
) -> Endpoint {
    Endpoint { verb: Verb::Post, ..get(paths, handle, about) }
}

const fn command(
    paths: &'static [&'static str],
    handle: fn(&Admin) -> PendingResponse,
    about: &'static str,
) -> Endpoint {
    let handle = Handler::Async(handle);
    Endpoint { verb: Verb::Post, paths, access: Access::Token, about, handle }
}

const fn open(endpoint: Endpoint) -> Endpoint {
    Endpoint { access: Access::Open, ..endpoint }
}

const fn page(endpoint: Endpoint) -> Endpoint {
    Endpoint { access: Access::Page, ..endpoint }
}

static ENDPOINTS: &[Endpoint] = &[
    get(&["/"], index, "this list"),
    page(get(&["/dashboard"], dashboard::page, "the fleet, live, for browsers")),
    get(&["/metrics"], metrics::page, "Prometheus metrics"),
    open(get(&["/health/live", "/livez", "/live"], health::live, "200 while the process runs")),
    open(get(
        &["/health/ready", "/readyz", "/ready"],
        health::ready,
        "200 once every backend has been checked, 503 before and while stopping",
    )),
    open(get(&["/health"], health::overview, "the number of healthy backends")),
    get(&["/version"], health::version, "the version of this process"),
    get(
        &["/fleet"],
        fleet::dump,
        "every backend with its models, load and health; input of `penstock explain`",
    ),
    get(
        &["/decisions"],
        decisions::latest,
        "the latest decisions, newest first; ?n= limits their number; ?capture=true records all inputs for the next minute",
    ),
    get(&["/shadow"], shadow::report, "live decisions compared with those of `routing.shadow`"),
    post(
        &["/explain"],
        decisions::explain,
        r#"a dry run of {"path", "body" or "body_b64", "headers"?}: the decision and its reasons"#,
    ),
    get(&["/config"], fleet::config, "the configuration in force, secrets masked"),
    post(&["/backends/{name}/drain"], fleet::drain, "stop sending new requests to a backend"),
    post(&["/backends/{name}/resume"], fleet::resume, "send requests to it again"),
    command(
        &["/upgrade"],
        lifecycle::upgrade,
        "graceful upgrade: start a new process that takes over the listeners; this one exits after its last request",
    ),
    command(&["/reload"], lifecycle::reload, "reload the configuration; an invalid one is refused"),
];

impl Admin {
    /// The Pingora application of the admin port's listener.
    pub fn into_app(self) -> impl ServerApp + Send + Sync + 'static {
        let (proxy, metrics) = (Arc::clone(&self.proxy), Arc::clone(&self.metrics));
        ConnectionLimit::new(HttpServer::new_app(self), proxy, metrics)
    }

    async fn respond(&self, session: &mut ServerSession) -> Result<AdminResponse, Refusal> {
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
        match endpoint.handle {
            Handler::Sync(handle) => {
                handle(self, &Call { generation: &generation, query, name, body: &body })
            }
            Handler::Async(handle) => handle(self).await,
        }
    }
}

#[async_trait]
impl ServeHttp for Admin {
    async fn response(&self, session: &mut ServerSession) -> Response<Vec<u8>> {
        session.set_write_timeout(Some(WRITE_TIMEOUT));
        let head = session.req_header();
        if !Client::keeps_alive(head.version, &head.headers) {
            session.set_keepalive(None);
        }
        // Do not wait long for a body that no endpoint reads.
        let generation = self.proxy.generation();
        session.set_total_drain_timeout(Some(generation.config.admin.header_timeout));
        drop(generation);
        let response = self.respond(session).await.unwrap_or_else(|refusal| {
            // Unread body bytes must not be parsed as the next request.
            session.set_keepalive(None);
            refusal.to_response()
        });
        response.into_response(session.req_header().method == Method::HEAD)
    }
}

/// The endpoints of a path, with the segment that matches `{name}`.
fn find(path: &str) -> Vec<(&'static Endpoint, String)> {
    let rows = ENDPOINTS.iter().flat_map(|row| row.paths.iter().map(move |known| (row, *known)));
    rows.filter_map(|(row, known)| Some((row, path::capture(known, path)?))).collect()
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

fn index(_admin: &Admin, _call: &Call<'_>) -> Result<AdminResponse, Refusal> {
    let mut text = format!("penstock {}\n\n", env!("CARGO_PKG_VERSION"));
    for endpoint in ENDPOINTS {
        for path in endpoint.paths.iter().take(1) {
            let line = format!("{:<5}{path:<25}{}\n", endpoint.verb.name(), endpoint.about);
            text.push_str(&line);
        }
    }
    Ok(AdminResponse::text(text))
}

#[cfg(test)]
mod tests;
