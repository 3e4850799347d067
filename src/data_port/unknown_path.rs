//! The hint for a path that is not served: mistakes in base URLs are the usual cause.

use std::borrow::Cow;

use http::Method;
use penstock_config::Compat;
use penstock_core::routing::Passthrough;

use crate::data_port::target::PathTarget;

/// The maximum length of a path with such a mistake.
const MAX_PATH: usize = 200;

/// The paths of the admin port, in the order of its table; a test there compares them.
pub(crate) const ADMIN_PATHS: &[&str] = &[
    "/dashboard",
    "/metrics",
    "/health/live",
    "/livez",
    "/live",
    "/health/ready",
    "/readyz",
    "/ready",
    "/health",
    "/version",
    "/fleet",
    "/decisions",
    "/shadow",
    "/explain",
    "/quote",
    "/usage",
    "/budgets",
    "/api/usage",
    "/api/usage-stream",
    "/api/token_counts",
    "/api/stats",
    "/api/config",
    "/api/aggregate_time_series_days",
    "/api/cache/stats",
    "/api/cache/invalidate",
    "/config",
    "/backends/{name}/drain",
    "/backends/{name}/resume",
    "/keys",
    "/keys/{name}",
    "/keys/{name}/rotate",
    "/revoked_tokens",
    "/revoked_tokens/{name}",
    "/upgrade",
    "/reload",
];

/// The hint that the message about an unknown path adds; empty if there is none.
pub(crate) fn hint(path: &str, passthrough: &Passthrough, compat: Compat) -> Cow<'static, str> {
    if path.len() > MAX_PATH {
        return "".into();
    }
    let plain = without_extra_slashes(path);
    if ADMIN_PATHS.iter().any(|known| is_path(known, &plain)) {
        return "; this is a page of the admin port (`admin.listen`)".into();
    }
    let is_served = |path: &str| {
        path.len() > 1
            && PathTarget::of(&Method::POST, path, passthrough, compat) != PathTarget::Unknown
    };
    let lower = plain.to_ascii_lowercase();
    if let Some(known) = [&plain, &lower].into_iter().find(|path| is_served(path)) {
        return format!("; did you mean {}?", known.escape_default()).into();
    }
    let starts = plain.match_indices('/').map(|(at, _)| at).skip(1);
    let found = starts.filter_map(|at| plain.split_at_checked(at)).find(|(_, end)| is_served(end));
    match found {
        Some((before, end)) => {
            let (before, end) = (before.escape_default(), end.escape_default());
            format!("; did you mean {end}? Leave {before} out of the client's base URL").into()
        }
        None => "".into(),
    }
}

/// Returns whether `path` is the one that `known` describes, in which `{name}` is any segment.
fn is_path(known: &str, path: &str) -> bool {
    let (mut wanted, mut given) = (known.split('/'), path.split('/'));
    let is_alike = wanted
        .by_ref()
        .all(|wanted| given.next().is_some_and(|segment| wanted == segment || wanted == "{name}"));
    is_alike && given.next().is_none()
}

/// The path without slashes that follow another one, or end it.
fn without_extra_slashes(path: &str) -> String {
    let parts: Vec<&str> = path.split('/').filter(|part| !part.is_empty()).collect();
    format!("/{}", parts.join("/"))
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::*;

    #[test]
    fn mistakes_in_base_urls_are_named() {
        let passthrough = Passthrough::new(&BTreeMap::new());
        for (path, wanted) in [
            (
                "/v1/v1/messages",
                "; did you mean /v1/messages? Leave /v1 out of the client's base URL",
            ),
            ("/v1/chat/completions/", "; did you mean /v1/chat/completions?"),
            ("//v1/models", "; did you mean /v1/models?"),
            ("/V1/Chat/Completions", "; did you mean /v1/chat/completions?"),
            (
                "/openai/v1/chat/completions",
                "; did you mean /v1/chat/completions? Leave /openai out of the client's base URL",
            ),
            ("/v1/api/chat", "; did you mean /api/chat? Leave /v1 out of the client's base URL"),
            ("/metrics", "; this is a page of the admin port (`admin.listen`)"),
            ("/metrics/", "; this is a page of the admin port (`admin.listen`)"),
            ("/budgets", "; this is a page of the admin port (`admin.listen`)"),
            ("/backends/gpu-1/drain", "; this is a page of the admin port (`admin.listen`)"),
            ("/keys/k1", "; this is a page of the admin port (`admin.listen`)"),
            ("/keys/k1/other", ""),
            ("/backends/gpu-1", ""),
            ("/favicon.ico", ""),
            ("/v1", ""),
            ("/v2/", ""),
        ] {
            assert_eq!(hint(path, &passthrough, Compat::Off), wanted, "{path}");
        }
    }
}
