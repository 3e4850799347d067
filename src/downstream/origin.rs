//! The source of a request: the peer of its connection, or the client that trusted proxies name in
//! `X-Forwarded-For`.

use std::net::IpAddr;

use http::HeaderMap;
use penstock_config::TrustedProxy;

use crate::wire::FORWARDED_FOR;

/// The other end of a connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Peer {
    Address(IpAddr),
    /// A process on this machine, over a Unix socket.
    Local,
    /// The socket closed before its address was read, or the port has no use for it.
    Unknown,
}

impl Peer {
    pub(crate) fn address(self) -> Option<IpAddr> {
        match self {
            Self::Address(address) => Some(address),
            Self::Local | Self::Unknown => None,
        }
    }

    /// Returns whether the peer's statements about client addresses are believed.
    pub(crate) fn is_trusted(self, trusted: &[TrustedProxy]) -> bool {
        match self {
            Self::Address(address) => trusted.iter().any(|proxy| proxy.contains(Some(address))),
            Self::Local => trusted.iter().any(|proxy| proxy.contains(None)),
            Self::Unknown => false,
        }
    }
}

/// The source of a connection.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Origin {
    /// The peer of the socket, or the client that a PROXY header names.
    pub(crate) peer: Peer,
    pub(crate) is_tls: bool,
}

impl Origin {
    /// The client in front of the trusted proxies. `X-Forwarded-For` is read from its end, where
    /// the nearest proxy wrote: the first address that is not a trusted proxy is the client's, and
    /// everything before it may be forged.
    pub(crate) fn client(&self, headers: &HeaderMap, trusted: &[TrustedProxy]) -> Option<IpAddr> {
        let mut believed = self.peer;
        let fields: Vec<_> = match believed.is_trusted(trusted) {
            true => headers.get_all(FORWARDED_FOR).iter().collect(),
            false => Vec::new(),
        };
        let values = fields.iter().rev().filter_map(|value| value.to_str().ok());
        for entry in values.flat_map(|value| value.rsplit(',')) {
            // An entry that a trusted proxy cannot have written ends the chain of trust.
            let Some(address) = parse_entry(entry) else { break };
            believed = Peer::Address(address);
            if !believed.is_trusted(trusted) {
                break;
            }
        }
        believed.address()
    }
}

/// Parses `203.0.113.9`, `203.0.113.9:4711`, `2001:db8::1` or `[2001:db8::1]:4711`.
fn parse_entry(entry: &str) -> Option<IpAddr> {
    let entry = entry.trim();
    if let Some(bracketed) = entry.strip_prefix('[') {
        return bracketed.split_once(']')?.0.parse().ok();
    }
    let address = entry.parse().ok();
    address.or_else(|| entry.split_once(':')?.0.parse::<std::net::Ipv4Addr>().ok().map(Into::into))
}

#[cfg(test)]
mod tests {
    use http::HeaderValue;

    use super::*;

    fn client(peer: Peer, fields: &[&str]) -> String {
        let trusted = [
            TrustedProxy::Network { address: "10.0.0.0".parse().unwrap(), prefix: 8 },
            TrustedProxy::Unix,
        ];
        let mut headers = HeaderMap::new();
        for field in fields {
            headers.append(FORWARDED_FOR, HeaderValue::from_str(field).unwrap());
        }
        let client = Origin { peer, is_tls: false }.client(&headers, &trusted);
        client.map_or_else(|| "none".to_owned(), |address| address.to_string())
    }

    fn at(address: &str) -> Peer {
        Peer::Address(address.parse().unwrap())
    }

    #[test]
    fn forwarded_for_counts_only_from_trusted_proxies() {
        assert_eq!(client(at("203.0.113.1"), &["198.51.100.7"]), "203.0.113.1");
        assert_eq!(client(at("10.0.0.1"), &["198.51.100.7"]), "198.51.100.7");
        assert_eq!(client(at("10.0.0.1"), &[]), "10.0.0.1");
        assert_eq!(client(Peer::Local, &["198.51.100.7"]), "198.51.100.7");
        assert_eq!(client(Peer::Unknown, &["198.51.100.7"]), "none");
    }

    #[test]
    fn forged_forwarded_for_entries_are_ignored() {
        assert_eq!(client(at("10.0.0.1"), &["1.1.1.1, 198.51.100.7, 10.0.0.2"]), "198.51.100.7");
        assert_eq!(client(at("10.0.0.1"), &["1.1.1.1", "198.51.100.7"]), "198.51.100.7");
        assert_eq!(client(at("10.0.0.1"), &["198.51.100.7, unknown"]), "10.0.0.1");
        assert_eq!(client(at("10.0.0.1"), &["10.0.0.9, 10.0.0.8"]), "10.0.0.9");
    }

    #[test]
    fn forwarded_for_entries_may_have_ports_and_brackets() {
        assert_eq!(client(at("10.0.0.1"), &["198.51.100.7:4711"]), "198.51.100.7");
        assert_eq!(client(at("10.0.0.1"), &["[2001:db8::1]:4711"]), "2001:db8::1");
        assert_eq!(client(at("10.0.0.1"), &["2001:db8::1"]), "2001:db8::1");
    }
}
