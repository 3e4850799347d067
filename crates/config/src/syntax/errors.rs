//! Errors and warnings of a configuration. Each one has a position: file, line and column, or the
//! environment variable, or the command line.

use std::fmt;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Arc;

use penstock_api::units::{ByteSize, UnitError};
use penstock_api::{MAX_NAME, escape};
use serde_saphyr::{MessageFormatter, UserMessageFormatter};

/// The longest message, in bytes: messages quote the file.
const MAX_MESSAGE: usize = 1024;

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
    /// The text is not YAML.
    #[error("{place}: {}", explained(*cause, source))]
    Syntax {
        /// The position where the parser stopped, or of the line that misled it.
        place: SourcePlace,
        cause: Option<SyntaxCause>,
        source: Box<serde_saphyr::Error>,
    },
    /// The settings are invalid.
    #[error("{}", join_lines(faults))]
    Invalid {
        /// Every error found, in the order of the file.
        faults: Vec<Fault>,
        /// The warnings about the valid settings.
        warnings: Vec<ConfigWarning>,
    },
}

/// The usual cause of a syntax error, and the remedy. The parser names the broken rule of YAML,
/// which does not help people who write a file by example.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[expect(missing_docs, reason = "each variant is described by its message")]
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

fn join_lines(faults: &[Fault]) -> String {
    faults.iter().map(Fault::to_string).collect::<Vec<_>>().join("\n")
}

/// The place where a value was written.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub enum SourcePlace {
    File {
        /// Line, from 1.
        line: u64,
        /// Column, from 1.
        column: u64,
        /// The name of the file as it was given.
        file: Arc<str>,
    },
    /// In an environment variable.
    Variable(String),
    /// On the command line. The message names the setting.
    CommandLine,
}

impl fmt::Display for SourcePlace {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::File { file, line, column } => {
                write!(out, "{}:{line}:{column}", escape(file, MAX_MESSAGE))
            }
            Self::Variable(name) => out.write_str(&escape(name, MAX_NAME)),
            Self::CommandLine => out.write_str("command line"),
        }
    }
}

/// An error and its position.
#[derive(Debug)]
pub struct Fault {
    /// The place of the error.
    pub place: SourcePlace,
    pub problem: Problem,
}

impl fmt::Display for Fault {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(out, "{}: {}", self.place, escape(&self.problem.to_string(), MAX_MESSAGE))
    }
}

/// An error in a setting. Keys are paths: `routing.weights`, `backends[2].url`.
#[derive(Debug, thiserror::Error)]
#[expect(missing_docs, reason = "each variant is described by its message")]
pub enum Problem {
    #[error("unknown key '{key}'{}{}", within(section), suggest_any(suggestions))]
    UnknownKey { key: String, section: String, suggestions: Vec<String> },
    #[error("missing key '{key}'{}", within(section))]
    MissingKey { key: String, section: String },
    #[error("unknown environment variable: no such setting{}", suggest(suggestion.as_deref()))]
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
        "invalid variable '{given}': write `${{NAME}}`, `${{NAME:-default}}`, or `$${{` for a literal `${{`"
    )]
    MalformedVariable { given: String },
    #[error("'{key}': {source}")]
    Secret { key: String, source: SecretError },
    #[error("'{key}': cannot read {}: {source}", path.display())]
    SecretFile { key: String, path: PathBuf, source: std::io::Error },
    #[error("'{key}': {}: {source}", path.display())]
    Prompt { key: String, path: PathBuf, source: PromptError },
    #[error("'{section}' sets both '{key}' and '{key}_file': remove one")]
    SecretTwice { section: String, key: &'static str },
    #[error("'admin.listen' is {listen}, which is not loopback: 'admin.token_file' is required")]
    AdminNeedsToken { listen: SocketAddr },
    #[error("duplicate listen address {address}")]
    ListenTwice { address: String },
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
    #[error("'routing.passthrough' sends '{path}' to '{given}', which is neither a backend nor 'by-model'{}", suggest(suggestion.as_deref()))]
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
#[expect(missing_docs, reason = "each variant is described by its message")]
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
#[expect(missing_docs, reason = "each variant is described by its message")]
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

fn suggest(suggestion: Option<&str>) -> String {
    suggestion.map_or_else(String::new, |word| format!(": did you mean '{word}'?"))
}

fn suggest_any(suggestions: &[String]) -> String {
    let quoted: Vec<String> = suggestions.iter().map(|one| format!("'{one}'")).collect();
    match quoted.as_slice() {
        [] => String::new(),
        quoted => format!(": did you mean {}?", quoted.join(" or ")),
    }
}

/// A warning and its position: a valid setting that is probably a mistake.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ConfigWarning {
    /// The place of the setting.
    pub place: SourcePlace,
    pub warning: Warning,
}

impl fmt::Display for ConfigWarning {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(out, "{}: {}", self.place, escape(&self.warning.to_string(), MAX_MESSAGE))
    }
}

/// A warning about a valid setting that is probably a mistake.
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
        "'routing.move_waiting' has no effect: it needs predictions (the strategy slo, or 'routing.predict')"
    )]
    MovesWithoutPredictions,
    #[error(
        "'{section}.strategy' is 'weighted', but telemetry is off: load is penstock's own requests \
         in flight, and KV cache usage and adapters of engines are unknown"
    )]
    Blind { section: &'static str },
    #[error(
        "'{section}.prefix_memory' is {given}, but one long prompt takes {least}: the prefix index \
         is too small to find cached prompts"
    )]
    LittlePrefixMemory { section: &'static str, given: ByteSize, least: ByteSize },
    #[error("scorers select the strategy 'weighted' instead of '{given}'")]
    ScorersSelectWeighted { given: String },
    #[error("alias '{alias}' takes {hops} hops; resolution stops after {limit} at '{reached}'")]
    LongAliasChain { alias: String, hops: usize, limit: usize, reached: String },
    #[error(
        "alias '{alias}' hides the model of that name on backend '{backend}': aliases take precedence"
    )]
    AliasHidesModel { alias: String, backend: String },
    #[error(
        "alias '{alias}' resolves to '{target}', which no backend serves and which has no fallback"
    )]
    DeadAlias { alias: String, target: String },
    #[error("'models' has settings for '{model}', which no backend serves")]
    UnknownModel { model: String },
    #[error("the ensemble of '{model}' has the member '{member}', which no backend serves")]
    UnknownMember { model: String, member: String },
    #[error("the fallback chain of '{model}' is empty")]
    EmptyFallback { model: String },
    #[error("the fallback chain of '{model}' names '{fallback}', which no backend serves")]
    UnknownFallback { model: String, fallback: String },
    #[error("no backend serves any model in the fallback chain of '{model}'")]
    DeadFallback { model: String },
    #[error("the fallback chain of alias '{alias}' is unused: that of '{target}' takes precedence")]
    ShadowedFallback { alias: String, target: String },
    #[error("the fallback chain of '{model}' contains the model itself, as '{fallback}'")]
    SelfFallback { model: String, fallback: String },
    #[error("'budgets' is set, and no model has a price: nothing is spent")]
    NoPrices,
    #[error("budget '{budget}' is per {per}, and no client key has one: it counts nothing")]
    BudgetWithoutClients { budget: String, per: &'static str },
    #[error("budget '{budget}' gives requests the model '{model}', which no backend serves")]
    UnknownBudgetModel { budget: String, model: String },
    #[error("budget '{budget}' limits requests to zones in which there is no backend")]
    NoBudgetZone { budget: String },
    #[error(
        "requests that 'routing.passthrough' forwards are not read: budgets do not count their \
         tokens, and refuse them once they are spent"
    )]
    UncountedPassthrough,
    #[error("policy '{policy}' restricts nothing: set zones, min_tier or quality")]
    EmptyPolicy { policy: String },
    #[error("policy '{policy}' has a tier_mode and no min_tier")]
    NoTier { policy: String },
    #[error(
        "policy '{policy}' has a quality without bounds: set max_error_share, max_ttft or max_tpot"
    )]
    NoBounds { policy: String },
    #[error("policy '{policy}' names the zone '{zone}': no backend is in it{}", suggest(suggestion.as_deref()))]
    UnknownZone { policy: String, zone: String, suggestion: Option<String> },
    #[error("no backend meets policy '{policy}': its requests are refused")]
    UnsatisfiedPolicy { policy: String },
    #[error("no policy is about model '{model}': its requests may go anywhere")]
    NoPolicy { model: String },
    #[error(
        "fallback '{fallback}' of '{model}' is never used under policy '{policy}': no backend of it is \
         in a zone of that"
    )]
    FallbackOutside { model: String, fallback: String, policy: String },
    #[error("'backends' is empty: every model is unknown until a reload adds a backend")]
    NoBackends,
    #[error(
        "backend '{backend}' has the address of the {port} port, {address}: its requests would return \
         to this process"
    )]
    SelfLoop { backend: String, port: &'static str, address: String },
    #[error(
        "backends '{first}' and '{second}' have the same URL: the engine's load is counted twice"
    )]
    SameUrl { first: String, second: String },
    #[error(
        "the URL has the path of an endpoint, '{path}', which penstock appends itself: write '{base}'"
    )]
    EndpointUrl { path: String, base: String },
    #[error(
        "the URL of backend '{backend}' has the name of a service, '{host}': SRV records are looked up \
         with 'srv: {host}'"
    )]
    ServiceHost { backend: String, host: String },
}
