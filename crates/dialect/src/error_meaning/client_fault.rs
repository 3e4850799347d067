//! The status that an error about the request should have had.

/// Parts of types, codes and names of a status, in lower case, each with its status. The first one
/// that is found decides: OpenAI calls a bad key an invalid request, too.
const CLIENT_NAMES: &[(&str, u16)] = &[
    ("invalid_api_key", 401),
    ("authentication", 401),
    ("unauthenticated", 401),
    ("unauthorized", 401),
    ("permission", 403),
    ("forbidden", 403),
    ("not_found", 404),
    ("notfound", 404),
    ("too_large", 413),
    ("unprocessable", 422),
    ("context_length", 400),
    ("context_size", 400),
    ("invalid_request", 400),
    ("invalid_argument", 400),
    ("bad_request", 400),
    ("badrequest", 400),
];

/// Types that say that the server failed, in lower case, whatever number stands beside them.
const SERVER_NAMES: [&str; 4] = ["server_error", "servererror", "internal", "api_error"];

/// Returns the 4xx of an error about the request. `names`: its type and code, in lower case.
pub(super) fn client_status(code: &str, names: &str) -> Option<u16> {
    if SERVER_NAMES.iter().any(|name| names.contains(name)) {
        return None;
    }
    match code.trim().trim_matches('"').parse() {
        // The backend waited in vain, or gave up: no fault of the request.
        Ok(408 | 499) => None,
        Ok(status @ 400..=499) => Some(status),
        Ok(500..=599) => None,
        _ => CLIENT_NAMES.iter().find(|(name, _)| names.contains(name)).map(|(_, status)| *status),
    }
}

#[cfg(test)]
mod tests {
    use super::client_status;

    #[test]
    fn server_that_failed_is_no_fault_of_the_client() {
        for (code, names, expected) in [
            ("400", "", Some(400)),
            ("\"422\"", "", Some(422)),
            ("400", "server_error", None),
            ("499", "", None),
            ("408", "invalid_request_error", None),
            ("", "invalid_request_error", Some(400)),
            ("", "internalservererror", None),
        ] {
            assert_eq!(client_status(code, names), expected, "{code} {names}");
        }
    }
}
