//! Who may ask the admin port. It trusts its network, not the browsers on it: a page from elsewhere
//! must neither read answers (DNS rebinding: a foreign name that points here) nor post (CSRF).

use std::net::{IpAddr, Ipv6Addr};

use http::HeaderMap;
use http::header;
use subtle::ConstantTimeEq;

use super::response::Refusal;
use crate::config::Secret;

/// Whether an endpoint asks for the token, where one is configured.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Access {
    /// Probes of orchestrators cannot keep a secret.
    Open,
    /// The token, where one is configured.
    Token,
    /// A page without data, which browsers cannot send a token for.
    Page,
}

const FETCH_SITE: &str = "sec-fetch-site";

/// Lets a request pass or says why not.
pub(super) fn check(
    headers: &HeaderMap,
    token: Option<&Secret>,
    access: Access,
) -> Result<(), Refusal> {
    let fetch_site = headers.get(FETCH_SITE).map_or(&b"none"[..], |value| value.as_bytes());
    if headers.contains_key(header::ORIGIN) || !matches!(fetch_site, b"none" | b"same-origin") {
        return Err(Refusal::FromWebPage);
    }
    let has_token = token.is_some_and(|token| is_sent(headers, token));
    // No page knows the token, so whoever sends it may call this port by any name.
    let is_local = headers.get_all(header::HOST).iter().all(|host| names_us(host.as_bytes()));
    // Where there is a token, the page may be opened by any name: what it shows needs the token.
    let is_harmless = access == Access::Page && token.is_some();
    if !has_token && !is_local && !is_harmless {
        return Err(Refusal::ForeignHost);
    }
    match access {
        Access::Token if token.is_some() && !has_token => Err(Refusal::NoToken),
        Access::Token | Access::Open | Access::Page => Ok(()),
    }
}

fn is_sent(headers: &HeaderMap, token: &Secret) -> bool {
    let given = headers.get(header::AUTHORIZATION).and_then(|value| {
        let (scheme, given) = value.as_bytes().split_at_checked(7)?;
        scheme.eq_ignore_ascii_case(b"bearer ").then(|| given.trim_ascii())
    });
    given.is_some_and(|given| bool::from(token.reveal().as_bytes().ct_eq(given)))
}

/// Whether a Host header names an address or localhost: what no DNS server can point at us.
fn names_us(host: &[u8]) -> bool {
    let Ok(host) = std::str::from_utf8(host) else { return false };
    if let Some(rest) = host.strip_prefix('[') {
        return rest.split_once(']').is_some_and(|(address, port)| {
            address.parse::<Ipv6Addr>().is_ok() && (port.is_empty() || port.starts_with(':'))
        });
    }
    let name = host.split_once(':').map_or(host, |(name, _port)| name);
    name.eq_ignore_ascii_case("localhost") || name.parse::<IpAddr>().is_ok()
}

#[cfg(test)]
mod tests {
    use http::{HeaderName, HeaderValue};

    use super::*;

    fn headers(fields: &[(&'static str, &'static str)]) -> HeaderMap {
        let pair = |(name, value): &(&'static str, &'static str)| {
            (HeaderName::from_static(name), HeaderValue::from_static(value))
        };
        fields.iter().map(pair).collect()
    }

    #[test]
    fn only_addresses_and_localhost_name_us() {
        for host in
            ["127.0.0.1", "10.1.2.3:9090", "localhost", "LocalHost:9090", "[::1]:9090", "[::1]"]
        {
            assert!(names_us(host.as_bytes()), "{host}");
        }
        for host in [
            "evil.example",
            "localhost.evil.example:9090",
            "127.0.0.1.evil.example",
            "",
            "[::1]evil",
            "\u{e9}",
        ] {
            assert!(!names_us(host.as_bytes()), "{host}");
        }
    }

    #[test]
    fn web_pages_are_refused_wherever_they_come_from() {
        for page in [
            &[("origin", "http://localhost:9090")][..],
            &[("origin", "null")],
            &[("sec-fetch-site", "cross-site")],
            &[("host", "evil.example")],
        ] {
            assert!(check(&headers(page), None, Access::Open).is_err(), "{page:?}");
        }
        assert!(check(&headers(&[("host", "localhost")]), None, Access::Token).is_ok());
        assert!(check(&headers(&[]), None, Access::Token).is_ok(), "HTTP/1.0 has no Host");
    }

    #[test]
    fn the_token_opens_everything_but_the_door_to_web_pages() {
        let token = Secret::new("s3cret").unwrap();
        let token = Some(&token);
        let with = headers(&[("authorization", "bearer s3cret")]);
        let named = headers(&[("authorization", "Bearer s3cret"), ("host", "penstock:9090")]);
        let wrong = headers(&[("authorization", "Bearer s3cre")]);
        let page = headers(&[("authorization", "Bearer s3cret"), ("origin", "http://a")]);
        assert!(check(&with, token, Access::Token).is_ok());
        assert!(check(&named, token, Access::Token).is_ok(), "a name, with the token");
        assert!(matches!(check(&wrong, token, Access::Token), Err(Refusal::NoToken)));
        assert!(matches!(check(&headers(&[]), token, Access::Token), Err(Refusal::NoToken)));
        assert!(matches!(check(&page, token, Access::Token), Err(Refusal::FromWebPage)));
        assert!(check(&headers(&[]), token, Access::Open).is_ok(), "probes need none");
    }

    #[test]
    fn the_page_opens_by_a_name_only_where_its_data_needs_the_token() {
        let token = Secret::new("s3cret").unwrap();
        let named = headers(&[("host", "penstock.example:9090")]);
        assert!(check(&named, Some(&token), Access::Page).is_ok());
        assert!(check(&named, Some(&token), Access::Open).is_err());
        assert!(check(&named, None, Access::Page).is_err());
        let framed = headers(&[("host", "penstock.example"), ("sec-fetch-site", "cross-site")]);
        assert!(check(&framed, Some(&token), Access::Page).is_err());
    }
}
