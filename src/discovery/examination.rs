//! Examines a backend for `penstock doctor`: everything that traffic relies on, queried once.

use std::time::Duration;

use penstock_api::Engine;
use penstock_clock::now;
use penstock_config::DiscoveryConfig;
use penstock_core::fleet::Backend;

use super::check_page::{CheckPage, Remark};
use super::client::{DiscoveryClient, DiscoveryError, SmallRequest};
use super::engines::{EngineFacts, facts};
use super::idle_connection::{IdleHandling, watch_idle};
use super::listed_models::{ListedModels, text};
use super::metrics::read_slots;
use super::ollama_models::ShownModels;
use super::queries::Queries;
use super::{dns, models, ollama_models};

/// The findings about one backend.
#[derive(Debug)]
pub struct Examination {
    /// True if the backend's name resolves.
    pub resolves: bool,
    /// The duration of a health check, or the reason why it failed.
    pub check: Result<Duration, DiscoveryError>,
    /// The status of a check that passed without a success, and what it means.
    pub remark: Option<(u16, &'static str)>,
    /// The engine, configured or detected.
    pub engine: Engine,
    /// Its version, if it reports one.
    pub version: Option<String>,
    pub models: Result<ListedModels, DiscoveryError>,
    /// The state of its metrics page; `None` for engines without a page that we read.
    pub metrics: Option<MetricsPage>,
    /// Its handling of idle connections.
    pub keep_alive: IdleHandling,
    /// Its clock in seconds since 1970, if it sends a Date.
    pub clock: Option<u64>,
}

/// An engine's metrics page.
#[derive(Debug)]
pub struct MetricsPage {
    /// The missing families, or the reason why the page cannot be read.
    pub missing: Result<Vec<&'static str>, DiscoveryError>,
    /// The page that is read instead.
    pub replacement: Option<&'static str>,
    /// The change that makes the engine report them.
    pub remedy: &'static str,
}

/// Detects an Ollama without models, or with a list that shows another owner, by its version page:
/// discovery leaves it to `engine`, since others emulate that page.
async fn identify(queries: &Queries<'_>) -> Engine {
    let page = queries.get(facts(Engine::Ollama).health_path).await.unwrap_or_default();
    if text(&page, "/version").is_some() { Engine::Ollama } else { Engine::Auto }
}

impl DiscoveryClient {
    /// Examines a backend, and watches an idle connection for at most `watch`.
    pub async fn examine(
        &self,
        backend: &Backend,
        discovery: &DiscoveryConfig,
        watch: Duration,
    ) -> Examination {
        let resolves = dns::resolve(backend, &dns::Resolver::new(discovery)).await;
        let timeout = backend.config.health.timeout;
        let (check, remark) = match self.check(backend).await {
            Ok((took, remark)) => (Ok(took), remark.map(|one| (one.status, one.meaning()))),
            Err(error) => (Err(error), None),
        };
        let queries = Queries { client: self, backend, timeout };
        let models = self.list_models(&queries).await;
        let engine = match backend.state.engine(backend.config.engine) {
            Engine::Auto => identify(&queries).await,
            known => known,
        };
        let listed = models.as_ref().ok().and_then(|listed| listed.version.clone());
        let version = match listed {
            None => models::version(&queries, engine).await,
            listed => listed,
        };
        let metrics = self.metrics(backend, facts(engine)).await;
        let (keep_alive, clock) =
            watch_idle(backend, watch).await.unwrap_or((IdleHandling::Unknown, None));
        Examination { resolves, check, remark, engine, version, models, metrics, keep_alive, clock }
    }

    /// Queries its models, with as many details as it shows within the timeout.
    async fn list_models(&self, queries: &Queries<'_>) -> Result<ListedModels, DiscoveryError> {
        let Queries { backend, timeout, .. } = *queries;
        let mut shown = ShownModels::default();
        let mut listed = models::discover(self, backend, timeout, &mut shown).await?;
        ollama_models::read_details(queries, &mut shown, now().after(timeout)).await;
        shown.complete(&mut listed.models);
        Ok(listed)
    }

    async fn check(&self, backend: &Backend) -> Result<(Duration, Option<Remark>), DiscoveryError> {
        let page = CheckPage::of(&backend.config);
        let started = now();
        let (status, _body) = self.get(backend, page.path).await?;
        Ok((now().since(started), page.judge(status)?))
    }

    async fn get(
        &self,
        backend: &Backend,
        path: &str,
    ) -> Result<(u16, bytes::Bytes), DiscoveryError> {
        let timeout = backend.config.health.timeout;
        self.send(backend, SmallRequest { path, body: None, timeout }).await
    }

    /// Examines its metrics page; `None` if there is none that we read, scraping is off, or the
    /// page is on another port than the one examined.
    async fn metrics(&self, backend: &Backend, facts: &EngineFacts) -> Option<MetricsPage> {
        let telemetry = &backend.config.telemetry;
        let families = facts.reported_families();
        if families.is_empty() || !telemetry.enabled || telemetry.port.is_some() {
            return None;
        }
        let path = telemetry.path.as_deref();
        let missing = self.missing_metrics(backend, path.unwrap_or("/metrics"), &families).await;
        let replacement = match (&missing, path, facts.slots_path) {
            (Err(DiscoveryError::Status { .. }), None, Some(slots)) => {
                let page = self.get(backend, slots).await.ok();
                let page =
                    page.filter(|(status, page)| *status == 200 && read_slots(page).is_some());
                page.map(|_| slots)
            }
            _ => None,
        };
        Some(MetricsPage { missing, replacement, remedy: facts.metrics_remedy })
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
                // The whole name: longer ones may begin with it.
                line.strip_prefix(*name).is_some_and(|rest| rest.starts_with(['{', ' ']))
            })
        };
        // A family has another name in other versions of its engine; one of them is enough.
        let missing = families.iter().filter(|names| !names.iter().any(is_shown));
        Ok(missing.filter_map(|names| names.first().copied()).collect())
    }
}

#[cfg(test)]
mod tests {
    use tokio::io::{AsyncReadExt, AsyncWriteExt};

    use super::*;
    use crate::discovery::idle_connection::tests::listening;

    /// Examines the metrics of a backend with these pages; any other path is a 404.
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
                let is_path = |path: &str| request.starts_with(&format!("GET {path} HTTP/1.1\r\n"));
                let page = pages.iter().find(|(path, _)| is_path(path));
                let (status, page) = page.map_or(("404 No", ""), |(_, page)| ("200 OK", *page));
                let length = page.len();
                let response = format!(
                    "HTTP/1.1 {status}\r\nconnection: close\r\ncontent-length: {length}\r\n\r\n{page}"
                );
                stream.write_all(response.as_bytes()).await.unwrap();
            }
        });
        let found = DiscoveryClient::default().metrics(&backend, facts(engine)).await;
        serving.abort();
        found
    }

    #[tokio::test]
    async fn metrics_are_examined_where_they_are_scraped() {
        let slots: &[_] = &[("/slots", "[{\"is_processing\": true}]")];
        let found = metrics_of(Engine::LlamaCpp, "", slots).await.unwrap();
        assert!(
            matches!(found.missing, Err(DiscoveryError::Status { status: 404, .. })),
            "{found:?}"
        );
        assert_eq!(found.replacement, Some("/slots"), "it is started without --metrics");
        let nonsense: &[_] = &[("/slots", "{}")];
        assert_eq!(metrics_of(Engine::LlamaCpp, "", nonsense).await.unwrap().replacement, None);
        assert_eq!(metrics_of(Engine::Vllm, "", slots).await.unwrap().replacement, None);
        let page = "llamacpp:requests_processing 1\nllamacpp:requests_deferred 0\n";
        let elsewhere: &'static [_] = Box::leak(Box::new([("/m", page)]));
        let found =
            metrics_of(Engine::LlamaCpp, "telemetry: { path: /m }", elsewhere).await.unwrap();
        assert_eq!(found.missing.unwrap(), Vec::<&str>::new());
        let off = metrics_of(Engine::LlamaCpp, "telemetry: { enabled: false }", slots).await;
        assert!(off.is_none(), "scraping is off");
    }
}
