//! The JSON of live usage, in the format of the NOMYO Router, where a backend is named by its URL.

use std::collections::BTreeMap;

use penstock_api::{canonical_name, query_value};
use penstock_config::Config;
use penstock_core::fleet::{Backend, Health, Serving};
use penstock_core::routing::Generation;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use super::UsageError;
use crate::observe::ledger::{DailyGroups, Point, TokenSums, TokenTotals};

/// The statistics of a cache: empty, since penstock stores no responses.
pub(super) const CACHE_STATS: &[u8] =
    br#"{"enabled":false,"hits":0,"misses":0,"entries":0,"message":"penstock caches no responses"}"#;
/// The response to an invalidation of the cache.
pub(super) const CACHE_INVALIDATED: &[u8] =
    br#"{"status":"ok","invalidated":0,"message":"penstock caches no responses"}"#;
/// The number of days of `/api/aggregate_time_series_days` without a body.
const DEFAULT_DAYS: u32 = 30;

type PerBackend<'a, T> = BTreeMap<String, BTreeMap<&'a str, T>>;

#[derive(Serialize)]
struct UsagePage<'a> {
    usage_counts: PerBackend<'a, u32>,
    token_usage_counts: PerBackend<'a, u64>,
}

/// Requests in flight and tokens per backend and model; values of 0 are absent.
pub(super) fn usage(generation: &Generation, totals: &TokenTotals) -> Vec<u8> {
    let fleet = generation.fleet.topology();
    let mut usage_counts = PerBackend::new();
    for row in fleet.models().iter().flat_map(|model| model.serving.iter()) {
        let in_flight = in_flight(row);
        if let Some(backend) =
            fleet.backends.get(usize::from(row.backend)).filter(|_| in_flight > 0)
        {
            let counts = usage_counts.entry(backend.config.url.to_string()).or_default();
            *counts.entry(&*row.model).or_default() += in_flight;
        }
    }
    // Tokens stay in the page when a backend or model is gone: they were used.
    let mut token_usage_counts = PerBackend::new();
    for (pair, tokens) in totals {
        let counts = token_usage_counts.entry(pair.endpoint.to_string()).or_default();
        counts.insert(&*pair.model, tokens.total());
    }
    to_bytes(&UsagePage { usage_counts, token_usage_counts })
}

fn in_flight(row: &Serving) -> u32 {
    row.model_state.load.in_flight()
}

pub(super) fn token_counts(totals: &TokenTotals) -> Vec<u8> {
    let row = |(pair, tokens): (&crate::observe::ledger::Pair, &TokenSums)| {
        json!({
            "endpoint": &*pair.endpoint,
            "model": &*pair.model,
            "input_tokens": tokens.input,
            "output_tokens": tokens.output,
            "total_tokens": tokens.total(),
        })
    };
    let breakdown: Vec<Value> = totals.iter().map(row).collect();
    let total: u64 = totals.values().map(|tokens| tokens.total()).sum();
    to_bytes(&json!({"total_tokens": total, "breakdown": breakdown}))
}

#[derive(Serialize)]
struct StatsPage<'a> {
    model: &'a str,
    input_tokens: u64,
    output_tokens: u64,
    total_tokens: u64,
    time_series: Vec<PointPage<'a>>,
    endpoint_distribution: BTreeMap<&'a str, u64>,
}

#[derive(Serialize)]
struct PointPage<'a> {
    endpoint: &'a str,
    input_tokens: u64,
    output_tokens: u64,
    total_tokens: u64,
    timestamp: u64,
}

/// `/api/stats`: the totals of a model, and its tokens over time, newest first.
pub(super) fn stats(model: &str, totals: &TokenTotals, series: &[Point]) -> Vec<u8> {
    let own: Vec<_> = totals.iter().filter(|(pair, _)| &*pair.model == model).collect();
    let sum = |part: fn(&TokenSums) -> u64| own.iter().map(|(_, tokens)| part(tokens)).sum();
    to_bytes(&StatsPage {
        model,
        input_tokens: sum(|tokens| tokens.input),
        output_tokens: sum(|tokens| tokens.output),
        total_tokens: sum(|tokens| tokens.total()),
        time_series: series.iter().map(PointPage::of).collect(),
        endpoint_distribution: own
            .iter()
            .map(|(pair, tokens)| (&*pair.endpoint, tokens.total()))
            .collect(),
    })
}

impl<'a> PointPage<'a> {
    fn of(point: &'a Point) -> Self {
        Self {
            endpoint: &point.endpoint,
            input_tokens: point.tokens.input,
            output_tokens: point.tokens.output,
            total_tokens: point.tokens.total(),
            timestamp: point.timestamp,
        }
    }
}

/// `/api/config`: the backends and their health, by the latest health checks.
pub(super) fn config(generation: &Generation) -> Vec<u8> {
    let fleet = generation.fleet.topology();
    let is_llamacpp = |one: &&Backend| one.state.engine(one.config.engine).row().is_llama_server;
    let (llamacpp, others): (Vec<_>, Vec<_>) = fleet.backends.iter().partition(is_llamacpp);
    let rows = |backends: Vec<&Backend>| -> Vec<Value> {
        let row = |backend: &Backend| {
            let mut row = status(backend);
            if let Value::Object(fields) = &mut row {
                fields.insert("url".to_owned(), json!(backend.config.url.to_string()));
            }
            row
        };
        backends.into_iter().map(row).collect()
    };
    to_bytes(&json!({
        "endpoints": rows(others),
        "llama_server_endpoints": rows(llamacpp),
        "require_router_api_key": requires_key(&generation.config),
    }))
}

fn requires_key(config: &Config) -> bool {
    !config.auth.is_open()
}

/// `/health`: the state of each backend by its URL, and whether any of them is healthy.
pub(super) fn health(generation: &Generation, has_details: bool) -> (bool, Vec<u8>) {
    let fleet = generation.fleet.topology();
    let is_ok = fleet.backends.iter().any(is_healthy);
    let mut page = json!({"status": if is_ok { "ok" } else { "error" }});
    if let (true, Value::Object(fields)) = (has_details, &mut page) {
        let rows = fleet.backends.iter().map(|one| (one.config.url.to_string(), status(one)));
        fields.insert("endpoints".to_owned(), Value::Object(rows.collect()));
    }
    (is_ok, to_bytes(&page))
}

/// Returns whether a backend is healthy; a drained one still responds, so it is.
fn is_healthy(backend: &Backend) -> bool {
    backend.state.health.status() == Health::Healthy
}

fn status(backend: &Backend) -> Value {
    if is_healthy(backend) {
        // NOMYO reports this for engines whose version it does not query.
        return json!({"status": "ok", "version": "latest"});
    }
    json!({"status": "error", "detail": backend.state.health.status().name()})
}

#[derive(Deserialize)]
struct StatsBody {
    model: Option<String>,
}

/// Returns the model of a request for `/api/stats`: from the body, or from the query.
pub(super) fn requested_model(query: &str, body: &[u8]) -> Result<String, UsageError> {
    const MESSAGE: &str = "name a model: {\"model\": \"…\"} in the body, or ?model=…";
    let in_body = if body.trim_ascii().is_empty() {
        None
    } else {
        let body: StatsBody = serde_json::from_slice(body)
            .map_err(|_not_json| UsageError::Invalid { message: MESSAGE })?;
        body.model
    };
    let model = in_body.or_else(|| query_value(query, "model"));
    model.filter(|model| !model.is_empty()).ok_or(UsageError::Invalid { message: MESSAGE })
}

/// Returns the model among `known` that `asked` names: exactly, or as Ollama compares names.
pub(super) fn find_model<'a>(
    known: impl Iterator<Item = &'a str> + Clone,
    asked: &str,
) -> Option<&'a str> {
    let wanted = canonical_name(asked);
    known
        .clone()
        .find(|name| *name == asked)
        .or_else(|| known.clone().find(|name| canonical_name(name) == wanted))
}

#[derive(Deserialize)]
struct DaysBody {
    days: Option<u32>,
    trim_old: Option<bool>,
}

/// Returns the number of days of a request for `/api/aggregate_time_series_days`, and whether to
/// delete the rows by minute.
pub(super) fn requested_days(body: &[u8]) -> Result<(u32, bool), UsageError> {
    const MESSAGE: &str = "send {\"days\": 30, \"trim_old\": false}, with 1 day or more";
    if body.trim_ascii().is_empty() {
        return Ok((DEFAULT_DAYS, false));
    }
    let body: DaysBody = serde_json::from_slice(body)
        .map_err(|_not_json| UsageError::Invalid { message: MESSAGE })?;
    match body.days.unwrap_or(DEFAULT_DAYS) {
        0 => Err(UsageError::Invalid { message: MESSAGE }),
        days => Ok((days, body.trim_old.unwrap_or(false))),
    }
}

/// `/api/aggregate_time_series_days`
pub(super) fn days(days: u32, trimmed: bool, found: DailyGroups) -> Vec<u8> {
    to_bytes(&json!({
        "status": "ok",
        "days": days,
        "trim_old": trimmed,
        "aggregated_groups": found.groups,
        "trimmed_rows": found.deleted,
    }))
}

/// Serialization fails only for maps with non-string keys, and there are none.
fn to_bytes(page: &impl Serialize) -> Vec<u8> {
    let bytes = serde_json::to_vec(page);
    debug_assert!(bytes.is_ok(), "the page has string keys only");
    bytes.unwrap_or_default()
}
