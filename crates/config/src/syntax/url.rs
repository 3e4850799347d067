//! The address of a backend: `https://host:port/base`.

use std::fmt;
use std::str::FromStr;

use http::Uri;
use penstock_api::{OLLAMA_ROUTES, OPERATIONS};

use super::document::Node;
use super::dump::Dump;
use super::errors::{Problem, UrlError};
use super::reader::Reader;
use super::setting::Setting;
use super::shape::Shape;
use super::warnings::Warning;

#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct BackendUrl {
    /// True if connections use TLS.
    pub https: bool,
    /// Host name or address in lower case; IPv6 addresses without brackets.
    pub host: String,
    /// The port; 80 or 443 by scheme unless given.
    pub port: u16,
    /// The path before `/v1/…`: empty, or with a leading and without a trailing slash. A trailing
    /// `/v1` is dropped, since request paths include it.
    pub base_path: String,
}

impl BackendUrl {
    /// Returns the value of a Host header: without the scheme's default port (RFC 9110 §4.2.3),
    /// since some services compare it with their name.
    pub fn host_field(&self) -> String {
        let own_port = if self.https { 443 } else { 80 };
        let authority = self.authority();
        match authority.strip_suffix(&format!(":{own_port}")) {
            Some(host) if self.port == own_port => host.to_owned(),
            Some(_) | None => authority,
        }
    }

    /// Returns host and port: `10.0.0.5:8000`, `[::1]:8000`.
    pub fn authority(&self) -> String {
        // An IPv6 address has colons, too (RFC 3986 §3.2.2).
        if self.host.contains(':') {
            format!("[{}]:{}", self.host, self.port)
        } else {
            format!("{}:{}", self.host, self.port)
        }
    }
}

impl fmt::Display for BackendUrl {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        let scheme = if self.https { "https" } else { "http" };
        write!(out, "{scheme}://{}{}", self.authority(), self.base_path)
    }
}

impl FromStr for BackendUrl {
    type Err = UrlError;

    fn from_str(given: &str) -> Result<Self, UrlError> {
        let given = given.trim();
        let malformed = || UrlError::Malformed { given: given.to_owned() };
        let scheme = given.split_once("://").ok_or(UrlError::Scheme)?.0;
        let https = match scheme.to_ascii_lowercase().as_str() {
            "http" => false,
            "https" => true,
            _ => return Err(UrlError::Scheme),
        };
        // Checked on the text: the parser drops a fragment, and the message must not show a
        // password.
        let authority = given.split(['/', '?', '#']).nth(2).unwrap_or("");
        if authority.contains('@') {
            return Err(UrlError::Credentials);
        }
        if given.contains(['?', '#']) {
            return Err(UrlError::Query);
        }
        let uri: Uri = given.parse().map_err(|_malformed_uri| malformed())?;
        let host = uri.host().unwrap_or("");
        let host = host.trim_start_matches('[').trim_end_matches(']').to_lowercase();
        if host.is_empty() {
            return Err(malformed());
        }
        let has_port = authority.rsplit_once(':').is_some_and(|(_, port)| !port.ends_with(']'));
        let port = match uri.port_u16() {
            Some(0) => return Err(UrlError::Port),
            Some(port) => port,
            // The parser shows no port that it cannot read, such as 99999: the default would hide
            // it.
            None if has_port => return Err(malformed()),
            None if https => 443,
            None => 80,
        };
        let base = uri.path().trim_end_matches('/');
        let base = base.strip_suffix("/v1").unwrap_or(base).trim_end_matches('/');
        Ok(Self { https, host, port, base_path: base.to_owned() })
    }
}

impl Default for BackendUrl {
    fn default() -> Self {
        Self { https: false, host: "127.0.0.1".to_owned(), port: 8000, base_path: String::new() }
    }
}

impl Setting for BackendUrl {
    type Value = Self;

    fn read(node: &Node, reader: &mut Reader) -> Option<Self> {
        let given = reader.scalar(node, "a URL")?;
        match given.parse() {
            Ok(url) => {
                if let Some(warning) = endpoint_warning(given) {
                    reader.warn(&node.place, warning);
                }
                Some(url)
            }
            Err(source) => reader.refuse(node, |key| Problem::Url { key, source }),
        }
    }

    fn dump(value: &Self) -> Dump {
        Dump::text(&value.to_string())
    }

    fn shape() -> Shape {
        Shape::pattern("^\\s*[hH][tT][tT][pP][sS]?://[^?#@]+$")
    }
}

/// Paths of endpoints that are neither operations nor Ollama's routes.
const OTHER_ENDPOINTS: &[&str] = &[
    "/v1/models",
    "/models",
    "/health",
    "/metrics",
    "/version",
    "/props",
    "/slots",
    "/generate",
    "/generate_stream",
    // LM Studio's own API, which is not that of OpenAI.
    "/api/v0/models",
    "/api/v0/chat/completions",
    "/api/v0/completions",
    "/api/v0/embeddings",
    // A base path that was given twice.
    "/v1/v1",
];

/// Warns if a URL ends with the path of an endpoint or with the start of one, as in an example with
/// curl.
fn endpoint_warning(given: &str) -> Option<Warning> {
    let given = given.trim().trim_end_matches('/');
    let path_at = given.find("://").and_then(|scheme| {
        let authority = scheme + "://".len();
        Some(authority + given.get(authority..)?.find('/')?)
    })?;
    let path = given.get(path_at..)?;
    // A base path may precede it; the longest endpoint counts.
    let starts = path.match_indices('/').map(|(at, _)| at);
    let at = starts.into_iter().find(|at| path.get(*at..).is_some_and(is_endpoint))?;
    let (base, endpoint) = (given.get(..path_at + at)?, path.get(at..)?);
    Some(Warning::EndpointUrl { path: endpoint.to_owned(), base: base.to_owned() })
}

/// Returns whether a path is that of an endpoint, or whole segments of its start. `/v1` is a usual
/// base path, not an endpoint.
fn is_endpoint(path: &str) -> bool {
    let path = path.to_ascii_lowercase();
    let is_start_of = |endpoint: &str| {
        endpoint
            .strip_prefix(path.as_str())
            .is_some_and(|rest| rest.is_empty() || rest.starts_with('/'))
    };
    let of_operations = OPERATIONS.iter().flat_map(|row| row.paths.iter().copied());
    let of_ollama = OLLAMA_ROUTES.iter().map(|row| row.path);
    let mut endpoints = of_operations.chain(of_ollama).chain(OTHER_ENDPOINTS.iter().copied());
    path != "/v1" && endpoints.any(is_start_of)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn urls_of_endpoints_are_warned_of_with_their_base() {
        for (given, path, base) in [
            ("http://a:8000/v1/chat/completions", "/v1/chat/completions", "http://a:8000"),
            ("https://a/v1/messages/", "/v1/messages", "https://a"),
            ("http://a:11434/api", "/api", "http://a:11434"),
            ("http://a:11434/api/chat", "/api/chat", "http://a:11434"),
            ("http://a/v1/models", "/v1/models", "http://a"),
            ("http://a/openai/v1/embeddings", "/v1/embeddings", "http://a/openai"),
            ("http://a/v1/chat", "/v1/chat", "http://a"),
            ("http://[::1]:8/chat/completions", "/chat/completions", "http://[::1]:8"),
            ("http://a/V1/Messages", "/V1/Messages", "http://a"),
            ("http://a:8080/generate", "/generate", "http://a:8080"),
            ("http://a:1234/api/v0", "/api/v0", "http://a:1234"),
            ("http://a/api/v0/chat/completions", "/api/v0/chat/completions", "http://a"),
            ("http://a/openai/v1/v1/", "/v1/v1", "http://a/openai"),
        ] {
            let (path, base) = (path.to_owned(), base.to_owned());
            assert_eq!(
                endpoint_warning(given),
                Some(Warning::EndpointUrl { path, base }),
                "{given}"
            );
        }
    }

    #[test]
    fn usual_bases_are_no_endpoints() {
        for given in [
            "http://a",
            "http://a/",
            "http://a:8000/v1",
            "https://openrouter.ai/api/v1/",
            "https://a/openai/v1",
            "https://a/v1beta/openai",
            "https://a/compatible-mode/v1",
            "http://a/apis",
        ] {
            assert_eq!(endpoint_warning(given), None, "{given}");
        }
    }

    fn parse(text: &str) -> Result<BackendUrl, UrlError> {
        text.parse()
    }

    #[test]
    fn ports_default_by_scheme() {
        let url = parse("http://GPU-a").unwrap();
        assert_eq!((url.https, url.host.as_str(), url.port), (false, "gpu-a", 80));
        assert_eq!(parse("https://api.example.com/v1").unwrap().port, 443);
    }

    #[test]
    fn base_paths_lose_v1_and_slashes() {
        for (given, base) in [
            ("http://a:1", ""),
            ("http://a:1/", ""),
            ("http://a:1/v1", ""),
            ("http://a:1/v1/", ""),
            ("http://a:1/openai/v1/", "/openai"),
            ("http://a:1/base", "/base"),
            ("http://a:1/nov1", "/nov1"),
        ] {
            assert_eq!(parse(given).unwrap().base_path, base, "{given}");
        }
    }

    #[test]
    fn ipv6_goes_in_and_out_of_brackets() {
        let url = parse("http://[::1]:8000/x").unwrap();
        assert_eq!((url.host.as_str(), url.port), ("::1", 8000));
        assert_eq!(url.to_string(), "http://[::1]:8000/x");
        assert_eq!(parse("http://[::1]").unwrap().port, 80);
    }

    #[test]
    fn invalid_backend_url_is_refused() {
        assert_eq!(parse("gpu-a:8000"), Err(UrlError::Scheme));
        assert_eq!(parse("ftp://a"), Err(UrlError::Scheme));
        assert_eq!(parse("http://user:pw@a"), Err(UrlError::Credentials));
        assert_eq!(parse("http://a/?x=1"), Err(UrlError::Query));
        assert_eq!(parse("http://a:0"), Err(UrlError::Port));
        for given in ["http://", "http:///x", "http://a:99999", "http://a:x", "http://a b"] {
            assert!(matches!(parse(given), Err(UrlError::Malformed { .. })), "{given}");
        }
    }
}
