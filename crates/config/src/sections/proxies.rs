//! `server.trusted_proxies`: proxies whose client address is trusted.

use std::fmt;
use std::net::IpAddr;

use crate::syntax::document::Node;
use crate::syntax::dump::Dump;
use crate::syntax::reader::Reader;
use crate::syntax::setting::Setting;
use crate::syntax::shape::Shape;

/// The address of a trusted proxy.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum TrustedProxy {
    /// A network in CIDR notation, or a single address.
    Network {
        /// The network address.
        address: IpAddr,
        /// The length of the prefix in bits.
        prefix: u8,
    },
    /// Any peer of a Unix socket.
    Unix,
}

impl TrustedProxy {
    /// Returns whether a peer matches; `None` is the peer of a Unix socket.
    pub fn contains(&self, peer: Option<IpAddr>) -> bool {
        match (self, peer) {
            (Self::Unix, None) => true,
            (Self::Network { address, prefix }, Some(peer)) => {
                begins_alike(*address, peer.to_canonical(), *prefix)
            }
            (Self::Unix, Some(_)) | (Self::Network { .. }, None) => false,
        }
    }
}

fn begins_alike(a: IpAddr, b: IpAddr, prefix: u8) -> bool {
    let bits = u32::from(prefix);
    match (a, b) {
        (IpAddr::V4(a), IpAddr::V4(b)) => {
            (a.to_bits() ^ b.to_bits()).checked_shr(32 - bits).unwrap_or(0) == 0
        }
        (IpAddr::V6(a), IpAddr::V6(b)) => {
            (a.to_bits() ^ b.to_bits()).checked_shr(128 - bits).unwrap_or(0) == 0
        }
        (IpAddr::V4(_), IpAddr::V6(_)) | (IpAddr::V6(_), IpAddr::V4(_)) => false,
    }
}

impl fmt::Display for TrustedProxy {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Network { address, prefix } => write!(out, "{address}/{prefix}"),
            Self::Unix => out.write_str("unix"),
        }
    }
}

impl Setting for TrustedProxy {
    type Value = Self;

    fn read(node: &Node, reader: &mut Reader) -> Option<Self> {
        const EXPECTED: &str = "an address, a network such as 10.0.0.0/8, or unix";
        reader.parse(node, EXPECTED, |text| parse(text.trim()))
    }

    fn dump(value: &Self) -> Dump {
        Dump::Text(value.to_string())
    }

    fn shape() -> Shape {
        Shape::pattern("^([0-9a-fA-F.:]+(/[0-9]+)?|unix)$")
    }
}

fn parse(text: &str) -> Option<TrustedProxy> {
    if text.eq_ignore_ascii_case("unix") {
        return Some(TrustedProxy::Unix);
    }
    let (address, prefix) = match text.split_once('/') {
        Some((address, prefix)) => (address, Some(prefix)),
        None => (text, None),
    };
    let address: IpAddr = address.parse().ok()?;
    let longest = if address.is_ipv4() { 32 } else { 128 };
    let prefix = prefix.map_or(Some(longest), |digits| digits.parse().ok())?;
    (prefix <= longest).then_some(TrustedProxy::Network { address, prefix })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn network_contains_addresses_with_its_prefix() {
        let holds = |network: &str, peer: &str| {
            parse(network).unwrap().contains(Some(peer.parse().unwrap()))
        };
        assert!(holds("10.0.0.0/8", "10.255.3.1"));
        assert!(!holds("10.0.0.0/8", "11.0.0.1"));
        assert!(holds("127.0.0.1", "127.0.0.1"));
        assert!(!holds("127.0.0.1", "127.0.0.2"));
        assert!(holds("0.0.0.0/0", "203.0.113.9"));
        assert!(holds("10.0.0.0/8", "::ffff:10.1.2.3"), "IPv4 over a socket that takes both");
        assert!(holds("fd00::/8", "fd12::1"));
        assert!(!holds("fd00::/8", "10.0.0.1"));
        assert!(!parse("10.0.0.0/8").unwrap().contains(None));
        assert!(parse("unix").unwrap().contains(None));
    }

    #[test]
    fn invalid_network_is_refused() {
        for text in ["", "10.0.0.0/33", "::/129", "10.0.0/8", "example.com", "10.0.0.0/x"] {
            assert_eq!(parse(text), None, "{text}");
        }
    }
}
