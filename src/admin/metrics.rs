//! The metrics page that Prometheus scrapes.

use penstock_clock::now;

use super::response::{AdminResponse, Refusal};
use super::{Admin, Call};
use crate::observe::metrics::Scrape;

/// `/metrics`
pub(super) fn page(admin: &Admin, call: &Call<'_>) -> Result<AdminResponse, Refusal> {
    let page = admin.metrics.render(&Scrape {
        now: now(),
        generation: call.generation,
        fleet: &call.generation.fleet.topology(),
        proxy: &admin.proxy,
        scraping: &admin.scraping,
        access_log: admin.access_log.as_deref(),
        spans: admin.spans.as_deref(),
        usage: Some(&admin.usage),
    });
    Ok(AdminResponse::of("text/plain; version=0.0.4; charset=utf-8", page))
}
