//! `server:` the data port.

use std::num::NonZeroUsize;
use std::time::Duration;

use super::listener::{Listener, ListenerItem};
use super::proxies::TrustedProxy;
use crate::config::syntax::collections::{List, OneOrMore};
use crate::config::syntax::document::{Content, Node};
use crate::config::syntax::dump::Dump;
use crate::config::syntax::reader::Reader;
use crate::config::syntax::setting::{Setting, choice, section};
use crate::config::syntax::shape::Shape;
use crate::config::syntax::values::{AtLeastOne, Positive};

section! {
    /// The data port: where clients call.
    pub struct ServerConfig {
        /// Addresses to listen on, each just that or with what is spoken there.
        pub listen: Vec<Listener> ["listen" as OneOrMore<ListenerItem>] =
            vec![Listener::default()],
        /// Proxies whose word about a client's address is taken: by PROXY header, or by
        /// X-Forwarded-For.
        pub trusted_proxies: Vec<TrustedProxy> ["trusted_proxies" as List<TrustedProxy>] =
            Vec::new(),
        /// What backends are told of where a request came from: off or append.
        pub forwarded_for: ForwardedFor = ForwardedFor::Off,
        /// Threads that serve requests; auto is one per core this process may use.
        pub threads: usize ["threads" as Threads] = available_threads(),
        /// How long requests are still taken after a stop was asked for, while the readiness check
        /// already fails: the time others need to send theirs elsewhere.
        pub shutdown_delay: Duration = Duration::ZERO,
        /// How long requests in flight may take to finish after a stop was asked for.
        pub drain_timeout: Duration = Duration::from_secs(300),
        /// Which web pages may call from a browser: off, "*" or a list of origins.
        pub cors: Cors = Cors::Off,
        /// How long an idle client connection is kept.
        pub keep_alive: Duration ["keep_alive" as Positive] = Duration::from_secs(75),
    }
}

choice! {
    /// What backends are told of where a request came from.
    pub enum ForwardedFor {
        /// Nothing: X-Forwarded-* and the like are taken off.
        Off = "off",
        /// X-Forwarded-For with the client's address added, and X-Forwarded-Proto.
        Append = "append",
    }
}
choice!(@setting ForwardedFor);

const MOST_THREADS: usize = 1024;

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
                many if many > MOST_THREADS => {
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

/// Which web pages may call from a browser.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Cors {
    /// None: no CORS header is sent.
    Off,
    /// Those of these origins; `*` stands for all.
    Origins(Vec<String>),
}

impl Setting for Cors {
    type Value = Self;

    fn read(node: &Node, reader: &mut Reader) -> Option<Self> {
        match &node.content {
            Content::Scalar(text) if text.trim().eq_ignore_ascii_case("off") => Some(Self::Off),
            _ => OneOrMore::<Origin>::read(node, reader).map(Self::Origins),
        }
    }

    fn dump(value: &Self) -> Dump {
        match value {
            Self::Off => Dump::text("off"),
            Self::Origins(origins) => OneOrMore::<Origin>::dump(origins),
        }
    }

    fn shape() -> Shape {
        OneOrMore::<Origin>::shape().or_word("off")
    }
}

/// An origin as browsers send it, or `*`.
struct Origin;

impl Setting for Origin {
    type Value = String;

    fn read(node: &Node, reader: &mut Reader) -> Option<String> {
        const EXPECTED: &str = "off, \"*\" or origins such as https://chat.example.com";
        let text = reader.scalar(node, EXPECTED)?;
        // Browsers compare origins as text: one with a path would never match.
        let is_origin = text.split_once("://").is_some_and(|(scheme, host)| {
            !scheme.is_empty()
                && !host.is_empty()
                && host.bytes().all(|byte| byte.is_ascii_graphic() && !b"/?#@,".contains(&byte))
        });
        if text != "*" && !is_origin {
            return reader.refuse_value(node, text, EXPECTED);
        }
        Some(text.to_owned())
    }

    fn dump(value: &String) -> Dump {
        Dump::text(value)
    }

    fn shape() -> Shape {
        Shape::text()
    }
}
