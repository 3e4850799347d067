//! The PROXY protocol, versions 1 and 2: a header by which a load balancer passes on the client's
//! address before the first byte of a connection (proxy-protocol.txt of HAProxy).

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

const SIGNATURE: &[u8; 12] = b"\r\n\r\n\0\r\nQUIT\n";
/// The longest line of version 1, including its CR LF.
const MAX_LINE_BYTES: usize = 107;
/// The longest addresses and extensions of version 2; extensions are skipped.
const MAX_EXTENSIONS: usize = 4096;

/// The content of the first bytes of a connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Header {
    /// A header that is not complete yet.
    Partial,
    Complete {
        /// The length of the header in bytes.
        length: usize,
        /// The client's address; `None` if the header names none, as in health checks.
        client: Option<IpAddr>,
    },
}

/// The first bytes of a connection are not a PROXY header.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("the connection does not start with a valid PROXY header")]
pub struct InvalidHeader;

/// Reads the header at the start of `bytes`.
///
/// # Errors
/// [`InvalidHeader`] as soon as no further bytes can complete a header.
pub fn parse(bytes: &[u8]) -> Result<Header, InvalidHeader> {
    if could_start_with(bytes, SIGNATURE) {
        return parse_binary(bytes);
    }
    if could_start_with(bytes, b"PROXY ") {
        return parse_line(bytes);
    }
    Err(InvalidHeader)
}

/// Returns whether `bytes` start with `prefix`, as far as they have arrived.
fn could_start_with(bytes: &[u8], prefix: &[u8]) -> bool {
    bytes.iter().zip(prefix).all(|(byte, expected)| byte == expected)
}

fn parse_line(bytes: &[u8]) -> Result<Header, InvalidHeader> {
    let Some(end) = memchr::memchr(b'\n', bytes) else {
        return if bytes.len() < MAX_LINE_BYTES { Ok(Header::Partial) } else { Err(InvalidHeader) };
    };
    let line = bytes.get(..end).and_then(|line| line.strip_suffix(b"\r")).ok_or(InvalidHeader)?;
    if end + 1 > MAX_LINE_BYTES {
        return Err(InvalidHeader);
    }
    let line = std::str::from_utf8(line).map_err(|_not_ascii| InvalidHeader)?;
    let fields: Vec<&str> = line.split(' ').collect();
    let client = match fields.as_slice() {
        ["PROXY", "UNKNOWN", ..] => None,
        ["PROXY", kind @ ("TCP4" | "TCP6"), from, to, from_port, to_port] => {
            let (from, to) = (parse_address(from)?, parse_address(to)?);
            let fits = (*kind == "TCP4") == from.is_ipv4() && from.is_ipv4() == to.is_ipv4();
            if !fits || !is_port(from_port) || !is_port(to_port) {
                return Err(InvalidHeader);
            }
            Some(from)
        }
        _ => return Err(InvalidHeader),
    };
    Ok(Header::Complete { length: end + 1, client })
}

fn parse_address(text: &str) -> Result<IpAddr, InvalidHeader> {
    text.parse().map_err(|_not_an_address| InvalidHeader)
}

/// Returns whether `text` is a port of digits only; `u16` alone would also accept a sign.
fn is_port(text: &str) -> bool {
    text.bytes().all(|byte| byte.is_ascii_digit()) && text.parse::<u16>().is_ok()
}

fn parse_binary(bytes: &[u8]) -> Result<Header, InvalidHeader> {
    let Some(fixed) = bytes.get(SIGNATURE.len()..SIGNATURE.len() + 4) else {
        return Ok(Header::Partial);
    };
    let &[command, family, high, low] = fixed else { return Err(InvalidHeader) };
    let rest = usize::from(u16::from_be_bytes([high, low]));
    if rest > MAX_EXTENSIONS {
        return Err(InvalidHeader);
    }
    let length = SIGNATURE.len() + 4 + rest;
    let Some(addresses) = bytes.get(SIGNATURE.len() + 4..length) else {
        return Ok(Header::Partial);
    };
    let client = match (command, family) {
        // LOCAL: a health check of the proxy itself.
        (0x20, _) => None,
        // The whole block of addresses must be there, although only the source is read.
        (0x21, 0x11) => Some(IpAddr::V4(Ipv4Addr::from(first::<4, 12>(addresses)?))),
        (0x21, 0x21) => Some(IpAddr::V6(Ipv6Addr::from(first::<16, 36>(addresses)?))),
        // Well-formed, with addresses of another family.
        (0x21, _) => None,
        _ => return Err(InvalidHeader),
    };
    Ok(Header::Complete { length, client })
}

/// The first `N` bytes of `bytes`, which must have at least `MIN`.
fn first<const N: usize, const MIN: usize>(bytes: &[u8]) -> Result<[u8; N], InvalidHeader> {
    let whole = if bytes.len() >= MIN { bytes.first_chunk::<N>() } else { None };
    whole.copied().ok_or(InvalidHeader)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn complete(length: usize, client: Option<&str>) -> Result<Header, InvalidHeader> {
        Ok(Header::Complete { length, client: client.map(|text| text.parse().unwrap()) })
    }

    fn binary(command: u8, family: u8, addresses: &[u8]) -> Vec<u8> {
        let length = u16::try_from(addresses.len()).unwrap().to_be_bytes();
        [&SIGNATURE[..], &[command, family], &length, addresses].concat()
    }

    #[test]
    fn version_1_is_parsed() {
        let line = b"PROXY TCP4 198.51.100.7 10.0.0.1 4711 8080\r\n";
        assert_eq!(parse(&[line, &b"GET /"[..]].concat()), complete(44, Some("198.51.100.7")));
        let line = b"PROXY TCP6 2001:db8::1 ::1 4711 8080\r\n";
        assert_eq!(parse(line), complete(line.len(), Some("2001:db8::1")));
        assert_eq!(parse(b"PROXY UNKNOWN\r\n"), complete(15, None));
    }

    #[test]
    fn version_2_is_parsed() {
        let four = [198, 51, 100, 7, 10, 0, 0, 1, 0x12, 0x67, 0x1f, 0x90];
        assert_eq!(parse(&binary(0x21, 0x11, &four)), complete(28, Some("198.51.100.7")));
        let mut six = [0; 36];
        six[15] = 1;
        assert_eq!(parse(&binary(0x21, 0x21, &six)), complete(52, Some("::1")));
        let extended = [&four[..], &[4, 0, 1, 0]].concat();
        assert_eq!(parse(&binary(0x21, 0x11, &extended)), complete(32, Some("198.51.100.7")));
        assert_eq!(parse(&binary(0x20, 0, &[])), complete(16, None), "a proxy's own check");
    }

    #[test]
    fn partial_header_waits_for_more() {
        let four = [198, 51, 100, 7, 10, 0, 0, 1, 0x12, 0x67, 0x1f, 0x90];
        for whole in
            [b"PROXY TCP4 198.51.100.7 10.0.0.1 4711 80\r\n".to_vec(), binary(0x21, 0x11, &four)]
        {
            for end in 0..whole.len() {
                assert_eq!(parse(&whole[..end]), Ok(Header::Partial), "{end} bytes");
            }
        }
    }

    #[test]
    fn malformed_headers_are_refused() {
        for bytes in [
            &b"GET / HTTP/1.1\r\n"[..],
            b"PROXY TCP4 ::1 ::1 1 2\r\n",
            b"PROXY TCP4 1.1.1.1 2.2.2.2 1\r\n",
            b"PROXY TCP4 1.1.1.1 2.2.2.2 1 99999\r\n",
            b"PROXY TCP4 1.1.1.1 2.2.2.2 1 2\n",
            b"PROXY TCP4 1.1.1.1 2.2.2.2 +1 2\r\n",
            b"PROXY UDP4 1.1.1.1 2.2.2.2 1 2\r\n",
            b"\x16\x03\x01\x02\x00",
        ] {
            assert_eq!(parse(bytes), Err(InvalidHeader), "{bytes:?}");
        }
        assert_eq!(parse(&[b"PROXY ".to_vec(), vec![b'x'; 200]].concat()), Err(InvalidHeader));
        assert_eq!(parse(&binary(0x31, 0x11, &[0; 12])), Err(InvalidHeader));
        assert_eq!(parse(&binary(0x21, 0x11, &[0; 11])), Err(InvalidHeader));
        assert_eq!(
            parse(&[&SIGNATURE[..], &[0x21, 0x11, 0xff, 0xff]].concat()),
            Err(InvalidHeader)
        );
    }
}
