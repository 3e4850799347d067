//! `shared_state:` a Redis or Valkey server with the state that several penstocks share.

use std::fmt;
use std::time::Duration;

use penstock_api::choice;
use serde_json::json;

use crate::sections::backends::{ConnectionTls, LoadedTls};
use crate::syntax::collections::{Never, Or};
use crate::syntax::document::Node;
use crate::syntax::dump::Dump;
use crate::syntax::reader::Reader;
use crate::syntax::secret::{InlineSecret, Secret, SecretFile};
use crate::syntax::setting::{Setting, choice_setting, section};
use crate::syntax::shape::Shape;
use crate::syntax::values::{Name, Positive};
use crate::tls::TlsError;

choice! {
    /// The treatment of requests that cost money while it is unknown what other penstocks spend.
    pub enum BudgetsAlone {
        /// Each penstock spends an even share of what was left.
        Share = "share",
        /// They are refused.
        Refuse = "refuse",
    }
}
choice_setting!(BudgetsAlone);

section! {
    /// State that several penstocks share: limits per client, budgets, client keys, and requests
    /// in flight. Read at start.
    pub struct SharedStateConfig {
        /// The Redis or Valkey server, as in `redis://10.0.0.9:6379/0`, or `rediss://` with TLS;
        /// none: nothing is shared.
        pub redis: Option<RedisAddress> ["redis" as Or<Never, RedisAddress>] = None,
        /// The user, where the server has users.
        pub username: String ["username" as AnyText] = String::new(),
        /// The password. `password_file` names a file with it.
        pub password: Option<Secret> ["password" as InlineSecret, "password_file" as SecretFile] =
            None,
        /// TLS settings, for `rediss://`.
        pub tls: ConnectionTls = ConnectionTls::default(),
        /// `tls` with its files loaded.
        pub client_tls: LoadedTls [] = LoadedTls::default(),
        /// The start of all names in the server. Penstocks with the same one share.
        pub prefix: String ["prefix" as Name] = "penstock".to_owned(),
        /// The longest that a request waits for the server. Then only local limits hold for it.
        // A request waits for it: a server further away than that is no help.
        pub timeout: Duration ["timeout" as Positive] = Duration::from_millis(20),
        /// The time for which the requests in flight of a penstock count that can no longer report
        /// them.
        pub lease: Duration ["lease" as Positive] = Duration::from_secs(15),
        /// Counts the requests of the other penstocks on backends of the same name and URL, in
        /// decisions and for `max_in_flight`.
        pub in_flight: bool = true,
        /// The behaviour of budgets while the server is not reached: `share` gives each penstock an
        /// even share of what was left, `refuse` refuses requests that cost money.
        pub budgets_alone: BudgetsAlone = BudgetsAlone::Share,
    }
}

impl SharedStateConfig {
    /// Builds the TLS settings of connections to the server, if it has TLS.
    ///
    /// # Errors
    /// [`TlsError`] when its files cannot be used.
    pub(crate) fn load_tls(&mut self) -> Result<(), TlsError> {
        // Without TLS the files need not exist.
        if let Some(address) = self.redis.as_ref().filter(|address| address.is_tls) {
            self.client_tls = self.tls.load(&address.host, false)?;
        }
        Ok(())
    }
}

/// The address of a Redis or Valkey server.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RedisAddress {
    /// True if connections to it are encrypted.
    pub is_tls: bool,
    /// A name or an address, without brackets.
    pub host: String,
    /// The port.
    pub port: u16,
    /// The number of the database.
    pub database: u32,
}

impl fmt::Display for RedisAddress {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { is_tls, host, port, database } = self;
        let scheme = if *is_tls { "rediss" } else { "redis" };
        match host.contains(':') {
            true => write!(out, "{scheme}://[{host}]:{port}/{database}"),
            false => write!(out, "{scheme}://{host}:{port}/{database}"),
        }
    }
}

impl RedisAddress {
    fn parse(text: &str) -> Option<Self> {
        let (scheme, rest) = text.trim().split_once("://")?;
        let is_tls = match scheme {
            "redis" => false,
            "rediss" => true,
            _ => return None,
        };
        let (authority, database) = rest.split_once('/').unwrap_or((rest, ""));
        let database = if database.is_empty() { 0 } else { database.parse().ok()? };
        // An IPv6 address is in brackets.
        let (host, port) = match authority.strip_prefix('[') {
            Some(rest) => {
                let (host, port) = rest.split_once(']')?;
                host.parse::<std::net::Ipv6Addr>().ok()?;
                (host, port)
            }
            None => {
                let end = authority.find(':').unwrap_or(authority.len());
                authority.split_at_checked(end)?
            }
        };
        let port = match port.strip_prefix(':') {
            Some(port) => port.parse().ok().filter(|port| *port > 0)?,
            None if port.is_empty() => 6379,
            None => return None,
        };
        let is_fit = |byte: u8| byte.is_ascii_alphanumeric() || b"-._:".contains(&byte);
        let is_host = !host.is_empty() && host.bytes().all(is_fit);
        is_host.then(|| Self { is_tls, host: host.to_owned(), port, database })
    }
}

impl Setting for RedisAddress {
    type Value = Self;

    fn read(node: &Node, reader: &mut Reader) -> Option<Self> {
        const EXPECTED: &str =
            "an address without credentials, as redis://HOST:PORT/DATABASE or rediss://…";
        let text = reader.scalar(node, EXPECTED)?;
        match Self::parse(text) {
            Some(address) => Some(address),
            // A password in the URL must not be shown.
            None if text.contains('@') => reader.refuse_value(node, "redis://***", EXPECTED),
            None => reader.refuse_value(node, text, EXPECTED),
        }
    }

    fn dump(value: &Self) -> Dump {
        Dump::text(&value.to_string())
    }

    fn shape() -> Shape {
        Shape::Scalar(json!({"type": "string", "pattern": "^rediss?://[^@]+$"}))
    }
}

/// A text that may be empty.
struct AnyText;

impl Setting for AnyText {
    type Value = String;

    fn read(node: &Node, reader: &mut Reader) -> Option<String> {
        let text = reader.scalar(node, "a name")?;
        Some(text.to_owned())
    }

    fn dump(value: &String) -> Dump {
        Dump::text(value)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_have_a_host_and_defaults() {
        let shown = |text: &str| RedisAddress::parse(text).map(|address| address.to_string());
        for (text, expected) in [
            ("redis://10.0.0.9", "redis://10.0.0.9:6379/0"),
            ("redis://cache.internal:7000/2", "redis://cache.internal:7000/2"),
            ("redis://[::1]:7000", "redis://[::1]:7000/0"),
            ("redis://[::1]/1", "redis://[::1]:6379/1"),
            ("rediss://cache.internal", "rediss://cache.internal:6379/0"),
        ] {
            assert_eq!(shown(text).as_deref(), Some(expected));
        }
        for wrong in [
            "",
            "redis://",
            "redisss://a",
            "http://a",
            "redis://a:b",
            "redis://a:0",
            "redis://a/x",
            "redis://user:pass@a",
            "redis://[::1",
            "redis://[a]:1",
            "redis://a:1:2",
            "redis://:1",
        ] {
            assert_eq!(shown(wrong), None, "{wrong}");
        }
    }
}
