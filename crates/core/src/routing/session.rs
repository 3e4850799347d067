//! The session of a request. The configured header or cookie names it, else a header that agents
//! send by themselves, else a member of the body. A session belongs to its client key: the same
//! name under two keys is two sessions.

use penstock_config::RoutingConfig;
use penstock_scoring::{ScorerSpec, Value};
use xxhash_rust::xxh3::{xxh3_64, xxh3_64_with_seed};

use crate::fleet::BackendId;

/// The header that names a session, unless another field is configured.
const SESSION_HEADER: &str = "x-session-id";
/// The header in which Claude Code names a session.
const CLAUDE_SESSION: &str = "x-claude-code-session-id";
/// The header in which it names an agent of the session.
const CLAUDE_AGENT: &str = "x-claude-code-agent-id";
/// The header in which it names the parent of that agent.
const CLAUDE_PARENT: &str = "x-claude-code-parent-agent-id";
/// The header in which other agents name their parent session.
const PARENT_HEADER: &str = "x-parent-session-id";
/// The headers in which agents and gateways name a session; the first one present counts.
const HEADERS: [&str; 6] = [
    SESSION_HEADER,
    CLAUDE_SESSION,
    "session_id",
    "session-id",
    "x-session-affinity",
    "x-litellm-session-id",
];
/// The longest name of a session, in bytes; longer values are ignored.
// Longer ones are not names but data: hashing them would cost a decision its time.
const MAX_NAME: usize = 1024;

/// Hashes of the names of a session, of the agent in it that sends the request, and of the parent
/// of this agent. They are equal without agents.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SessionIds {
    /// The session with all its agents.
    pub root: u64,
    /// The parent of the agent that sends the request.
    pub parent: u64,
    /// The agent that sends the request.
    pub own: u64,
}

/// A session as decisions read it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RoutedSession {
    /// A hash of the session with all its agents.
    pub id: u64,
    /// The backend that served it last.
    pub home: Option<BackendId>,
}

/// The parts of a request that may name its session.
#[derive(Debug, Clone, Copy)]
pub struct SessionNames<'a, F> {
    /// The values of any of its headers.
    pub headers: F,
    /// The name in its body: `prompt_cache_key` or `conversation`.
    pub body: &'a [u8],
    /// The client key of the request.
    pub key: Option<&'a str>,
}

/// The configured field that names the session; it comes before the headers of agents.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum SessionField {
    Header(String),
    Cookie(String),
}

impl SessionField {
    /// Returns the field that the parameters of session-affinity name.
    pub(super) fn of(spec: &ScorerSpec) -> Self {
        match (text_of(spec, "header"), text_of(spec, "cookie")) {
            (None, Some(cookie)) => Self::Cookie(cookie),
            (header, _) => Self::Header(header.unwrap_or_else(|| SESSION_HEADER.to_owned())),
        }
    }

    /// Returns the field that a configuration names, in the scorer session-affinity.
    pub(super) fn configured(config: &RoutingConfig) -> Self {
        let specs = config.scorer_specs();
        let spec = specs.iter().find(|spec| spec.is("session-affinity"));
        spec.map_or_else(|| Self::Header(SESSION_HEADER.to_owned()), Self::of)
    }

    /// Returns the session that a request names.
    pub fn read<'a, V, F>(&self, names: &SessionNames<'a, F>) -> Option<SessionIds>
    where
        V: Iterator<Item = &'a [u8]>,
        F: Fn(&str) -> V,
    {
        let header = |name: &str| (names.headers)(name).next().filter(|value| is_name(value));
        let by_agents = || HEADERS.iter().find_map(|name| Some((*name, header(name)?)));
        let by_body = || Some(("", names.body)).filter(|(_, name)| is_name(name));
        let (source, name) = match self.value(&names.headers).filter(|name| is_name(name)) {
            Some(name) => (self.header_name(), name),
            None => by_agents().or_else(by_body)?,
        };
        // Each key has its own seed; without a key the hash is that of the name alone.
        let scope = names.key.map_or(0, |key| xxh3_64(key.as_bytes()));
        let id = xxh3_64_with_seed(name, scope);
        // Agents of two sessions may have the same name: their session is the seed.
        let agent = |name: &[u8]| xxh3_64_with_seed(name, id);
        // Its agents share the id of the session, and name themselves in fields of that client.
        if source == CLAUDE_SESSION {
            let Some(own) = header(CLAUDE_AGENT) else { return Some(SessionIds::plain(id)) };
            let parent = header(CLAUDE_PARENT).map_or(id, agent);
            return Some(SessionIds { root: id, parent, own: agent(own) });
        }
        let parent = header(PARENT_HEADER).map_or(id, |name| xxh3_64_with_seed(name, scope));
        // Such agents name one session above their own, which stands for all of them.
        Some(SessionIds { root: parent, parent, own: id })
    }

    fn header_name(&self) -> &str {
        match self {
            Self::Header(name) => name,
            Self::Cookie(_) => "",
        }
    }

    /// Returns the value of the configured field.
    fn value<'a, V: Iterator<Item = &'a [u8]>>(
        &self,
        headers: &impl Fn(&str) -> V,
    ) -> Option<&'a [u8]> {
        match self {
            Self::Header(name) => headers(name).next(),
            Self::Cookie(name) => {
                let mut cookies = headers("cookie").flat_map(|all| all.split(|byte| *byte == b';'));
                cookies.find_map(|cookie| {
                    cookie.trim_ascii().strip_prefix(name.as_bytes())?.strip_prefix(b"=")
                })
            }
        }
    }
}

impl SessionIds {
    /// Creates the ids of a session without agents.
    pub fn plain(id: u64) -> Self {
        Self { root: id, parent: id, own: id }
    }
}

fn is_name(value: &[u8]) -> bool {
    (1..=MAX_NAME).contains(&value.len())
}

fn text_of(spec: &ScorerSpec, param: &str) -> Option<String> {
    spec.params.iter().find_map(|(name, value)| match value {
        Value::Text(text) if name == param => Some(text.clone()),
        Value::Text(_) | Value::Number(_) => None,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(headers: &[(&str, &str)], body: &str, key: Option<&str>) -> Option<SessionIds> {
        read_by(&SessionField::Header(SESSION_HEADER.to_owned()), headers, body, key)
    }

    fn read_by(
        field: &SessionField,
        headers: &[(&str, &str)],
        body: &str,
        key: Option<&str>,
    ) -> Option<SessionIds> {
        let values = |name: &str| {
            let found = headers.iter().filter(|(one, _)| *one == name);
            found.map(|(_, value)| value.as_bytes()).collect::<Vec<_>>().into_iter()
        };
        field.read(&SessionNames { headers: values, body: body.as_bytes(), key })
    }

    #[test]
    fn first_source_that_names_a_session_counts() {
        let plain = |name: &str| Some(SessionIds::plain(xxh3_64(name.as_bytes())));
        let mut headers: Vec<(&str, &str)> = Vec::new();
        assert_eq!(read(&headers, "", None), None);
        assert_eq!(read(&headers, "b", None), plain("b"));
        for name in HEADERS.iter().rev() {
            headers.push((name, name));
            assert_eq!(read(&headers, "b", None), plain(name), "{name}");
        }
        let field = SessionField::Header("x-chat".to_owned());
        assert_eq!(read_by(&field, &headers, "b", None), plain(SESSION_HEADER));
        headers.push(("x-chat", "c"));
        assert_eq!(read_by(&field, &headers, "b", None), plain("c"));
        let cookie = SessionField::Cookie("sid".to_owned());
        headers.push(("cookie", "a=1; sid=d"));
        assert_eq!(read_by(&cookie, &headers, "b", None), plain("d"));
    }

    #[test]
    fn empty_and_endless_names_name_none() {
        let long = "x".repeat(MAX_NAME + 1);
        assert_eq!(read(&[("x-session-id", "")], "", None), None);
        assert_eq!(read(&[("x-session-id", &long)], &long, None), None);
        let next = read(&[("x-session-id", &long), ("session-id", "a")], "", None);
        assert_eq!(next, Some(SessionIds::plain(xxh3_64(b"a"))));
    }

    #[test]
    fn session_belongs_to_its_key() {
        let of = |key| read(&[("x-session-id", "a")], "", key).unwrap().root;
        assert_ne!(of(Some("team-a")), of(Some("team-b")));
        assert_ne!(of(Some("team-a")), of(None));
        assert_eq!(of(Some("team-a")), of(Some("team-a")));
    }

    #[test]
    fn agents_know_their_session_and_who_started_them() {
        let claude = |agent: Option<&str>, parent: Option<&str>| {
            let mut headers = vec![(CLAUDE_SESSION, "s")];
            headers.extend(agent.map(|agent| (CLAUDE_AGENT, agent)));
            headers.extend(parent.map(|parent| (CLAUDE_PARENT, parent)));
            read(&headers, "", None).unwrap()
        };
        let (main, sub, below) =
            (claude(None, None), claude(Some("1"), None), claude(Some("2"), Some("1")));
        assert_eq!(main, SessionIds::plain(main.root));
        assert_eq!((sub.root, sub.parent), (main.root, main.own));
        assert_eq!((below.root, below.parent), (main.root, sub.own));
        assert!(sub.own != main.own && below.own != sub.own);
        let other =
            |id, parent| read(&[("x-session-affinity", id), (PARENT_HEADER, parent)], "", None);
        let (first, second) = (other("a", "").unwrap(), other("b", "a").unwrap());
        assert_eq!((second.root, second.parent), (first.own, first.own));
    }
}
