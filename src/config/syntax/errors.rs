//! What can be wrong with a configuration, and where: every fault names the file, line and column
//! (or the environment variable, or the flag) it comes from.

use std::fmt;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Arc;

use crate::units::{ByteSize, UnitError};

/// Why a configuration was refused.
#[derive(Debug, thiserror::Error)]
pub enum ConfigError {
    /// The file could not be read.
    #[error("cannot read {}: {source}", path.display())]
    Unreadable {
        /// The file.
        path: PathBuf,
        /// What the system said.
        source: std::io::Error,
    },
    /// The text is not YAML.
    #[error("{place}: {}", without_position(source))]
    Syntax {
        /// Where the parser stopped.
        place: Place,
        /// What the parser said.
        source: Box<serde_saphyr::Error>,
    },
    /// The YAML does not describe a penstock.
    #[error("{}", join_lines(faults))]
    Invalid {
        /// Every fault found, in the order of the file.
        faults: Vec<Fault>,
    },
}

/// The parser's message; the position it ends in is in front already.
pub(crate) fn without_position(source: &serde_saphyr::Error) -> String {
    let message = source.to_string();
    let Some(location) = source.location() else { return message };
    let position = format!(" at line {}, column {}", location.line(), location.column());
    message.strip_suffix(&position).map_or(message.clone(), str::to_owned)
}

fn join_lines(faults: &[Fault]) -> String {
    faults.iter().map(Fault::to_string).collect::<Vec<_>>().join("\n")
}

/// Where a value was written.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub enum Place {
    /// In the file.
    File {
        /// Line, from 1.
        line: u64,
        /// Column, from 1.
        column: u64,
        /// The file's name as it was given.
        file: Arc<str>,
    },
    /// In an environment variable.
    Variable(String),
    /// On the command line. What is wrong there names the setting itself.
    CommandLine,
}

impl fmt::Display for Place {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::File { file, line, column } => write!(out, "{file}:{line}:{column}"),
            Self::Variable(name) => out.write_str(name),
            Self::CommandLine => out.write_str("command line"),
        }
    }
}

/// One thing wrong, and where.
#[derive(Debug)]
pub struct Fault {
    /// Where it was written.
    pub place: Place,
    /// What is wrong with it.
    pub problem: Problem,
}

impl fmt::Display for Fault {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(out, "{}: {}", self.place, self.problem)
    }
}

/// What is wrong with a value. Keys are given as paths: `routing.weights`, `backends[2].url`.
#[derive(Debug, thiserror::Error)]
#[expect(missing_docs, reason = "each variant is described by its message")]
pub enum Problem {
    #[error("unknown key '{key}'{}{}", within(section), suggest(suggestion.as_deref()))]
    UnknownKey { key: String, section: String, suggestion: Option<String> },
    #[error("missing key '{key}'{}", within(section))]
    MissingKey { key: String, section: String },
    #[error("unknown variable: no setting is called so{}", suggest(suggestion.as_deref()))]
    UnknownVariable { suggestion: Option<String> },
    #[error(
        "no backends: list at least one under 'backends', as in `backends: [http://host:8000]`"
    )]
    NoBackends,
    #[error("'{key}' is {found}: expected {expected}")]
    WrongKind { key: String, found: &'static str, expected: String },
    #[error("'{key}' is '{given}': expected {expected}")]
    WrongValue { key: String, given: String, expected: String },
    #[error("unknown value '{given}' of '{key}'{} (known: {known})", suggest(suggestion.as_deref()))]
    UnknownValue { key: String, given: String, suggestion: Option<String>, known: String },
    #[error("'{key}': {reason}")]
    Scoring { key: String, reason: String },
    #[error("give either '{section}.scorers' or '{section}.preset', not both")]
    ScorersAndPreset { section: &'static str },
    #[error("'{key}': {source}")]
    Unit { key: String, source: UnitError },
    #[error("'{key}': {source}")]
    Url { key: String, source: UrlError },
    #[error("the environment variable '{name}' is not set; `${{{name}:-value}}` gives a default")]
    UnsetVariable { name: String },
    #[error(
        "'{given}' is not a variable: write `${{NAME}}`, `${{NAME:-default}}` or `$${{` for a plain `${{`"
    )]
    MalformedVariable { given: String },
    #[error("'{key}': {source}")]
    Secret { key: String, source: SecretError },
    #[error("'{key}': cannot read {}: {source}", path.display())]
    SecretFile { key: String, path: PathBuf, source: std::io::Error },
    #[error("'{section}' has both '{key}' and '{key}_file': keep one")]
    SecretTwice { section: String, key: &'static str },
    #[error("'admin.listen' is {listen}, which others can reach: set 'admin.token_file'")]
    AdminNeedsToken { listen: SocketAddr },
    #[error("{address} is listened on twice")]
    ListenTwice { address: String },
    #[error("'proxy_protocol' needs 'server.trusted_proxies': nobody else may connect")]
    NoTrustedProxies,
    #[error("'client_certificates' needs a 'client_ca' that signs them")]
    NoClientCa,
    #[error("'{key}': {source}")]
    Tls { key: String, source: crate::tls::TlsError },
    #[error("backend '{name}' has 'tls' and a URL that does not begin with https://")]
    TlsWithoutHttps { name: String },
    #[error("the client keys '{first}' and '{second}' are the same")]
    ClientKeyTwice { first: String, second: String },
    #[error("'{section}.weights' sum to {sum}, they must sum to 100")]
    WeightSum { section: &'static str, sum: u64 },
    #[error("'routing.aliases' has a cycle: {}", cycle.join(" -> "))]
    AliasCycle { cycle: Vec<String> },
    #[error("'{low}' is larger than '{high}'")]
    OutOfOrder { low: String, high: String },
    #[error("backend '{name}' is listed twice")]
    BackendTwice { name: String },
    #[error("{count} backends are listed, at most {limit} are supported")]
    TooManyBackends { count: usize, limit: usize },
    #[error("model '{id}' is listed twice in backend '{backend}'")]
    ModelTwice { id: String, backend: String },
    #[error("backend '{name}' has 'authorization: replace' and no 'api_key' to replace with")]
    NothingToReplaceWith { name: String },
}

/// Why a text cannot be a secret.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum SecretError {
    /// It has no length: comparing with it would let everybody in.
    #[error("the secret is empty")]
    Empty,
    /// It could not be sent in an HTTP header.
    #[error("the secret holds characters that no HTTP header can carry")]
    NotPrintable,
}

/// Why a text is not the address of a backend.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[expect(missing_docs, reason = "each variant is described by its message")]
pub enum UrlError {
    #[error("'{given}' is not a URL: write http://host:port or https://host")]
    Malformed { given: String },
    #[error("the URL must start with http:// or https://")]
    Scheme,
    #[error("the URL holds a user or password: use 'api_key'")]
    Credentials,
    #[error("the URL must not have a query or fragment")]
    Query,
    #[error("port 0 cannot be connected to")]
    Port,
}

fn within(section: &str) -> String {
    if section.is_empty() { String::new() } else { format!(" in '{section}'") }
}

fn suggest(suggestion: Option<&str>) -> String {
    suggestion.map_or_else(String::new, |word| format!(": did you mean '{word}'?"))
}

/// Something a configuration may hold and probably should not.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ConfigWarning {
    /// Where it was written.
    pub place: Place,
    /// What is odd about it.
    pub warning: Warning,
}

impl fmt::Display for ConfigWarning {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(out, "{}: {}", self.place, self.warning)
    }
}

/// What is odd about a value that is accepted all the same.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[expect(missing_docs, reason = "each variant is described by its message")]
pub enum Warning {
    #[error(
        "UNKNOWN STRATEGY '{given}' in '{key}', using 'smart' (known: {known}){}",
        suggest(suggestion.as_deref())
    )]
    UnknownStrategy { key: String, given: String, suggestion: Option<String>, known: String },
    #[error("preset '{preset}': {warning}")]
    Preset { preset: &'static str, warning: &'static str },
    #[error("'{section}.scorers': {warning}")]
    Scorers { section: &'static str, warning: &'static str },
    #[error(
        "'{section}.{key}' has no effect: '{section}.strategy' is '{strategy}', not 'weighted'"
    )]
    NotWeighted { section: &'static str, key: &'static str, strategy: &'static str },
    #[error(
        "'{section}.strategy' is 'weighted', but telemetry is off: the load is penstock's own \
         requests in flight, and no engine's KV cache or adapters are known"
    )]
    Blind { section: &'static str },
    #[error(
        "'{section}.prefix_memory' is {given}, less than the {least} that one long prompt takes: \
         hardly anything will be known of what is cached where"
    )]
    LittlePrefixMemory { section: &'static str, given: ByteSize, least: ByteSize },
    #[error("scorers there ask for the strategy 'weighted', in the place of '{given}'")]
    ScorersAsk { given: String },
    #[error("alias '{alias}' takes {hops} hops; resolution stops after {limit}, at '{reached}'")]
    LongAliasChain { alias: String, hops: usize, limit: usize, reached: String },
    #[error("alias '{alias}' hides the model '{alias}' of backend '{backend}': aliases go first")]
    AliasHidesModel { alias: String, backend: String },
    #[error(
        "alias '{alias}' leads to '{target}', which no backend serves and no fallback replaces"
    )]
    DeadAlias { alias: String, target: String },
    #[error("no backend serves '{model}', for which 'models' has settings")]
    UnknownModel { model: String },
    #[error("the fallback chain of '{model}' is empty, which is the same as none")]
    EmptyFallback { model: String },
    #[error("the fallback chain of '{model}' names '{fallback}', which no backend serves")]
    UnknownFallback { model: String, fallback: String },
    #[error("no backend serves any model in the fallback chain of '{model}'")]
    DeadFallback { model: String },
    #[error("the fallback chain of alias '{alias}' is never used: that of '{target}' goes first")]
    ShadowedFallback { alias: String, target: String },
    #[error("the fallback chain of '{model}' leads back to itself by '{fallback}'")]
    SelfFallback { model: String, fallback: String },
    #[error(
        "backends '{first}' and '{second}' have the same URL: both would count one engine's load"
    )]
    SameUrl { first: String, second: String },
}
