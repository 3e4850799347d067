//! Engine metrics: one scraper task per backend reads the engine's metrics page and publishes queue
//! length, running requests and KV cache use as [`crate::fleet::Telemetry`].

mod engine_metrics;
mod prometheus_text;
mod scraper;

pub(super) use engine_metrics::read_slots;
pub use engine_metrics::{EnginePage, PageReader};
pub(crate) use prometheus_text::samples;
pub use scraper::{ScrapeBudget, Scraper};
