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

/// Returns the 4xx of an error about the request. `names`: its type and code, in lower case.
pub(super) fn client_status(code: &str, names: &str) -> Option<u16> {
    match code.trim().trim_matches('"').parse() {
        // The backend waited in vain: no fault of the request.
        Ok(408) => None,
        Ok(status @ 400..=499) => Some(status),
        Ok(500..=599) => None,
        _ => CLIENT_NAMES.iter().find(|(name, _)| names.contains(name)).map(|(_, status)| *status),
    }
}
