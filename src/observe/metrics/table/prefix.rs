//! Metrics of the prefix index.

use super::super::Scrape;
use super::super::row::{MetricRow, gauge};
use super::super::samples::{Samples, from_size, one, per_backend, to_sample};
use super::BACKEND;

pub(super) const ROWS: &[MetricRow] = &[
    gauge(
        "penstock_prefix_index_bytes",
        &[],
        |_, scrape| one(from_size(scrape.generation.fleet.prefix_memory().used())),
        "memory of the prefix indexes of all models",
    ),
    gauge(
        "penstock_max_prefix_index_bytes",
        &[],
        |_, scrape| one(from_size(scrape.generation.fleet.prefix_memory().limit())),
        "limit of penstock_prefix_index_bytes: `limits.prefix_memory`",
    ),
    gauge(
        "penstock_backend_prefix_blocks",
        BACKEND,
        |_, scrape| prefix_blocks(scrape),
        "prompt blocks that the prefix index expects in the backend's cache",
    ),
];

fn prefix_blocks(scrape: &Scrape<'_>) -> Samples {
    let models = scrape.fleet.models();
    per_backend(scrape, |backend| {
        let rows =
            models.iter().flat_map(|model| model.serving.iter().map(move |row| (model, row)));
        let own = rows.filter(|(_, row)| row.id == backend.state.id);
        let held: u64 = own.map(|(model, row)| u64::from(model.prefixes.held(row.slot))).sum();
        Some(to_sample(held))
    })
}
