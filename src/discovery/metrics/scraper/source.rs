//! The pages where an engine may report its load.

use penstock_config::BackendConfig;

use super::super::engine_metrics::{EnginePage, PageReader, read_slots};
use crate::discovery::engines::facts;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum PageFormat {
    Prometheus,
    /// llama.cpp's list of slots.
    Slots,
}

/// A page that may report an engine's load.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct ScrapeSource {
    pub(super) path: String,
    format: PageFormat,
}

impl ScrapeSource {
    fn new(path: &str, format: PageFormat) -> Self {
        Self { path: path.to_owned(), format }
    }

    /// Reads the page; `None` if it has nothing about an engine's load.
    pub(super) fn read(&self, reader: &PageReader, page: &[u8]) -> Option<EnginePage> {
        match self.format {
            PageFormat::Prometheus => reader.read(page),
            PageFormat::Slots => read_slots(page),
        }
    }
}

/// Returns the pages to try for a backend, the likeliest first; none if it is not to be scraped.
pub(super) fn sources(config: &BackendConfig) -> Vec<ScrapeSource> {
    if !config.telemetry.enabled {
        return Vec::new();
    }
    if let Some(path) = &config.telemetry.path {
        return vec![ScrapeSource::new(path, PageFormat::Prometheus)];
    }
    let facts = facts(config.engine);
    let pages =
        facts.metrics_paths.iter().map(|path| ScrapeSource::new(path, PageFormat::Prometheus));
    pages.chain(facts.slots_path.map(|path| ScrapeSource::new(path, PageFormat::Slots))).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use penstock_api::Engine;

    #[test]
    fn every_engine_is_scraped_where_it_reports() {
        let paths = |engine, path: Option<&str>| {
            let mut config = BackendConfig { engine, ..BackendConfig::default() };
            config.telemetry.path = path.map(str::to_owned);
            sources(&config).into_iter().map(|source| source.path).collect::<Vec<_>>()
        };
        assert_eq!(paths(Engine::Vllm, None), ["/metrics"]);
        assert_eq!(paths(Engine::TrtLlm, None), ["/prometheus/metrics", "/metrics"]);
        assert_eq!(paths(Engine::LlamaCpp, None), ["/metrics", "/slots"]);
        assert_eq!(paths(Engine::Auto, None), ["/metrics", "/slots"]);
        assert_eq!(paths(Engine::Auto, Some("/m")), ["/m"]);
        assert!(paths(Engine::Ollama, None).is_empty(), "it has none");
        assert_eq!(paths(Engine::Ollama, Some("/m")), ["/m"]);
        let mut off = BackendConfig { engine: Engine::Vllm, ..BackendConfig::default() };
        off.telemetry.enabled = false;
        assert!(sources(&off).is_empty());
    }
}
