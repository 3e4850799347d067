//! The admin port: metrics, health, the fleet, decisions and dry runs, on a listener and a thread of
//! its own, so that it answers while the data port is overloaded. `ENDPOINTS` lists what it serves;
//! each group of endpoints has its file, and `gate` decides who may ask.

mod access_control;
mod connection_limit;
mod dashboard;
mod decisions;
mod fleet;
mod health;
mod lifecycle;
mod metrics;
mod path;
mod process;
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
use crate::lifecycle::CommandSender;
use crate::observe::access_log::AccessLog;
use crate::observe::decision_log::DecisionLog;
use crate::observe::metrics::Metrics;
use crate::observe::otlp::SpanExporter;
use crate::proxy::Proxy;
use crate::routing::Generation;
use access_control::Access;
pub use connection_limit::AdminConnections;
use connection_limit::ConnectionLimit;
use response::{AdminResponse, Refusal};

/// How long a caller may take no byte of an answer.
const WRITE_TIMEOUT: Duration = Duration::from_secs(30);

/// What the admin port shows and steers.
pub struct Admin {
    /// The data plane.
    pub proxy: Arc<Proxy>,
    /// What it counts.
    pub metrics: Arc<Metrics>,
    /// What it decided.
    pub decisions: Arc<DecisionLog>,
    /// The lines it leaves, where they are kept.
    pub access_log: Option<Arc<AccessLog>>,
    /// The spans it sends, where there is a collector.
    pub spans: Option<Arc<SpanExporter>>,
    /// Who is connected.
    pub admin_connections: Arc<AdminConnections>,
    /// Backends whose first check has not ended.
    pub waiting: Arc<AtomicUsize>,
    /// What asking engines for their metrics costs.
    pub scraping: Arc<ScrapeBudget>,
    /// Set once the process was told to stop.
    pub stopping: Arc<AtomicBool>,
    /// What the process can be asked to do.
    pub commands: CommandSender,
}

/// What a handler is given of a request.
struct Call<'a> {
    generation: &'a Generation,
    query: &'a str,
    /// What stands in the path for `{name}`.
    name: &'a str,
    body: &'a [u8],
}

/// What an endpoint is asked with.
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
    /// Its path, and other spellings of it.
    paths: &'static [&'static str],
    access: Access,
    about: &'static str,
    handle: Handler,
}

/// An answer that is waited for.
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

static ENDPOINTS: [Endpoint; 16] = [
    get(&["/"], index, "this list"),
    page(get(&["/dashboard"], dashboard::page, "the fleet, live, for browsers")),
    get(&["/metrics"], metrics::page, "Prometheus metrics"),
    open(get(&["/health/live", "/livez", "/live"], health::live, "200 while the process runs")),
    open(get(
        &["/health/ready", "/readyz", "/ready"],
        health::ready,
        "200 once every backend has been checked, 503 before and while stopping",
    )),
    open(get(&["/health"], health::overview, "how many backends are healthy")),
    get(&["/version"], health::version, "the version of this penstock"),
    get(
        &["/fleet"],
        fleet::dump,
        "every backend with its models, load and health; input of explain",
    ),
    get(
        &["/decisions"],
        decisions::latest,
        "the last decisions, newest first; ?n= how many; ?capture=true all they read, from now on for a minute",
    ),
    get(&["/shadow"], shadow::report, "what `routing.shadow` would have done, and found cached"),
    post(
        &["/explain"],
        decisions::explain,
        r#"a dry run of {"path", "body" or "body_b64", "headers"?}: who would take it, and why"#,
    ),
    get(&["/config"], fleet::config, "the configuration in force, secrets masked"),
    post(&["/backends/{name}/drain"], fleet::drain, "give a backend no new requests"),
    post(&["/backends/{name}/resume"], fleet::resume, "give it requests again"),
    command(
        &["/upgrade"],
        lifecycle::upgrade,
        "start the program anew and let it take over; this process ends after its last request",
    ),
    command(
        &["/reload"],
        lifecycle::reload,
        "load the configuration again; a faulty one is refused",
    ),
];

impl Admin {
    /// The application behind the admin port's listener.
    pub fn into_app(self) -> impl ServerApp + Send + Sync + 'static {
        let (proxy, admin_connections) =
            (Arc::clone(&self.proxy), Arc::clone(&self.admin_connections));
        ConnectionLimit::new(HttpServer::new_app(self), proxy, admin_connections)
    }

    async fn answer(&self, session: &mut ServerSession) -> Result<AdminResponse, Refusal> {
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
        // A body that no endpoint has asked for is not waited for for long.
        let generation = self.proxy.generation();
        session.set_total_drain_timeout(Some(generation.config.admin.header_timeout));
        drop(generation);
        let answer = self.answer(session).await.unwrap_or_else(|refusal| {
            // What it sent and nobody read must not be taken for the next request.
            session.set_keepalive(None);
            refusal.to_response()
        });
        answer.into_response(session.req_header().method == Method::HEAD)
    }
}

/// The endpoints a path belongs to, with what stands in it for `{name}`.
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
    for endpoint in &ENDPOINTS {
        let path = endpoint.paths.first().copied().unwrap_or_default();
        let line = format!("{:<5}{path:<25}{}\n", endpoint.verb.name(), endpoint.about);
        text.push_str(&line);
    }
    Ok(AdminResponse::text(text))
}

#[cfg(test)]
mod tests;
