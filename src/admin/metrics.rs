//! The page Prometheus scrapes.

use super::process::read_process;
use super::response::{AdminResponse, Refusal};
use super::{Admin, Call};
use crate::clock::now;
use crate::observe::metrics::Scrape;

/// `/metrics`
pub(super) fn page(admin: &Admin, call: &Call<'_>) -> Result<AdminResponse, Refusal> {
    let proxy = &admin.proxy;
    let scrape = Scrape {
        now: now(),
        fleet: &call.generation.fleet.topology(),
        in_flight: proxy.in_flight(),
        held_body_bytes: proxy.held_bytes(),
        prefix_memory: call.generation.fleet.prefix_memory(),
        connections: proxy.clients().connections(),
        admin_connections: admin.admin_connections.open(),
        max_admin_connections: call.generation.config.admin.connections,
        admin_refused: admin.admin_connections.refused(),
        admin_late: admin.admin_connections.late(),
        limits: &call.generation.config.limits,
        idle_connections: &|id| proxy.idle_connections(id),
        close_reasons: proxy.clients().close_reasons(),
        certificates: &proxy.clients().certificates().collect::<Vec<_>>(),
        certificate_failures: proxy.clients().certificate_failures(),
        process: read_process(),
        scraping: &admin.scraping,
        access_log: admin.access_log.as_ref().map(|log| log.deliveries()).unwrap_or_default(),
        shadow: call.generation.shadow.as_ref().map(|shadow| shadow.figures()),
        spans: admin.spans.as_ref().map(|spans| spans.deliveries()).unwrap_or_default(),
    };
    let page = admin.metrics.render(&scrape);
    Ok(AdminResponse::of("text/plain; version=0.0.4; charset=utf-8", page))
}
