//! Looks at a backend the way a doctor does: everything that traffic will rely on, asked once.

use std::time::Duration;

use serde_json::Value;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

use super::client::{DiscoveryClient, DiscoveryError, Question};
use super::engines::{check_path, facts, families, slots_path};
use super::metrics::read_slots;
use super::{dns, models};
use crate::clock::now;
use crate::config::{Engine, ModelEntry};
use crate::fleet::Backend;

/// How long an answer may stay silent before it counts as whole.
const SETTLE: Duration = Duration::from_millis(500);
/// The most bytes of a raw answer that are looked at.
const HEAD_LIMIT: usize = 16 * 1024;

/// What was found.
#[derive(Debug)]
pub struct Examination {
    /// Whether the backend's name leads to an address.
    pub resolves: bool,
    /// What the health check would say: how long a good answer took.
    pub check: Result<Duration, DiscoveryError>,
    /// The engine, as configured or as it says of itself.
    pub engine: Engine,
    /// Its version, where it tells.
    pub version: Option<String>,
    /// The models it lists.
    pub models: Result<Vec<ModelEntry>, DiscoveryError>,
    /// What its metrics page is short of; `None` for engines that have none we read.
    pub metrics: Option<MetricsPage>,
    /// What it does with idle connections.
    pub keep_alive: KeepAlive,
    /// Its clock in seconds since 1970, where it tells.
    pub clock: Option<u64>,
}

/// An engine's metrics page.
#[derive(Debug)]
pub struct MetricsPage {
    /// The families that are missing, or why there is no page.
    pub missing: Result<Vec<&'static str>, DiscoveryError>,
    /// The page that is read in its place, where there is none.
    pub stand_in: Option<&'static str>,
    /// How to make the engine show them.
    pub remedy: &'static str,
}

/// What a backend does with a connection nobody uses.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum KeepAlive {
    /// Closes it behind every answer.
    NotKept,
    /// Closes it after so long.
    Closes(Duration),
    /// Had not closed it after so long.
    Stays(Duration),
    /// Nobody knows: TLS, or no answer.
    Unknown,
}

impl DiscoveryClient {
    /// Examines a backend. An idle connection is watched for `watch`, which takes as long.
    pub async fn examine(&self, backend: &Backend, watch: Duration) -> Examination {
        let resolves = dns::resolve(backend).await;
        let timeout = backend.config.health.timeout;
        let path = backend.config.health.path.as_deref();
        let check = self.check(backend, path.unwrap_or_else(|| check_path(backend.config.engine)));
        let check = check.await;
        let models = models::discover(self, backend, timeout).await;
        let engine = match backend.config.engine {
            Engine::Auto => self.identify(backend).await,
            known => known,
        };
        let facts = facts(engine);
        let version = match facts.version {
            Some((path, at)) => self.json(backend, path).await.ok().and_then(|told| {
                told.pointer(at).and_then(Value::as_str).map(|text| text.chars().take(40).collect())
            }),
            None => None,
        };
        let metrics = self.metrics(backend, engine).await;
        let (keep_alive, clock) =
            watch_idle(backend, watch).await.unwrap_or((KeepAlive::Unknown, None));
        Examination { resolves, check, engine, version, models, metrics, keep_alive, clock }
    }

    async fn check(&self, backend: &Backend, path: &str) -> Result<Duration, DiscoveryError> {
        let started = now();
        let (status, _body) = self.get(backend, path).await?;
        match status {
            200..=299 => Ok(now().since(started)),
            _ => Err(DiscoveryError::Status { path: path.to_owned(), status }),
        }
    }

    async fn get(
        &self,
        backend: &Backend,
        path: &str,
    ) -> Result<(u16, bytes::Bytes), DiscoveryError> {
        let timeout = backend.config.health.timeout;
        self.ask(backend, Question { path, body: None, timeout }).await
    }

    async fn json(&self, backend: &Backend, path: &str) -> Result<Value, DiscoveryError> {
        let (status, body) = self.get(backend, path).await?;
        if status != 200 {
            return Err(DiscoveryError::Status { path: path.to_owned(), status });
        }
        let not_json = |_| DiscoveryError::NotJson { path: path.to_owned() };
        serde_json::from_slice(&body).map_err(not_json)
    }

    /// Which engine it is, by what it says of itself.
    async fn identify(&self, backend: &Backend) -> Engine {
        let list = self.json(backend, "/v1/models").await.ok();
        let owner = list.as_ref().and_then(|list| list.pointer("/data/0/owned_by")?.as_str());
        match owner {
            Some("vllm") => Engine::Vllm,
            Some("sglang") => Engine::Sglang,
            Some("llamacpp") => Engine::LlamaCpp,
            Some(_) | None if self.json(backend, "/api/version").await.is_ok() => Engine::Ollama,
            Some(_) | None => Engine::Auto,
        }
    }

    /// What its metrics page is short of; `None` where there is none that we read, or it is not to be
    /// asked, or on another port than the one that is examined.
    async fn metrics(&self, backend: &Backend, engine: Engine) -> Option<MetricsPage> {
        let telemetry = &backend.config.telemetry;
        let families = families(engine);
        if families.is_empty() || !telemetry.enabled || telemetry.port.is_some() {
            return None;
        }
        let path = telemetry.path.as_deref();
        let missing = self.missing_metrics(backend, path.unwrap_or("/metrics"), &families).await;
        let stand_in = match (&missing, path, slots_path(engine)) {
            (Err(DiscoveryError::Status { .. }), None, Some(slots)) => {
                let page = self.get(backend, slots).await.ok();
                let page = page.filter(|(status, page)| *status == 200 && tells_slots(page));
                page.map(|_| slots)
            }
            _ => None,
        };
        Some(MetricsPage { missing, stand_in, remedy: facts(engine).metrics_remedy })
    }

    async fn missing_metrics(
        &self,
        backend: &Backend,
        path: &str,
        families: &[Vec<&'static str>],
    ) -> Result<Vec<&'static str>, DiscoveryError> {
        let (status, body) = self.get(backend, path).await?;
        if status != 200 {
            return Err(DiscoveryError::Status { path: path.to_owned(), status });
        }
        let page = String::from_utf8_lossy(&body);
        let is_shown = |name: &&str| {
            page.lines().any(|line| {
                line.strip_prefix(*name).is_some_and(|rest| rest.starts_with(['{', ' ']))
            })
        };
        // Each family has one name per age of its engine.
        let missing = families.iter().filter(|names| !names.iter().any(is_shown));
        Ok(missing.filter_map(|names| names.first().copied()).collect())
    }
}

fn tells_slots(page: &[u8]) -> bool {
    read_slots(page).is_some()
}

/// Sends one small request and watches what becomes of the connection.
async fn watch_idle(backend: &Backend, watch: Duration) -> Option<(KeepAlive, Option<u64>)> {
    let address = backend.state.addresses.first().filter(|_| !backend.config.url.https)?;
    let timeout = backend.config.health.timeout;
    let connecting = tokio::time::timeout(timeout, TcpStream::connect(address)).await;
    let mut stream = connecting.ok()?.ok()?;
    stream.write_all(request(backend).as_bytes()).await.ok()?;
    let mut answer = Vec::new();
    let mut wait = timeout;
    while answer.len() < HEAD_LIMIT {
        match tokio::time::timeout(wait, stream.read_buf(&mut answer)).await {
            Ok(Ok(0) | Err(_)) => {
                let closes =
                    if answer.is_empty() { KeepAlive::Unknown } else { KeepAlive::NotKept };
                return Some((closes, clock_of(&answer)));
            }
            Ok(Ok(_)) => wait = SETTLE,
            Err(_silent) => break,
        }
    }
    if answer.is_empty() {
        return None;
    }
    let idle_since = now();
    let watching = async {
        while stream.read_buf(&mut Vec::with_capacity(HEAD_LIMIT)).await.is_ok_and(|read| read > 0)
        {
        }
    };
    let keep_alive = match tokio::time::timeout(watch.saturating_sub(SETTLE), watching).await {
        Ok(()) => KeepAlive::Closes(SETTLE + now().since(idle_since)),
        Err(_still_open) => KeepAlive::Stays(SETTLE + now().since(idle_since)),
    };
    Some((keep_alive, clock_of(&answer)))
}

fn request(backend: &Backend) -> String {
    let path = check_path(backend.config.engine);
    let (base, authority) = (&backend.config.url.base_path, &backend.authority);
    let key = backend.config.api_key.as_ref();
    let key = key.map(|key| format!("authorization: Bearer {}\r\n", key.reveal()));
    format!("GET {base}{path} HTTP/1.1\r\nhost: {authority}\r\n{}\r\n", key.unwrap_or_default())
}

fn clock_of(answer: &[u8]) -> Option<u64> {
    let mut fields = [httparse::EMPTY_HEADER; 64];
    let mut head = httparse::Response::new(&mut fields);
    head.parse(answer).ok()?;
    let date = head.headers.iter().find(|field| field.name.eq_ignore_ascii_case("date"))?;
    let date = httpdate::parse_http_date(std::str::from_utf8(date.value).ok()?).ok()?;
    date.duration_since(std::time::UNIX_EPOCH).ok().map(|since| since.as_secs())
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use tokio::net::TcpListener;

    use super::*;
    use crate::config::{Config, Environment};
    use crate::fleet::Fleet;

    /// A listener, and the backend that it is.
    async fn listening(rest: &str) -> (TcpListener, Backend) {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let yaml = format!("backends: [{{ url: 'http://{address}', {rest} }}]");
        let config = Config::parse(&yaml, "x", Path::new("."), &Environment::default()).unwrap();
        let backend = Fleet::new(&config).topology().backends[0].clone();
        assert!(dns::resolve(&backend).await);
        (listener, backend)
    }

    /// A backend that answers once and closes the connection after a while; with the time watched.
    async fn measure(closes_after: Duration, watch: Duration) -> Option<(KeepAlive, Option<u64>)> {
        let (listener, backend) = listening("engine: vllm").await;
        tokio::spawn(async move {
            let (mut stream, _) = listener.accept().await.unwrap();
            let mut request = Vec::new();
            while !request.ends_with(b"\r\n\r\n") {
                stream.read_buf(&mut request).await.unwrap();
            }
            assert!(request.starts_with(b"GET /health HTTP/1.1\r\n"));
            let answer = b"HTTP/1.1 200 OK\r\ndate: Fri, 20 Nov 2026 19:53:26 GMT\r\n\
                           content-length: 2\r\n\r\nok";
            stream.write_all(answer).await.unwrap();
            tokio::time::sleep(closes_after).await;
        });
        watch_idle(&backend, watch).await
    }

    #[tokio::test]
    async fn the_end_of_an_idle_connection_is_measured() {
        let long = Duration::from_secs(10);
        let at_once = measure(Duration::ZERO, long).await;
        assert_eq!(at_once, Some((KeepAlive::NotKept, Some(1_795_204_406))));
        let after = Duration::from_millis(1500);
        let Some((KeepAlive::Closes(measured), _)) = measure(after, long).await else {
            panic!("it closes")
        };
        assert!((after..Duration::from_secs(9)).contains(&(measured + SETTLE)), "{measured:?}");
        let watched = measure(long, Duration::from_millis(800)).await;
        assert!(matches!(watched, Some((KeepAlive::Stays(_), _))), "{watched:?}");
    }

    /// What is found of the metrics of a backend with these pages; any other is a 404.
    async fn metrics_of(
        engine: Engine,
        rest: &str,
        pages: &'static [(&str, &str)],
    ) -> Option<MetricsPage> {
        let (listener, backend) = listening(rest).await;
        let serving = tokio::spawn(async move {
            loop {
                let (mut stream, _) = listener.accept().await.unwrap();
                let mut request = Vec::new();
                while !request.ends_with(b"\r\n\r\n") {
                    stream.read_buf(&mut request).await.unwrap();
                }
                let request = String::from_utf8(request).unwrap();
                let is_asked =
                    |path: &str| request.starts_with(&format!("GET {path} HTTP/1.1\r\n"));
                let page = pages.iter().find(|(path, _)| is_asked(path));
                let (status, page) = page.map_or(("404 No", ""), |(_, page)| ("200 OK", *page));
                let length = page.len();
                let answer = format!(
                    "HTTP/1.1 {status}\r\nconnection: close\r\ncontent-length: {length}\r\n\r\n{page}"
                );
                stream.write_all(answer.as_bytes()).await.unwrap();
            }
        });
        let found = DiscoveryClient::default().metrics(&backend, engine).await;
        serving.abort();
        found
    }

    #[tokio::test]
    async fn metrics_are_looked_for_where_they_are_read() {
        let slots: &[_] = &[("/slots", "[{\"is_processing\": true}]")];
        let found = metrics_of(Engine::LlamaCpp, "", slots).await.unwrap();
        assert!(
            matches!(found.missing, Err(DiscoveryError::Status { status: 404, .. })),
            "{found:?}"
        );
        assert_eq!(found.stand_in, Some("/slots"), "it is started without --metrics");
        let nonsense: &[_] = &[("/slots", "{}")];
        assert_eq!(metrics_of(Engine::LlamaCpp, "", nonsense).await.unwrap().stand_in, None);
        assert_eq!(metrics_of(Engine::Vllm, "", slots).await.unwrap().stand_in, None);
        let page = "llamacpp:requests_processing 1\nllamacpp:requests_deferred 0\n";
        let elsewhere: &'static [_] = Box::leak(Box::new([("/m", page)]));
        let found =
            metrics_of(Engine::LlamaCpp, "telemetry: { path: /m }", elsewhere).await.unwrap();
        assert_eq!(found.missing.unwrap(), Vec::<&str>::new());
        let off = metrics_of(Engine::LlamaCpp, "telemetry: { enabled: false }", slots).await;
        assert!(off.is_none(), "nobody asks it");
    }

    #[test]
    fn clocks_are_read_from_heads() {
        let head = b"HTTP/1.1 200 OK\r\nDate: Fri, 20 Nov 2026 19:53:26 GMT\r\n\r\nbody";
        assert_eq!(clock_of(head), Some(1_795_204_406));
        assert_eq!(clock_of(b"HTTP/1.1 200 OK\r\n\r\n"), None);
        assert_eq!(clock_of(b"nonsense"), None);
    }
}
