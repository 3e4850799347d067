//! `server.listen`: the addresses and protocols of the data port.

use std::fmt;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::path::PathBuf;

use penstock_api::choice;

use crate::syntax::collections::Maybe;
use crate::syntax::document::{Content, Node};
use crate::syntax::dump::Dump;
use crate::syntax::reader::Reader;
use crate::syntax::setting::{Setting, choice_setting, section};
use crate::syntax::shape::Shape;
use crate::syntax::values::FilePath;
use crate::tls::{ClientAuth, ServerTlsFiles};

/// The address of a listener.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ListenAddress {
    /// An IP address and port.
    Tcp(SocketAddr),
    /// The path of a Unix socket.
    Unix(PathBuf),
}

impl ListenAddress {
    /// Returns the name of its socket in Pingora and in a graceful upgrade.
    pub fn socket_name(&self) -> String {
        match self {
            Self::Tcp(address) => address.to_string(),
            Self::Unix(path) => path.to_string_lossy().into_owned(),
        }
    }

    /// Returns whether only one of two sockets with these addresses can listen.
    pub(crate) fn overlaps(&self, other: &Self) -> bool {
        match (self, other) {
            (Self::Tcp(one), Self::Tcp(other)) => {
                // Port 0 binds a new port each time.
                let is_shared = one.port() == other.port() && one.port() != 0;
                is_shared && (covers(*one, *other) || covers(*other, *one))
            }
            (Self::Unix(one), Self::Unix(other)) => one == other,
            (Self::Tcp(_), Self::Unix(_)) | (Self::Unix(_), Self::Tcp(_)) => false,
        }
    }
}

/// Returns whether a socket of `one` takes the connections to `other` on the same port.
fn covers(one: SocketAddr, other: SocketAddr) -> bool {
    // `::ffff:10.0.0.1` is the IPv4 address.
    let (ip, of_other) = (one.ip().to_canonical(), other.ip().to_canonical());
    match ip {
        IpAddr::V4(_) => ip == of_other || ip.is_unspecified() && of_other.is_ipv4(),
        // Both families: listeners do not set IPV6_V6ONLY. Link-local addresses differ by scope.
        IpAddr::V6(_) => ip.is_unspecified() || one == other,
    }
}

impl fmt::Display for ListenAddress {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Tcp(address) => address.fmt(out),
            Self::Unix(path) => write!(out, "unix:{}", path.display()),
        }
    }
}

impl Setting for ListenAddress {
    type Value = Self;

    fn read(node: &Node, reader: &mut Reader) -> Option<Self> {
        const EXPECTED: &str =
            "an IP address and port such as 0.0.0.0:8080 or [::]:8080, or unix:/path";
        let text = reader.scalar(node, EXPECTED)?.trim();
        if let Some(path) = text.strip_prefix("unix:").filter(|path| path.starts_with('/')) {
            // The kernel accepts no longer paths (`sun_path` in unix(7)).
            if path.len() > 107 {
                return reader.refuse_value(node, text, "a path of at most 107 bytes");
            }
            return Some(Self::Unix(path.into()));
        }
        match text.parse() {
            Ok(address) => Some(Self::Tcp(address)),
            Err(_) => reader.refuse_value(node, text, EXPECTED),
        }
    }

    fn dump(value: &Self) -> Dump {
        Dump::Text(value.to_string())
    }

    fn shape() -> Shape {
        Shape::pattern(r"^(.+:[0-9]+|unix:/.+)$")
    }
}

choice! {
    /// The certificates that clients must present.
    pub enum ClientCertificates {
        /// A client without a certificate is rejected.
        Required = "required",
        /// A certificate is optional, but an invalid one is rejected.
        Optional = "optional",
    }
}
choice_setting!(ClientCertificates);

section! {
    /// TLS settings of a listener. Changed files are reloaded.
    pub struct ListenerTls requires ["cert", "key"] {
        /// A PEM file with the certificate chain, leaf first.
        pub cert: PathBuf ["cert" as FilePath] = PathBuf::new(),
        /// A PEM file with the private key.
        pub key: PathBuf ["key" as FilePath] = PathBuf::new(),
        /// A PEM file with the CAs of client certificates. Enables mutual TLS.
        pub client_ca: Option<PathBuf> ["client_ca" as Maybe<FilePath>] = None,
        /// Client certificates: required or optional.
        pub client_certificates: ClientCertificates = ClientCertificates::Required,
    }
}

impl ListenerTls {
    /// Returns the files to read.
    pub fn files(&self) -> ServerTlsFiles {
        let auth = match self.client_certificates {
            ClientCertificates::Required => ClientAuth::Required,
            ClientCertificates::Optional => ClientAuth::Optional,
        };
        ServerTlsFiles {
            cert: self.cert.clone(),
            key: self.key.clone(),
            client_ca: self.client_ca.clone().map(|path| (path, auth)),
        }
    }
}

section! {
    /// A listener of the data port.
    pub struct Listener requires ["address"] {
        /// An IP address and port, or `unix:` and a path.
        pub address: ListenAddress =
            ListenAddress::Tcp(SocketAddr::new(IpAddr::V4(Ipv4Addr::UNSPECIFIED), 8080)),
        /// Permissions of a Unix socket, in octal.
        // Owner and group alone: a client that can open the socket can use every model.
        pub mode: u32 ["mode" as Permissions] = 0o660,
        /// TLS settings. Default: no TLS.
        pub tls: Option<ListenerTls> ["tls" as Maybe<ListenerTls>] = None,
        /// Accepts HTTP/2 besides HTTP/1.1. Default: with TLS, by ALPN; without TLS, only clients
        /// with prior knowledge can use it.
        pub http2: Option<bool> ["http2" as Maybe<bool>] = None,
        /// Expects a PROXY protocol header, version 1 or 2, at the start of each connection, from
        /// an address in `trusted_proxies`.
        pub proxy_protocol: bool = false,
    }
}

impl Listener {
    /// Returns the address and protocols for messages.
    pub fn describe(&self) -> String {
        let spoken = [
            ("PROXY", self.proxy_protocol),
            ("TLS", self.tls.is_some()),
            ("HTTP/2", self.speaks_http2()),
        ];
        let spoken: Vec<&str> =
            spoken.iter().filter(|(_, is_spoken)| *is_spoken).map(|(name, _)| *name).collect();
        let address = &self.address;
        if spoken.is_empty() {
            address.to_string()
        } else {
            format!("{address} ({})", spoken.join(", "))
        }
    }

    /// Returns whether every client must present a certificate.
    pub fn knows_clients(&self) -> bool {
        self.tls.as_ref().is_some_and(|tls| {
            tls.client_ca.is_some() && tls.client_certificates == ClientCertificates::Required
        })
    }

    /// Returns whether the listener accepts HTTP/2.
    pub fn speaks_http2(&self) -> bool {
        // With TLS a client negotiates it; in clear text one would have to know beforehand.
        self.http2.unwrap_or(self.tls.is_some())
    }
}

/// An item of `server.listen`: a mapping, or just an address.
pub(crate) struct ListenerItem;

impl Setting for ListenerItem {
    type Value = Listener;

    fn read(node: &Node, reader: &mut Reader) -> Option<Listener> {
        match &node.content {
            // A bare address, as in an environment variable.
            Content::Scalar(_) => {
                let address = ListenAddress::read(node, reader)?;
                Some(Listener { address, ..Listener::default() })
            }
            Content::Null | Content::List(_) | Content::Map(_) => Listener::read(node, reader),
        }
    }

    fn dump(value: &Listener) -> Dump {
        Listener::dump(value)
    }

    fn shape() -> Shape {
        Shape::Either(vec![ListenAddress::shape(), Listener::shape()])
    }
}

/// Permissions of a file in octal: `0660`.
struct Permissions;

impl Setting for Permissions {
    type Value = u32;

    fn read(node: &Node, reader: &mut Reader) -> Option<u32> {
        reader.parse(node, "permissions in octal such as \"0660\"", |text| {
            let digits = text.trim().trim_start_matches("0o");
            u32::from_str_radix(digits, 8).ok().filter(|mode| *mode <= 0o777)
        })
    }

    fn dump(value: &u32) -> Dump {
        Dump::Text(format!("{value:04o}"))
    }
}
