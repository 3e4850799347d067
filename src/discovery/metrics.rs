//! Engine metrics: one scraper task per backend reads the engine's metrics page and publishes queue
//! length, running requests and KV cache use as [`penstock_core::fleet::Telemetry`].

mod engine_metrics;
mod prometheus_text;
mod scraper;

pub use engine_metrics::{EnginePage, PageReader, read_props, read_slots};
pub(crate) use prometheus_text::samples;
pub use scraper::{ScrapeBudget, Scraper};
