//! The address of a backend: `https://host:port/base`.

use std::fmt;
use std::str::FromStr;

use http::Uri;

use super::document::Node;
use super::dump::Dump;
use super::errors::{Problem, UrlError};
use super::reader::Reader;
use super::setting::Setting;
use super::shape::Shape;

/// Where a backend is.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct BackendUrl {
    /// Whether to speak TLS.
    pub https: bool,
    /// Host name or address in lower case; IPv6 addresses without brackets.
    pub host: String,
    /// The port; 80 or 443 by scheme unless given.
    pub port: u16,
    /// The path before `/v1/…`: empty, or with a leading and without a trailing slash. A trailing `/v1`
    /// is dropped, since request paths include it.
    pub base_path: String,
}

impl BackendUrl {
    /// The value of a Host header: without the scheme's default port (RFC 9110 §4.2.3), since
    /// some services compare it with their name.
    pub fn host_field(&self) -> String {
        let own_port = if self.https { 443 } else { 80 };
        let authority = self.authority();
        match authority.strip_suffix(&format!(":{own_port}")) {
            Some(host) if self.port == own_port => host.to_owned(),
            Some(_) | None => authority,
        }
    }

    /// Host and port: `10.0.0.5:8000`, `[::1]:8000`.
    pub fn authority(&self) -> String {
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
        // Checked on the text: the parser drops a fragment, and the message must not show a password.
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
        match reader.scalar(node, "a URL")?.parse() {
            Ok(url) => Some(url),
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

#[cfg(test)]
mod tests {
    use super::*;

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
