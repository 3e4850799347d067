//! Warnings of a configuration: valid settings that are probably mistakes.

use std::fmt;

use penstock_api::escape;
use penstock_api::units::ByteSize;

use super::source_place::{MAX_MESSAGE, SourcePlace};
use super::suggest::did_you_mean;

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
pub enum Warning {
    #[error(
        "UNKNOWN STRATEGY '{given}' in '{key}', using 'smart' (known: {known}){}",
        did_you_mean(suggestion.as_deref())
    )]
    UnknownStrategy { key: String, given: String, suggestion: Option<String>, known: String },
    #[error("preset '{preset}': {warning}")]
    Preset { preset: &'static str, warning: &'static str },
    #[error("'{section}.scorers': {warning}")]
    Scorers { section: &'static str, warning: &'static str },
    #[error(
        "'{section}.{key}' has no effect: '{section}.strategy' is '{strategy}', not '{needed}'"
    )]
    OtherStrategy {
        section: &'static str,
        key: &'static str,
        strategy: &'static str,
        needed: &'static str,
    },
    #[error(
        "'{key}' has another program's syntax for a variable and is used as it stands: write \
         `${{{name}}}`, or name a file in '{key}_file'"
    )]
    ForeignVariable { key: String, name: String },
    #[error(
        "the file of '{key}' has a variable, and files are used as they stand: write the secret \
         itself into it"
    )]
    VariableInSecretFile { key: String },
    #[error(
        "'{key}' has a part of the header that carries it: leave out 'Bearer' and the header's name"
    )]
    SchemeInSecret { key: String },
    #[error("key '{key}' expired at {at}: its requests are refused")]
    ExpiredKey { key: String, at: String },
    #[error("'queue.{key}' has no effect: no request waits without 'queue.size'")]
    NoQueue { key: &'static str },
    #[error(
        "'routing.move_waiting' has no effect: it needs predictions (the strategy slo, or 'routing.predict')"
    )]
    MovesWithoutPredictions,
    #[error("'routing.cooldown.default' is {default}, above 'routing.cooldown.max': {max} applies")]
    LongCooldown { default: String, max: String },
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
    #[error("'routing.default_model' names '{model}', which no backend serves")]
    UnknownDefaultModel { model: String },
    #[error("key '{key}' lists the model '{model}', which no backend serves")]
    UnknownKeyModel { key: String, model: String },
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
    #[error("{owner} names the zone '{zone}': no backend is in it{}", did_you_mean(suggestion.as_deref()))]
    UnknownZone { owner: String, zone: String, suggestion: Option<String> },
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
        "every backend has 'drain: true' or 'weight: 0': requests are refused until the admin port \
         resumes one"
    )]
    AllDrained,
    #[error(
        "backend '{backend}' lists the model '{model}': names of models are exact, and * and ? stand \
         for nothing else"
    )]
    PatternAsModel { backend: String, model: String },
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
