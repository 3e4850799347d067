//! Errors of a configuration. Each one has a position: file, line and column, or the
//! environment variable, or the command line.

use std::fmt;
use std::net::SocketAddr;
use std::path::PathBuf;

use penstock_api::escape;
use penstock_api::units::UnitError;
use serde_saphyr::{MessageFormatter, UserMessageFormatter};

use super::source_place::{MAX_MESSAGE, SourcePlace};
use super::suggest::did_you_mean;
use super::warnings::ConfigWarning;

/// The reason why a configuration is invalid.
#[derive(Debug, thiserror::Error)]
pub enum ConfigError {
    /// The file could not be read.
    #[error("cannot read {}: {source}", path.display())]
    Unreadable { path: PathBuf, source: std::io::Error },
    /// The file has another encoding.
    #[error("{place}: {encoding}: save the file as UTF-8")]
    NotUtf8 {
        /// The first byte that is not UTF-8.
        place: SourcePlace,
        encoding: Encoding,
    },
    /// The text has another format.
    #[error("{place}: the file is no YAML: it looks like {format}")]
    OtherFormat {
        /// The line that shows it.
        place: SourcePlace,
        format: OtherFormat,
    },
    /// The text is not YAML.
    #[error("{place}: {}", explained(*cause, source))]
    Syntax {
        /// The position where the parser stopped, or of the line that misled it.
        place: SourcePlace,
        cause: Option<SyntaxCause>,
        source: Box<serde_saphyr::Error>,
    },
    #[error("{}", join_lines(faults))]
    Invalid {
        /// Every error found, in the order of the file.
        faults: Vec<ConfigFault>,
        /// The warnings about the valid settings.
        warnings: Vec<ConfigWarning>,
    },
}

/// A format that is not YAML, although some of its files can be read as such.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum OtherFormat {
    /// `[section]`, and `key = value` in lines.
    #[error("TOML or INI")]
    Toml,
    /// JSON with comments, which YAML writes in another way.
    #[error("JSON with comments, which start with # in YAML")]
    JsonWithComments,
}

/// The usual cause of a syntax error, and the remedy. The parser names the broken rule of YAML,
/// which does not help people who write a file by example.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum SyntaxCause {
    #[error("the line is indented with a tab: indent with spaces")]
    Tab,
    #[error(
        "wrong indentation: keys of one section start in the same column, below and right of its name"
    )]
    Indentation,
    #[error("the value contains ': ': put it in quotes")]
    Colon,
    #[error("a bracket [ or {{ above is not closed")]
    Bracket,
    #[error("a quote above is not closed")]
    Quote,
    #[error("a value that starts with '{0}' needs quotes")]
    FirstCharacter(char),
}

/// Returns the cause in plain words, followed by the parser's message.
fn explained(cause: Option<SyntaxCause>, source: &serde_saphyr::Error) -> String {
    let message = without_position(source);
    cause.map_or(message.clone(), |cause| format!("{cause} (YAML: {message})"))
}

/// Returns the parser's message without the position, which the caller shows first, and in words of
/// the file, not of the library.
pub fn without_position(source: &serde_saphyr::Error) -> String {
    let message = match source {
        serde_saphyr::Error::MultipleDocuments { .. } => {
            "a second YAML document: keep one, without the line `---` between them".into()
        }
        serde_saphyr::Error::DuplicateMappingKey { key: Some(key), .. } => {
            format!("duplicate key '{key}'").into()
        }
        serde_saphyr::Error::DuplicateMappingKey { key: None, .. } => "duplicate key".into(),
        other => UserMessageFormatter.format_message(other),
    };
    escape(&message, MAX_MESSAGE).into_owned()
}

/// An encoding that is not UTF-8.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Encoding {
    /// Two bytes per character.
    Utf16,
    /// A byte that starts no character of UTF-8, as in Latin-1.
    Byte(u8),
}

impl fmt::Display for Encoding {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Utf16 => out.write_str("the text is UTF-16, not UTF-8"),
            Self::Byte(byte) => write!(out, "byte 0x{byte:02x} is not UTF-8; it may be Latin-1"),
        }
    }
}

fn join_lines(faults: &[ConfigFault]) -> String {
    faults.iter().map(ConfigFault::to_string).collect::<Vec<_>>().join("\n")
}

/// An error and its position.
#[derive(Debug)]
pub struct ConfigFault {
    /// The place of the error.
    pub place: SourcePlace,
    pub problem: Problem,
}

impl fmt::Display for ConfigFault {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(out, "{}: {}", self.place, escape(&self.problem.to_string(), MAX_MESSAGE))
    }
}

/// The setting of a file that cannot be created: its folder does not exist, or it is a folder.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct UnusablePath {
    /// The place of the path.
    pub(crate) place: SourcePlace,
    pub(crate) key: &'static str,
    pub(crate) folder: PathBuf,
    /// If set, the path is that of a folder; otherwise the folder of the path is missing.
    pub(crate) is_there: bool,
}

/// An error in a setting. Keys are paths: `routing.weights`, `backends[2].url`.
#[derive(Debug, thiserror::Error)]
pub enum Problem {
    #[error("unknown key '{key}'{}{}", within(section), suggest_any(key, suggestions))]
    UnknownKey { key: String, section: String, suggestions: Vec<String> },
    #[error("missing key '{key}'{}", within(section))]
    MissingKey { key: String, section: String },
    #[error("unknown environment variable: no such setting{}", did_you_mean(suggestion.as_deref()))]
    UnknownVariable { suggestion: Option<String> },
    #[error("unknown environment variable: '{setting}' can be set only in the configuration file")]
    FileOnlyVariable { setting: String },
    #[error("the file is {found}: expected a mapping with `backends`, or a list of backends")]
    NotAMapping { found: &'static str },
    #[error("no backends: list at least one, such as `backends: [http://host:8000]`")]
    NoBackends,
    #[error("'{key}' is {found}: expected {expected}")]
    WrongKind { key: String, found: &'static str, expected: String },
    #[error("'{key}' is '{given}': expected {expected}")]
    WrongValue { key: String, given: String, expected: String },
    #[error("unknown value '{given}' of '{key}'{} (known: {known})", did_you_mean(suggestion.as_deref()))]
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
        "invalid variable '{given}': write `${{NAME}}`, `${{NAME:-default}}`, or `$${{` for a literal `${{`"
    )]
    MalformedVariable { given: String },
    #[error("'{key}': {source}")]
    Secret { key: String, source: SecretError },
    #[error("'{key}': cannot read {}: {source}", path.display())]
    SecretFile { key: String, path: PathBuf, source: std::io::Error },
    #[error("'{key}': the folder {} does not exist: create it, or name another", folder.display())]
    NoFolder { key: &'static str, folder: PathBuf },
    #[error("'{key}': {} is a folder: name a file in it", folder.display())]
    NoFile { key: &'static str, folder: PathBuf },
    #[error("'{key}' is the file of '{other}': name another")]
    SameFile { key: &'static str, other: &'static str },
    #[error("'{key}': {}: {source}", path.display())]
    Prompt { key: String, path: PathBuf, source: PromptError },
    #[error("'{section}' sets both '{key}' and '{key}_file': remove one")]
    SecretTwice { section: String, key: &'static str },
    #[error("'admin.listen' is {listen}, which is not loopback: 'admin.token_file' is required")]
    AdminNeedsToken { listen: SocketAddr },
    #[error("duplicate listen address {address}: it is also that of '{key}'")]
    ListenTwice { address: String, key: String },
    #[error(
        "listen address {address} overlaps with {other} of '{key}': a wildcard takes its port on every \
         address ([::] on those of IPv4 as well); change a port, or remove one"
    )]
    ListenOverlap { address: String, other: String, key: String },
    #[error("'proxy_protocol' requires 'server.trusted_proxies': other peers are rejected")]
    NoTrustedProxies,
    #[error(
        "'queue.max_backlog' requires 'queue.size' above 0 and 'routing.predict: true' (or strategy slo)"
    )]
    BacklogWithoutPrediction,
    #[error("{count} policies: at most {limit} are supported")]
    TooManyPolicies { count: usize, limit: usize },
    #[error("{count} zones: at most {limit} are supported")]
    TooManyZones { count: usize, limit: usize },
    #[error("{count} budgets: at most {limit} are supported")]
    TooManyBudgets { count: usize, limit: usize },
    #[error("'budgets' requires 'ledger.path': without it a restart would forget what was spent")]
    BudgetsWithoutLedger,
    #[error("two budgets are called '{name}'")]
    BudgetTwice { name: String },
    #[error("budget '{budget}' has zones and a model: set one of them")]
    TwoReactions { budget: String },
    #[error("prices in {first} and in {second}: all prices must have one currency")]
    TwoCurrencies { first: String, second: String },
    #[error("two policies are called '{name}'")]
    PolicyTwice { name: String },
    #[error("'client_certificates' requires 'client_ca'")]
    NoClientCa,
    #[error("'{key}': {source}")]
    Tls { key: String, source: crate::tls::TlsError },
    #[error("backend '{name}' sets 'tls', but its URL does not start with https://")]
    TlsWithoutHttps { name: String },
    #[error("'shared_state' sets 'tls', but 'redis' does not start with rediss://")]
    TlsWithoutRediss,
    #[error("client keys '{first}' and '{second}' have the same value")]
    ClientKeyTwice { first: String, second: String },
    #[error("'{section}' sets both a key and its 'hash': remove one")]
    KeyAndHash { section: String },
    #[error("'{section}' expires before it is valid: 'expires_at' is not after 'not_before'")]
    NeverValid { section: String },
    #[error("'auth.jwt' has {count} issuers, more than {limit}")]
    TooManyIssuers { count: usize, limit: usize },
    #[error("'auth.jwt[{first}]' and 'auth.jwt[{second}]' have the same 'issuer'")]
    IssuerTwice { first: usize, second: usize },
    #[error(
        "the clients of 'auth.jwt[{first}]' and 'auth.jwt[{second}]' would both be called \
         {name}/…: give one issuer a 'name'"
    )]
    IssuerNameTwice { first: usize, second: usize, name: String },
    #[error("'{section}' sets 'jwks_ca', and its 'jwks' is a file")]
    NoJwksUrl { section: String },
    #[error(
        "'auth.client_certificates' needs a listener that verifies certificates: set \
         server.listen[].tls.client_ca"
    )]
    NoVerifiedClients,
    #[error("'{section}.weights' must sum to 100, not {sum}")]
    WeightSum { section: &'static str, sum: u64 },
    #[error("'routing.aliases' has a cycle: {}", cycle.join(" -> "))]
    AliasCycle { cycle: Vec<String> },
    #[error("'routing.passthrough' has '{path}': a path starts with /")]
    PassthroughPath { path: String },
    #[error("'routing.passthrough' sends '{path}' to '{given}', which is neither a backend nor 'by-model'{}", did_you_mean(suggestion.as_deref()))]
    PassthroughTarget { path: String, given: String, suggestion: Option<String> },
    #[error("'{key}': the weights must not all be 0")]
    NoWeight { key: String },
    #[error("alias '{alias}' splits requests and leads to '{target}', which splits them again")]
    NestedSplit { alias: String, target: String },
    #[error("'{low}' must not exceed '{high}'")]
    OutOfOrder { low: String, high: String },
    #[error("duplicate backend '{name}'")]
    BackendTwice { name: String },
    #[error("too many backends: {count}, at most {limit} are supported")]
    TooManyBackends { count: usize, limit: usize },
    #[error("duplicate model '{id}' in backend '{backend}'")]
    ModelTwice { id: String, backend: String },
    #[error("backend '{name}' sets 'authorization: replace' without an 'api_key'")]
    NothingToReplaceWith { name: String },
    #[error("backend '{name}' sets 'resolve: each', but its URL has an address instead of a name")]
    NothingToResolve { name: String },
    #[error("backend '{name}' sets 'srv' and 'resolve: together': each SRV record is a backend")]
    SrvTogether { name: String },
    #[error(
        "backend '{name}' is named like an address of '{group}', which has 'resolve: each' or 'srv'"
    )]
    NamedLikeAddress { name: String, group: String },
}

/// The reason why a string is not a valid secret.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum SecretError {
    /// The secret is empty: every caller would match it.
    #[error("the secret is empty")]
    Empty,
    /// The secret is not allowed in an HTTP header.
    #[error("the secret contains characters that are not allowed in HTTP headers")]
    NotPrintable,
}

/// The reason why a file is not a valid prompt.
#[derive(Debug, thiserror::Error)]
pub enum PromptError {
    #[error("cannot read it: {0}")]
    Unreadable(std::io::Error),
    #[error("the prompt is longer than {limit} bytes")]
    TooLong { limit: usize },
    #[error("the prompt has no {{{name}}}")]
    Missing { name: &'static str },
    #[error("the prompt has {{{name}}}, which nothing fills in")]
    Unknown { name: String },
}

/// The reason why a string is not a valid backend URL.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum UrlError {
    #[error("'{given}' is not a URL: write http://host:port or https://host")]
    Malformed { given: String },
    #[error("the URL must start with http:// or https://")]
    Scheme,
    #[error("the URL contains a user or password: use 'api_key'")]
    Credentials,
    #[error("the URL must not have a query or fragment")]
    Query,
    #[error("port 0 is not a valid port")]
    Port,
}

fn within(section: &str) -> String {
    if section.is_empty() { String::new() } else { format!(" in '{section}'") }
}

fn suggest_any(key: &str, suggestions: &[String]) -> String {
    let quoted = suggestions.iter().map(|one| match one == key {
        true => format!("'{one}' at the top level"),
        false => format!("'{one}'"),
    });
    let quoted: Vec<String> = quoted.collect();
    match quoted.as_slice() {
        [] => String::new(),
        quoted => format!(": did you mean {}?", quoted.join(" or ")),
    }
}
