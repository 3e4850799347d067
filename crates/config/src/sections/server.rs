//! `server:` the data port.

use std::num::NonZeroUsize;
use std::time::Duration;

use penstock_api::{ReasoningField, choice};

use super::listener::{Listener, ListenerItem};
use super::proxies::TrustedProxy;
use crate::syntax::checked_text::{Checked, TextRule};
use crate::syntax::collections::{List, OneOrMore};
use crate::syntax::document::{Content, Node};
use crate::syntax::dump::Dump;
use crate::syntax::reader::Reader;
use crate::syntax::setting::{Setting, choice_setting, section};
use crate::syntax::shape::Shape;
use crate::syntax::values::{AtLeastOne, Positive};

section! {
    /// The data port, where clients connect.
    pub struct ServerConfig {
        /// One or more addresses, each a string or a mapping.
        pub listen: Vec<Listener> ["listen" as OneOrMore<ListenerItem>] =
            vec![Listener::default()],
        /// Proxies whose PROXY header and X-Forwarded-For are trusted: IP addresses, networks in
        /// CIDR notation, or unix.
        pub trusted_proxies: Vec<TrustedProxy> ["trusted_proxies" as List<TrustedProxy>] =
            Vec::new(),
        /// Sends X-Forwarded-For and X-Forwarded-Proto to backends: off or append.
        pub forwarded_for: ForwardedFor = ForwardedFor::Off,
        /// The number of worker threads; auto is one per available core.
        pub threads: usize ["threads" as Threads] = available_threads(),
        /// On shutdown, time in which the readiness check fails and requests are still accepted, so
        /// that load balancers in front take this process out of rotation.
        pub shutdown_delay: Duration = Duration::ZERO,
        /// On shutdown, time that requests in flight get to finish.
        pub drain_timeout: Duration = Duration::from_secs(300),
        /// Allowed browser origins: off, "*" or a list.
        pub cors: Cors = Cors::Off,
        /// A further API of the data port: off, or nomyo for that of the NOMYO Router: /api/usage,
        /// /api/token_counts and so on, and keys as `?api_key=`.
        pub compat: Compat = Compat::Off,
        /// The field of converted chat responses (`/v1/chat/completions`) that has what the model
        /// thinks: reasoning_content, reasoning, both or none.
        pub reasoning_field: ReasoningField = ReasoningField::Both,
        /// Idle timeout of client connections.
        pub keep_alive: Duration ["keep_alive" as Positive] = Duration::from_secs(100),
    }
}

choice! {
    /// Another router's API on the data port.
    pub enum Compat {
        /// None.
        Off = "off",
        /// The API of the NOMYO Router.
        Nomyo = "nomyo",
    }
}
choice_setting!(Compat);

choice_setting!(ReasoningField);

choice! {
    /// The treatment of X-Forwarded-* headers.
    pub enum ForwardedFor {
        /// They are removed.
        Off = "off",
        /// The client's address is appended to X-Forwarded-For, and X-Forwarded-Proto is set.
        Append = "append",
    }
}
choice_setting!(ForwardedFor);

const MAX_THREADS: usize = 1024;

fn available_threads() -> usize {
    std::thread::available_parallelism().map_or(1, NonZeroUsize::get)
}

/// A number of threads, or `auto`.
struct Threads;

impl Setting for Threads {
    type Value = usize;

    fn read(node: &Node, reader: &mut Reader) -> Option<usize> {
        match &node.content {
            Content::Scalar(text) if text.trim().eq_ignore_ascii_case("auto") => {
                Some(available_threads())
            }
            _ => match AtLeastOne::<usize>::read(node, reader)? {
                many if many > MAX_THREADS => {
                    reader.refuse_value(node, &many.to_string(), "auto or at most 1024")
                }
                threads => Some(threads),
            },
        }
    }

    fn dump(value: &usize) -> Dump {
        if *value == available_threads() { Dump::text("auto") } else { usize::dump(value) }
    }

    fn shape() -> Shape {
        Shape::integer(1, u64::MAX).or_word("auto")
    }
}

/// Allowed browser origins.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Cors {
    /// None: no CORS header is sent.
    Off,
    /// These origins; `*` is any.
    Origins(Vec<String>),
}

impl Setting for Cors {
    type Value = Self;

    fn read(node: &Node, reader: &mut Reader) -> Option<Self> {
        match &node.content {
            Content::Scalar(text) if text.trim().eq_ignore_ascii_case("off") => Some(Self::Off),
            _ => OneOrMore::<Checked<CorsOrigin>>::read(node, reader).map(Self::Origins),
        }
    }

    fn dump(value: &Self) -> Dump {
        match value {
            Self::Off => Dump::text("off"),
            Self::Origins(origins) => OneOrMore::<Checked<CorsOrigin>>::dump(origins),
        }
    }

    fn shape() -> Shape {
        OneOrMore::<Checked<CorsOrigin>>::shape().or_word("off")
    }
}

/// An origin as browsers send it, or `*`.
struct CorsOrigin;

impl TextRule for CorsOrigin {
    const EXPECTED: &'static str = "off, \"*\" or origins such as https://chat.example.com";

    fn accepts(text: &str) -> bool {
        // Browsers compare origins as text: one with a path would never match.
        let is_origin = text.split_once("://").is_some_and(|(scheme, host)| {
            !scheme.is_empty()
                && !host.is_empty()
                && host.bytes().all(|byte| byte.is_ascii_graphic() && !b"/?#@,".contains(&byte))
        });
        text == "*" || is_origin
    }
}
