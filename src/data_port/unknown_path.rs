//! The hint for a path that is not served: mistakes in base URLs are the usual cause.

use std::borrow::Cow;

use http::Method;
use penstock_config::Compat;
use penstock_core::routing::Passthrough;

use crate::data_port::target::Target;

/// The maximum length of a path with such a mistake.
const MAX_PATH: usize = 200;

/// Pages of the admin port.
const ADMIN_PAGES: &[&str] = &[
    "/metrics",
    "/dashboard",
    "/fleet",
    "/decisions",
    "/config",
    "/version",
    "/explain",
    "/quote",
    "/reload",
    "/upgrade",
    "/usage",
    "/shadow",
    "/health/live",
    "/health/ready",
    "/livez",
    "/readyz",
];

/// The hint that the message about an unknown path adds; empty if there is none.
pub(crate) fn hint(path: &str, passthrough: &Passthrough, compat: Compat) -> Cow<'static, str> {
    if path.len() > MAX_PATH {
        return "".into();
    }
    let plain = without_extra_slashes(path);
    if ADMIN_PAGES.contains(&plain.as_str()) {
        return "; this is a page of the admin port (`admin.listen`)".into();
    }
    let is_served = |path: &str| {
        path.len() > 1 && Target::of(&Method::POST, path, passthrough, compat) != Target::Unknown
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
            ("/favicon.ico", ""),
            ("/v1", ""),
            ("/v2/", ""),
        ] {
            assert_eq!(hint(path, &passthrough, Compat::Off), wanted, "{path}");
        }
    }
}
