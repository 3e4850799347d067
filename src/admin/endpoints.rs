//! The table of the admin port's endpoints: it drives dispatch, access control and the list at `/`.

use http::Method;

use super::access_control::Access;
use super::response::{AdminResponse, PendingResponse, Refusal};
use super::{
    Admin, Call, dashboard, decisions, fleet, health, ledger, lifecycle, metrics, path, quote,
    shadow,
};
use crate::api::UsageCall;

/// The method of an endpoint.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Verb {
    /// Also HEAD.
    Get,
    Post,
}

impl Verb {
    pub(super) fn of(method: &Method) -> Option<Self> {
        match *method {
            Method::GET | Method::HEAD => Some(Self::Get),
            Method::POST => Some(Self::Post),
            _ => None,
        }
    }

    pub(super) fn name(self) -> &'static str {
        match self {
            Self::Get => "GET",
            Self::Post => "POST",
        }
    }
}

/// One row of the table of endpoints.
pub(super) struct Endpoint {
    pub(super) verb: Verb,
    /// Its path, and aliases of it.
    pub(super) paths: &'static [&'static str],
    pub(super) access: Access,
    pub(super) about: &'static str,
    pub(super) handle: Handler,
}

#[derive(Clone, Copy)]
pub(super) enum Handler {
    Sync(fn(&Admin, &Call<'_>) -> Result<AdminResponse, Refusal>),
    Async(fn(&Admin, &Call<'_>) -> PendingResponse),
    Usage(UsageCall),
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
    handle: fn(&Admin, &Call<'_>) -> PendingResponse,
    about: &'static str,
) -> Endpoint {
    Endpoint { verb: Verb::Post, ..query(paths, handle, about) }
}

const fn query(
    paths: &'static [&'static str],
    handle: fn(&Admin, &Call<'_>) -> PendingResponse,
    about: &'static str,
) -> Endpoint {
    let handle = Handler::Async(handle);
    Endpoint { verb: Verb::Get, paths, access: Access::Token, about, handle }
}

const fn usage(call: UsageCall, paths: &'static [&'static str], about: &'static str) -> Endpoint {
    let verb = if call.is_post() { Verb::Post } else { Verb::Get };
    Endpoint { verb, paths, access: Access::Token, about, handle: Handler::Usage(call) }
}

const fn open(endpoint: Endpoint) -> Endpoint {
    Endpoint { access: Access::Open, ..endpoint }
}

const fn page(endpoint: Endpoint) -> Endpoint {
    Endpoint { access: Access::Page, ..endpoint }
}

pub(super) static ENDPOINTS: &[Endpoint] = &[
    get(&["/"], index, "this list"),
    page(get(&["/dashboard"], dashboard::page, "the fleet, live, for browsers")),
    get(&["/metrics"], metrics::page, "Prometheus metrics"),
    open(get(&["/health/live", "/livez", "/live"], health::live, "200 while the process runs")),
    open(get(
        &["/health/ready", "/readyz", "/ready"],
        health::ready,
        "200 once every backend has been checked, 503 before and while stopping",
    )),
    open(get(&["/health"], health::overview, "the number of healthy backends")),
    get(&["/version"], health::version, "the version of this process"),
    get(
        &["/fleet"],
        fleet::dump,
        "every backend with its models, load and health; input of `penstock explain`",
    ),
    get(
        &["/decisions"],
        decisions::latest,
        "the latest decisions, newest first; ?n= limits their number; ?capture=true records all inputs for the next minute",
    ),
    get(&["/shadow"], shadow::report, "live decisions compared with those of `routing.shadow`"),
    post(
        &["/explain"],
        decisions::explain,
        r#"a dry run of {"path", "body" or "body_b64", "headers"?}: the decision and its reasons"#,
    ),
    post(
        &["/quote"],
        quote::predicted,
        r#"{"model"?, "tokens", "max_tokens"?, "ttft_ms"?, "tpot_ms"?}: where a request would meet these objectives now, or when"#,
    ),
    query(
        &["/usage"],
        ledger::report,
        "tokens of the ledger, the largest sums first: ?by=key,model,backend,day, ?since= and ?until= a day or 7d, ?n=",
    ),
    usage(
        UsageCall::Usage,
        &["/api/usage"],
        "requests in flight and tokens per backend (by its URL) and model",
    ),
    usage(
        UsageCall::Stream,
        &["/api/usage-stream"],
        "the same as server-sent events: the state at once, then whenever it changes",
    ),
    usage(
        UsageCall::TokenCounts,
        &["/api/token_counts"],
        "input and output tokens per backend and model, those not yet written among them",
    ),
    usage(
        UsageCall::Stats,
        &["/api/stats"],
        r#"the tokens of a model, {"model"} or ?model=, by minute and backend, newest first"#,
    ),
    usage(UsageCall::Config, &["/api/config"], "the backends and their health"),
    usage(
        UsageCall::Days,
        &["/api/aggregate_time_series_days"],
        r#"{"days"?, "trim_old"?}: the daily sums that are older; trim_old deletes their minutes"#,
    ),
    usage(
        UsageCall::CacheStats,
        &["/api/cache/stats"],
        "for clients of the NOMYO Router: penstock caches no responses",
    ),
    usage(UsageCall::InvalidateCache, &["/api/cache/invalidate"], "the same"),
    get(&["/config"], fleet::config, "the configuration in force, secrets masked"),
    post(&["/backends/{name}/drain"], fleet::drain, "stop sending new requests to a backend"),
    post(&["/backends/{name}/resume"], fleet::resume, "send requests to it again"),
    command(
        &["/upgrade"],
        lifecycle::upgrade,
        "graceful upgrade: start a new process that takes over the listeners; this one exits after its last request",
    ),
    command(
        &["/reload"],
        lifecycle::reload,
        "reload the configuration; an invalid one is refused; ?simulate=15m simulates it with the recent traffic first",
    ),
];

/// The endpoints of a path, with the segment that matches `{name}`.
pub(super) fn find(path: &str) -> Vec<(&'static Endpoint, String)> {
    let rows = ENDPOINTS.iter().flat_map(|row| row.paths.iter().map(move |known| (row, *known)));
    rows.filter_map(|(row, known)| Some((row, path::capture(known, path)?))).collect()
}

fn index(_admin: &Admin, _call: &Call<'_>) -> Result<AdminResponse, Refusal> {
    let mut text = format!("penstock {}\n\n", env!("CARGO_PKG_VERSION"));
    for endpoint in ENDPOINTS {
        for path in endpoint.paths.iter().take(1) {
            let line = format!("{:<5}{path:<33} {}\n", endpoint.verb.name(), endpoint.about);
            text.push_str(&line);
        }
    }
    Ok(AdminResponse::text(text))
}
