//! The request for the backend: a head written by penstock, and the client's body with the
//! backend's name for the model spliced in.

use std::net::IpAddr;

use http::HeaderMap;
use http::header::{self, HeaderName, HeaderValue};
use penstock_api::{
    KeyHeaders, TRACEPARENT, TRACESTATE, TraceContext, bearer_token, is_control_field,
};
use penstock_config::{AuthorizationPolicy, BackendConfig, ForwardedFor};

use super::headers::{
    REQUEST_ID, WEBSOCKET, is_hop_by_hop, is_key, key_in_field, key_in_protocols, without_key,
};
use super::splice::{BodyParts, total_len};
use crate::wire::FORWARDED_FOR;

/// A request in the form that is sent: its head, and the parts of its body.
pub(crate) type RequestParts<'a> = [&'a [u8]; 6];

/// A request ready to be sent.
pub(crate) struct RequestBytes<'a> {
    head: Vec<u8>,
    body: BodyParts<'a>,
}

impl<'a> RequestBytes<'a> {
    pub(crate) fn write(
        target: &str,
        client: &HeaderMap,
        backend: &BackendConfig,
        own: OwnFields<'_>,
        body: BodyParts<'a>,
    ) -> Self {
        debug_assert_eq!(own.body_length, total_len(&body), "Content-Length is the body's");
        let mut head = Vec::with_capacity(1024);
        write_head(&mut head, target, client, backend, &own);
        Self { head, body }
    }

    /// All parts, for one vectored write.
    pub(crate) fn parts(&self) -> RequestParts<'_> {
        let [first, second, third, fourth, fifth] = self.body;
        [&self.head, first, second, third, fourth, fifth]
    }
}

/// Returns whether an engine's framework may confuse the field with another one. Frameworks that
/// map fields to CGI or WSGI variables treat `content_length` and `content-length` as the same
/// field.
fn is_ambiguous(name: &HeaderName) -> bool {
    name.as_str().contains('_')
}

/// Returns whether the client's `Connection` fields nominate this one as hop-by-hop.
fn is_nominated(client: &HeaderMap, name: &HeaderName) -> bool {
    let mut tokens = client
        .get_all(header::CONNECTION)
        .into_iter()
        .flat_map(|value| value.as_bytes().split(|byte| *byte == b','));
    tokens.any(|token| token.trim_ascii().eq_ignore_ascii_case(name.as_str().as_bytes()))
}

/// Returns whether penstock writes the field itself or withholds it.
fn is_replaced(name: &HeaderName) -> bool {
    *name == header::HOST
        || *name == header::CONTENT_LENGTH
        || *name == header::EXPECT
        || *name == header::PROXY_AUTHORIZATION
        || *name == REQUEST_ID
        || is_control_field(name)
}

/// Returns whether the field describes the client's body, or the response it expects.
fn describes_body(name: &HeaderName) -> bool {
    *name == header::CONTENT_TYPE || *name == header::ACCEPT
}

/// Returns whether the field says where a request came from. A client may claim anything there,
/// engines have no use for it, and an external service must not learn client addresses.
fn is_forwarding(name: &HeaderName) -> bool {
    *name == FORWARDED_FOR
        || *name == header::FORWARDED
        || matches!(
            name.as_str(),
            "x-forwarded-proto" | "x-forwarded-host" | "x-forwarded-port" | "x-real-ip"
        )
}

/// The information about the client's address that a backend gets (`server.forwarded_for`).
#[derive(Debug, Clone, Copy)]
pub(crate) struct Forwarding {
    pub(crate) policy: ForwardedFor,
    /// True if the client's connection comes from a trusted proxy.
    pub(crate) is_trusted: bool,
    /// The other end of the client's connection.
    pub(crate) peer: Option<IpAddr>,
    pub(crate) is_tls: bool,
}

impl Forwarding {
    fn passes_on(&self) -> bool {
        self.is_trusted && self.policy == ForwardedFor::Append
    }

    /// Returns whether a field of the client is not forwarded.
    fn withholds(&self, name: &HeaderName) -> bool {
        is_forwarding(name) && (*name == FORWARDED_FOR || !self.passes_on())
    }

    fn write(&self, out: &mut Vec<u8>, client: &HeaderMap) {
        if self.policy == ForwardedFor::Off {
            return;
        }
        let mut addresses: Vec<String> = Vec::new();
        if self.passes_on() {
            let given = client.get_all(FORWARDED_FOR).iter();
            addresses.extend(given.filter_map(|value| Some(value.to_str().ok()?.to_owned())));
        }
        addresses.extend(self.peer.map(|peer| peer.to_string()));
        if !addresses.is_empty() {
            write_field(out, FORWARDED_FOR.as_str(), addresses.join(", ").as_bytes());
        }
        if !self.passes_on() || !client.contains_key("x-forwarded-proto") {
            let scheme: &[u8] = if self.is_tls { b"https" } else { b"http" };
            write_field(out, "x-forwarded-proto", scheme);
        }
    }
}

/// Writes the head for a backend: the client's fields without hop-by-hop ones, exactly one
/// Content-Length, and credentials by the backend's policy.
fn write_head(
    out: &mut Vec<u8>,
    target: &str,
    client: &HeaderMap,
    backend: &BackendConfig,
    own: &OwnFields<'_>,
) {
    let base_path = backend.url.base_path.as_str();
    for part in [own.method, " ", base_path, target, " HTTP/1.1\r\nhost: ", own.authority] {
        out.extend_from_slice(part.as_bytes());
    }
    let mut digits = itoa::Buffer::new();
    // RFC 9110 §8.6: no length for methods that expect no content.
    if own.body_length > 0 || !matches!(own.method, "GET" | "HEAD" | "DELETE" | "OPTIONS") {
        out.extend_from_slice(b"\r\ncontent-length: ");
        out.extend_from_slice(digits.format(own.body_length).as_bytes());
    }
    out.extend_from_slice(b"\r\nx-request-id: ");
    out.extend_from_slice(own.request_id.as_bytes());
    out.extend_from_slice(b"\r\n");
    // Responses are read for tokens and usage, so they must not be encoded. Without the field, RFC
    // 9110 §12.5.3 lets a server choose any coding. After a switch of protocols nothing is read.
    let reads_response = !own.is_websocket;
    if reads_response {
        write_field(out, header::ACCEPT_ENCODING.as_str(), b"identity");
    }
    if own.is_websocket {
        write_field(out, header::CONNECTION.as_str(), b"Upgrade");
        write_field(out, header::UPGRADE.as_str(), WEBSOCKET.as_bytes());
    }
    if let Some((trace, span)) = own.trace {
        write_field(out, TRACEPARENT.as_str(), &trace.traceparent(span));
    }
    // `tracestate` belongs to the client's trace, and is dropped if another trace starts.
    let is_client_trace = own.trace.is_none_or(|(trace, _)| trace.caller.is_some());
    // penstock's own fields are written above: a client that nominates `host` cannot remove them.
    let nominates = client.contains_key(header::CONNECTION);
    let passes_key = backend.authorization == AuthorizationPolicy::Pass;
    for (name, value) in client {
        let is_traced = (*name == TRACEPARENT && own.trace.is_some())
            || (*name == TRACESTATE && !is_client_trace);
        let is_withheld = is_hop_by_hop(name)
            || is_replaced(name)
            || is_ambiguous(name)
            || is_traced
            || (reads_response && *name == header::ACCEPT_ENCODING)
            || (own.is_converted && describes_body(name))
            || own.forwarding.withholds(name)
            || (is_key(name) && !passes_key)
            || (nominates && is_nominated(client, name));
        if is_withheld {
            continue;
        }
        if *name == header::SEC_WEBSOCKET_PROTOCOL {
            if let Some(protocols) = without_key(value.as_bytes()) {
                write_field(out, name.as_str(), &protocols);
            }
            continue;
        }
        write_field(out, name.as_str(), value.as_bytes());
    }
    own.forwarding.write(out, client);
    write_key(out, client, backend, own);
    if own.is_converted {
        write_field(out, header::CONTENT_TYPE.as_str(), b"application/json");
    }
    out.extend_from_slice(b"\r\n");
}

/// Writes the backend's key besides the client's fields.
fn write_key(out: &mut Vec<u8>, client: &HeaderMap, backend: &BackendConfig, own: &OwnFields<'_>) {
    match (backend.authorization, &backend.api_key) {
        (AuthorizationPolicy::Replace, Some(key)) => {
            own.key_form.write(out, key.reveal().as_bytes());
        }
        (AuthorizationPolicy::Pass, _) if own.is_converted => {
            own.key_form.write_other(out, client);
        }
        (AuthorizationPolicy::Pass, _) => {
            // The key was cut out of the subprotocols: the engine gets it where it reads keys.
            if let Some(key) = key_in_protocols(client)
                && !client.keys().any(is_key)
            {
                write_bearer(out, key);
            }
        }
        _ => {}
    }
    if let KeyForm::Only(headers) = own.key_form {
        let (name, value) = headers.version;
        if !client.contains_key(name) {
            write_field(out, name, value.as_bytes());
        }
    }
}

/// The head for a chat request with these client fields and a body of seven bytes: for tests and
/// fuzz targets.
pub fn sample_head(client: &HeaderMap, backend: &BackendConfig) -> Vec<u8> {
    let own = OwnFields {
        method: "POST",
        authority: "engine:8000",
        body_length: 7,
        request_id: &HeaderValue::from_static("id-1"),
        trace: None,
        is_websocket: false,
        key_form: KeyForm::Bearer,
        is_converted: false,
        forwarding: Forwarding {
            policy: ForwardedFor::Off,
            is_trusted: false,
            peer: None,
            is_tls: false,
        },
    };
    let mut out = Vec::new();
    write_head(&mut out, "/v1/chat/completions", client, backend, &own);
    out
}

/// The form in which a backend takes its key.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum KeyForm {
    /// `Authorization: Bearer`.
    Bearer,
    /// `Authorization: Bearer`, and the header of the request's dialect.
    Also(&'static str),
    /// The header of the engine alone.
    Only(KeyHeaders),
}

impl KeyForm {
    fn write(self, out: &mut Vec<u8>, key: &[u8]) {
        match self {
            Self::Bearer => {}
            Self::Also(name) => write_field(out, name, key),
            Self::Only(headers) => return write_field(out, headers.key, key),
        }
        write_bearer(out, key);
    }

    /// Writes the client's key in the backend's field, if the client sent it in another.
    fn write_other(self, out: &mut Vec<u8>, client: &HeaderMap) {
        let header = match self {
            Self::Bearer => None,
            Self::Also(name) => Some(name),
            Self::Only(headers) => Some(headers.key),
        };
        match (header, bearer_token(client), key_in_field(client)) {
            (Some(name), Some(token), None) => write_field(out, name, token),
            (Some(name), _, Some(key)) if !client.contains_key(name) => write_field(out, name, key),
            (None, None, Some(key)) => write_bearer(out, key),
            _ => {}
        }
    }
}

fn write_bearer(out: &mut Vec<u8>, key: &[u8]) {
    out.extend_from_slice(b"authorization: Bearer ");
    out.extend_from_slice(key);
    out.extend_from_slice(b"\r\n");
}

/// The values that penstock itself puts into a request's head.
#[derive(Debug, Clone, Copy)]
pub(crate) struct OwnFields<'a> {
    pub(crate) method: &'a str,
    pub(crate) authority: &'a str,
    pub(crate) body_length: usize,
    pub(crate) request_id: &'a HeaderValue,
    /// The trace to propagate, and the attempt's own span in it.
    pub(crate) trace: Option<(TraceContext, u64)>,
    /// True if the request is to switch to WebSocket.
    pub(crate) is_websocket: bool,
    pub(crate) key_form: KeyForm,
    /// True if the body is not the client's: fields that describe the client's body are not
    /// forwarded.
    pub(crate) is_converted: bool,
    pub(crate) forwarding: Forwarding,
}

fn write_field(out: &mut Vec<u8>, name: &str, value: &[u8]) {
    out.extend_from_slice(name.as_bytes());
    out.extend_from_slice(b": ");
    out.extend_from_slice(value);
    out.extend_from_slice(b"\r\n");
}

#[cfg(test)]
mod tests {
    use super::*;

    fn forwarded(fields: &[(&'static str, &'static str)], backend: &BackendConfig) -> String {
        let client = fields
            .iter()
            .map(|(name, value)| (HeaderName::from_static(name), HeaderValue::from_static(value)));
        let mut map = HeaderMap::new();
        for (name, value) in client {
            map.append(name, value);
        }
        String::from_utf8(sample_head(&map, backend)).unwrap()
    }

    const OWN: &str = "POST /v1/chat/completions HTTP/1.1\r\nhost: engine:8000\r\n\
                       content-length: 7\r\nx-request-id: id-1\r\naccept-encoding: identity\r\n";

    #[test]
    fn hop_by_hop_and_ambiguous_fields_are_withheld() {
        let head = forwarded(
            &[
                ("host", "evil"),
                ("content-length", "9"),
                ("transfer-encoding", "chunked"),
                ("expect", "100-continue"),
                ("te", "trailers"),
                ("trailer", "x"),
                ("upgrade", "websocket"),
                ("http2-settings", "AAMAAABk"),
                ("keep-alive", "5"),
                ("proxy-connection", "close"),
                ("proxy-authorization", "Basic x"),
                ("accept-encoding", "gzip"),
                ("x-request-id", "id-1"),
                ("content_length", "9"),
                ("transfer_encoding", "chunked"),
                ("x_api_key", "twin"),
                ("accept", "text/event-stream"),
            ],
            &BackendConfig::default(),
        );
        assert_eq!(head, format!("{OWN}accept: text/event-stream\r\n\r\n"));
    }

    #[test]
    fn keys_of_clients_reach_no_engine() {
        let client = [
            ("authorization", "Bearer sk-1"),
            ("x-api-key", "sk-1"),
            ("api-key", "sk-1"),
            ("x-goog-api-key", "sk-1"),
            ("sec-websocket-protocol", "realtime, openai-insecure-api-key.sk-1"),
        ];
        let strip =
            BackendConfig { authorization: AuthorizationPolicy::Strip, ..BackendConfig::default() };
        let protocol = "sec-websocket-protocol: realtime\r\n";
        assert_eq!(forwarded(&client, &strip), format!("{OWN}{protocol}\r\n"));
        let pass = BackendConfig { authorization: AuthorizationPolicy::Pass, ..strip };
        let passed = forwarded(&client[4..], &pass);
        assert_eq!(passed, format!("{OWN}{protocol}authorization: Bearer sk-1\r\n\r\n"));
        let passed = forwarded(&client[2..3], &pass);
        assert_eq!(passed, format!("{OWN}api-key: sk-1\r\n\r\n"));
    }

    #[test]
    fn nominated_fields_are_dropped_but_own_fields_are_not() {
        let client = [
            ("connection", "close, X-Private"),
            ("connection", "host, content-length, x-request-id\t,x-other"),
            ("x-private", "1"),
            ("x-other", "2"),
            ("x-kept", "3"),
        ];
        let head = forwarded(&client, &BackendConfig::default());
        assert_eq!(head, format!("{OWN}x-kept: 3\r\n\r\n"));
    }
}
