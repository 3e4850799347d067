//! Access control of the admin port. It trusts its network, but not the browsers on it: a web page
//! from another site must neither read responses (DNS rebinding: a foreign name that resolves to
//! this address) nor post (CSRF).

use std::net::{IpAddr, Ipv6Addr};

use http::{HeaderMap, header};
use penstock_api::bearer_token;
use penstock_config::Secret;
use subtle::ConstantTimeEq;

use super::response::AdminRefusal;

/// The access that an endpoint grants, and whether it requires the token.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Access {
    /// No token: probes of orchestrators cannot send one.
    Open,
    /// No token, and the same under any host name: the response contains only whether the process
    /// is well.
    Probe,
    /// The token, if one is configured.
    Token,
    /// No token: a page without data, for which a browser cannot send one.
    Page,
}

const FETCH_SITE: &str = "sec-fetch-site";

/// Admits a request, or returns why it is refused.
pub(super) fn check(
    headers: &HeaderMap,
    token: Option<&Secret>,
    access: Access,
) -> Result<(), AdminRefusal> {
    // Programs that are not browsers send neither of both headers.
    let fetch_site = headers.get(FETCH_SITE).map_or(&b"none"[..], |value| value.as_bytes());
    if headers.contains_key(header::ORIGIN) || !matches!(fetch_site, b"none" | b"same-origin") {
        return Err(AdminRefusal::FromWebPage);
    }
    let has_token = token.is_some_and(|token| is_sent(headers, token));
    // No web page knows the token, so a request with the token may use any host name.
    let is_local = headers.get_all(header::HOST).iter().all(|host| is_local_host(host.as_bytes()));
    // With a token configured, the page may be opened under any host name: its data needs the
    // token.
    let is_harmless = match access {
        Access::Page => token.is_some(),
        Access::Probe => true,
        Access::Open | Access::Token => false,
    };
    if !has_token && !is_local && !is_harmless {
        return Err(AdminRefusal::ForeignHost);
    }
    match access {
        Access::Token if token.is_some() && !has_token => Err(AdminRefusal::NoToken),
        Access::Token | Access::Open | Access::Probe | Access::Page => Ok(()),
    }
}

fn is_sent(headers: &HeaderMap, token: &Secret) -> bool {
    // In constant time: the duration must not show how much of a guess is right.
    bearer_token(headers).is_some_and(|given| bool::from(token.reveal().as_bytes().ct_eq(given)))
}

/// Returns whether a Host header names an IP address or localhost, which DNS rebinding cannot use.
fn is_local_host(host: &[u8]) -> bool {
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
    fn host_is_local_for_addresses_and_localhost() {
        for host in
            ["127.0.0.1", "10.1.2.3:9090", "localhost", "LocalHost:9090", "[::1]:9090", "[::1]"]
        {
            assert!(is_local_host(host.as_bytes()), "{host}");
        }
        for host in [
            "evil.example",
            "localhost.evil.example:9090",
            "127.0.0.1.evil.example",
            "",
            "[::1]evil",
            "\u{e9}",
        ] {
            assert!(!is_local_host(host.as_bytes()), "{host}");
        }
    }

    #[test]
    fn requests_from_web_pages_are_refused() {
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
    fn token_admits_any_host_but_no_web_page() {
        let token = Secret::new("s3cret").unwrap();
        let token = Some(&token);
        let with = headers(&[("authorization", "bearer s3cret")]);
        let named = headers(&[("authorization", "Bearer s3cret"), ("host", "penstock:9090")]);
        let wrong = headers(&[("authorization", "Bearer s3cre")]);
        let page = headers(&[("authorization", "Bearer s3cret"), ("origin", "http://a")]);
        assert!(check(&with, token, Access::Token).is_ok());
        assert!(check(&named, token, Access::Token).is_ok(), "a name, with the token");
        assert!(matches!(check(&wrong, token, Access::Token), Err(AdminRefusal::NoToken)));
        assert!(matches!(check(&headers(&[]), token, Access::Token), Err(AdminRefusal::NoToken)));
        assert!(matches!(check(&page, token, Access::Token), Err(AdminRefusal::FromWebPage)));
        assert!(check(&headers(&[]), token, Access::Open).is_ok(), "probes need none");
    }

    #[test]
    fn probes_allow_host_names_but_no_web_page() {
        let named = headers(&[("host", "penstock.default.svc:9090")]);
        assert!(check(&named, None, Access::Probe).is_ok());
        let page = headers(&[("host", "evil.example"), ("sec-fetch-site", "cross-site")]);
        assert!(check(&page, None, Access::Probe).is_err());
    }

    #[test]
    fn page_allows_host_names_only_with_a_token() {
        let token = Secret::new("s3cret").unwrap();
        let named = headers(&[("host", "penstock.example:9090")]);
        assert!(check(&named, Some(&token), Access::Page).is_ok());
        assert!(check(&named, Some(&token), Access::Open).is_err());
        assert!(check(&named, None, Access::Page).is_err());
        let framed = headers(&[("host", "penstock.example"), ("sec-fetch-site", "cross-site")]);
        assert!(check(&framed, Some(&token), Access::Page).is_err());
    }
}
