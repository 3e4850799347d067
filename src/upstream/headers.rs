//! Names of header fields, and the list of those that never travel past one connection.

use http::HeaderMap;
use http::header::{self, HeaderName, HeaderValue};

/// The only protocol that clients may switch to: with another one, a client would speak to the
/// engine with penstock's own key.
pub(crate) const WEBSOCKET: HeaderValue = HeaderValue::from_static("websocket");

pub(crate) const REQUEST_ID: HeaderName = HeaderName::from_static("x-request-id");
/// Anthropic's field for a key.
pub(crate) const API_KEY: HeaderName = HeaderName::from_static("x-api-key");
/// Azure's field for a key.
const AZURE_KEY: HeaderName = HeaderName::from_static("api-key");
/// Gemini's field for a key.
const GOOGLE_KEY: HeaderName = HeaderName::from_static("x-goog-api-key");
/// The fields besides `Authorization` that carry a key.
static KEY_FIELDS: [HeaderName; 3] = [API_KEY, AZURE_KEY, GOOGLE_KEY];
/// The prefix of the subprotocol in which web pages send their key: a browser cannot set fields of
/// a WebSocket.
const KEY_PROTOCOL: &[u8] = b"openai-insecure-api-key.";

pub(crate) fn is_key(name: &HeaderName) -> bool {
    matches!(name.as_str(), "authorization" | "x-api-key" | "api-key" | "x-goog-api-key")
}

/// The key that a client sends in one of `KEY_FIELDS`.
pub(crate) fn key_in_field(client: &HeaderMap) -> Option<&[u8]> {
    let field = KEY_FIELDS.iter().find_map(|name| client.get(name));
    field.map(|value| value.as_bytes().trim_ascii())
}

/// The key among the subprotocols of a WebSocket.
pub(crate) fn key_in_protocols(client: &HeaderMap) -> Option<&[u8]> {
    let fields = client.get_all(header::SEC_WEBSOCKET_PROTOCOL).iter();
    let mut tokens = fields.flat_map(|value| value.as_bytes().split(|byte| *byte == b','));
    tokens.find_map(|token| token.trim_ascii().strip_prefix(KEY_PROTOCOL))
}

/// The subprotocols in a value, without those that carry a key; `None` when none remains.
pub(crate) fn without_key(protocols: &[u8]) -> Option<Vec<u8>> {
    let tokens = protocols.split(|byte| *byte == b',').map(<[u8]>::trim_ascii);
    // A prefix in another case is no key to penstock, but may be one to an engine.
    let is_key = |token: &[u8]| {
        let prefix = token.get(..KEY_PROTOCOL.len());
        prefix.is_some_and(|prefix| prefix.eq_ignore_ascii_case(KEY_PROTOCOL))
    };
    let left: Vec<&[u8]> = tokens.filter(|token| !is_key(token)).collect();
    (!left.is_empty()).then(|| left.join(&b", "[..]))
}

/// Hop-by-hop fields (RFC 9110 §7.6.1): they concern one connection and are never forwarded.
pub(crate) fn is_hop_by_hop(name: &HeaderName) -> bool {
    *name == header::CONNECTION
        || *name == header::TRANSFER_ENCODING
        || *name == header::TE
        || *name == header::TRAILER
        || *name == header::UPGRADE
        || matches!(
            name.as_str(),
            "keep-alive" | "proxy-connection" | "proxy-authenticate" | "http2-settings"
        )
}

#[cfg(test)]
mod tests {
    use http::header::HeaderValue;

    use super::*;

    #[test]
    fn keys_are_found_among_subprotocols_and_taken_out() {
        for (protocols, key, left) in [
            ("realtime, openai-insecure-api-key.sk-1, v1", Some("sk-1"), Some("realtime, v1")),
            ("openai-insecure-api-key.sk-1", Some("sk-1"), None),
            ("realtime,OpenAI-Insecure-API-Key.sk-1", None, Some("realtime")),
            ("realtime", None, Some("realtime")),
        ] {
            let mut client = HeaderMap::new();
            let value = HeaderValue::from_static(protocols);
            client.insert(header::SEC_WEBSOCKET_PROTOCOL, value);
            assert_eq!(key_in_protocols(&client), key.map(str::as_bytes), "{protocols}");
            let text =
                without_key(protocols.as_bytes()).map(|left| String::from_utf8(left).unwrap());
            assert_eq!(text.as_deref(), left, "{protocols}");
        }
    }
}
