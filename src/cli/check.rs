//! `penstock check`: loads a configuration and builds everything that a start builds, without
//! opening a port or connecting to a backend.

use clap::Args;
use penstock_api::units::{Timestamp, show_duration};
use penstock_api::{escape, show_names};
use penstock_config::{
    BackendConfig, BudgetConfig, BudgetPeriod, BudgetScope, CertificateName, Config, Listener,
    ModelGlob, PolicyConfig, RoutingConfig, Strategy,
};
use penstock_core::fleet::Model;
use penstock_core::routing::{Generation, Split};

use super::error::{CliError, USAGE};
use super::output::Output;
use super::source::ConfigArgs;
use crate::key_store::KeyStore;
use crate::observe::access_log::AccessLog;
use crate::observe::ledger::Ledger;
use crate::server::ServerError;

const AFTER_HELP: &str = "\
Prints all errors and warnings with file:line:column on standard error, and a summary on standard
output. Opens no port and connects to no backend.

Exit codes: 0 valid (with or without warnings), 2 invalid.";

/// The longest line of the summary, in bytes.
const MAX_LINE: usize = 8192;
/// The maximum number of models in a line.
const MAX_SHOWN_MODELS: usize = 20;

#[derive(Debug, Args)]
#[command(after_help = AFTER_HELP)]
pub(super) struct CheckArgs {
    #[command(flatten)]
    config: ConfigArgs,
}

pub(super) fn run(args: &CheckArgs, output: &mut Output) -> Result<(), CliError> {
    let config = args.config.load_and_warn(output)?;
    config.check_folders()?;
    if let Err(error) = Ledger::check(&config.ledger) {
        // Only a warning: counts stay in memory until the file can be used.
        output.complain("warning", format_args!("ledger.path: {error}"));
    }
    if let Some(path) = &config.auth.store {
        // An error, unlike the ledger: a process does not start without its keys.
        KeyStore::check(path).map_err(|source| ServerError::key_store(path, source))?;
    }
    AccessLog::check(&config.access_log)
        .map_err(|error| CliError::Command { code: USAGE, error: Box::new(error) })?;
    let generation = Generation::new(config);
    output.line(format!("config      {} is valid", args.config.path()?.display()))?;
    for line in summarize(&generation) {
        output.line(escape(&line, MAX_LINE))?;
    }
    Ok(())
}

fn summarize(generation: &Generation) -> Vec<String> {
    let config = &generation.config;
    let mut lines = vec![
        format!("listen      {}", listeners(config)),
        format!("strategy    {}", with_reason(&config.routing, config.routing.strategy_reason)),
    ];
    lines.extend(chosen_strategies(generation));
    lines.extend(config.routing.shadow.as_ref().map(|shadow| {
        let tried_out = strategy(&config.routing.tried_out(shadow));
        format!("shadow      {tried_out}, sample {}", shadow.sample)
    }));
    let width = |text: fn(&BackendConfig) -> usize| config.backends.iter().map(text).max();
    let name = width(|backend| backend.name.chars().count()).unwrap_or(0);
    let url = width(|backend| backend.url.to_string().len()).unwrap_or(0);
    lines.push(format!("backends    {}", config.backends.len()));
    lines.extend(config.backends.iter().map(|backend| {
        let address = backend.url.to_string();
        let models = models(config, backend);
        format!("  {:name$}  {address:url$}  {models}{}", backend.name, members(backend))
    }));
    let names = &generation.router.names;
    let splits = names.splits().chain(names.patterns());
    let splits = splits.map(|(alias, split)| (alias, shares(split)));
    let mut aliases: Vec<(&str, String)> =
        names.aliases().map(|(alias, target)| (alias, target.to_owned())).chain(splits).collect();
    // They come from three tables, and people look for a name.
    aliases.sort_unstable();
    lines.push(format!("aliases     {}", aliases.len()));
    lines.extend(aliases.iter().map(|(alias, target)| format!("  {alias} -> {target}")));
    lines.push(format!("fallbacks   {}", config.routing.fallbacks.len()));
    for (model, chain) in config.routing.fallbacks.iter() {
        lines.push(format!("  {model} -> {}", chain.join(", ")));
    }
    lines.push(format!("policies    {}", config.policies.len()));
    lines.extend(config.policies.iter().map(policy));
    lines.push(format!("budgets     {}", config.budgets.len()));
    lines.extend(config.budgets.iter().map(|one| budget(one, config)));
    lines.push(format!("keys        {}", keys(config)));
    lines.push(format!("warnings    {}", config.warnings.len()));
    lines
}

/// Returns the models that an alias leads to, with their weights if there are several.
fn shares(split: Split<'_>) -> String {
    let branches: Vec<(&str, u32)> = split.branches().collect();
    if let [(model, _)] = branches.as_slice() {
        return (*model).to_owned();
    }
    let shares = branches.iter().map(|(model, weight)| format!("{model} {weight}"));
    shares.collect::<Vec<_>>().join(", ")
}

/// Returns the models and clients of a policy, and the places that it admits.
fn policy(policy: &PolicyConfig) -> String {
    let models = globs(&policy.models).map(|models| format!(", models {models}"));
    let zones = (!policy.zones.is_empty()).then(|| format!(", zones {}", policy.zones.join(", ")));
    let tier = policy
        .min_tier
        .map(|tier| format!(", tier {} or higher ({})", tier.number(), policy.tier_mode.name()));
    let quality = policy.quality.as_ref().map(|_| ", by quality".to_owned());
    let clients = clients(&policy.keys, &policy.teams);
    let all = [models, zones, tier, quality].into_iter().flatten();
    format!("  {}: {clients}{}", policy.name, all.collect::<String>())
}

/// Returns the amount and the clients of a budget, and what happens without room.
fn budget(budget: &BudgetConfig, config: &Config) -> String {
    let currency = config.currency().map(|name| format!(" {name}")).unwrap_or_default();
    let every = match budget.every {
        BudgetPeriod::Day => "day".to_owned(),
        BudgetPeriod::Week => "week".to_owned(),
        BudgetPeriod::Month => "month".to_owned(),
        BudgetPeriod::Rolling(time) => show_duration(time),
    };
    let per = match budget.per {
        BudgetScope::Everything => "for everything",
        BudgetScope::Team => "for each team",
        BudgetScope::Key => "for each key",
    };
    let then = match &budget.model {
        Some(model) => format!("then the model '{model}'"),
        None if budget.zones.is_empty() => "then refused".to_owned(),
        None => format!("then what is free in {}", budget.zones.join(", ")),
    };
    let BudgetConfig { name, amount, keys, teams, .. } = budget;
    let clients = clients(keys, teams);
    format!("  {name}: {amount}{currency} per {every} {per}, {clients}, {then}")
}

fn clients(keys: &[ModelGlob], teams: &[ModelGlob]) -> String {
    let keys = globs(keys).map(|keys| format!("keys {keys}"));
    let teams = globs(teams).map(|teams| format!("teams {teams}"));
    let all: Vec<String> = keys.into_iter().chain(teams).collect();
    if all.is_empty() { "all clients".to_owned() } else { all.join(" and ") }
}

fn globs(globs: &[ModelGlob]) -> Option<String> {
    (!globs.is_empty()).then(|| show_names(globs.iter().map(ModelGlob::as_str), MAX_SHOWN_MODELS))
}

fn listeners(config: &Config) -> String {
    let data: Vec<String> = config.server.listen.iter().map(Listener::describe).collect();
    let admin = config.admin.listen.map_or_else(|| "off".to_owned(), |admin| admin.to_string());
    format!("{}, admin {admin}", data.join(", "))
}

fn strategy(routing: &RoutingConfig) -> String {
    let weights = &routing.weights;
    let name = routing.strategy.name();
    match routing.strategy {
        Strategy::Smart => format!(
            "{name} (priority {}, load {}, latency {})",
            weights.priority, weights.load, weights.latency
        ),
        Strategy::Slo => format!("{name} (prefer {})", routing.prefer.name()),
        Strategy::Weighted => {
            let scorers = routing.scorer_specs();
            let scorers: Vec<String> =
                scorers.iter().map(|one| format!("{} {}", one.name, one.weight)).collect();
            let preset = routing.preset_name().map(|preset| format!(", preset {preset}"));
            let preset = preset.unwrap_or_default();
            format!("{name}{preset} ({}; {})", scorers.join(", "), routing.picker.name())
        }
        // The other pickers have no parameters.
        _ => name.to_owned(),
    }
}

/// Returns the strategy with the reason for it, if there is one.
fn with_reason(routing: &RoutingConfig, reason: Option<&str>) -> String {
    let strategy = strategy(routing);
    match reason {
        Some(reason) => format!("{strategy}, because {reason}"),
        None => strategy,
    }
}

/// Returns the strategies that `auto` selects, as far as the configuration determines them:
/// discovery finds more models.
fn chosen_strategies(generation: &Generation) -> Vec<String> {
    let config = &generation.config;
    if config.routing.strategy != Strategy::Auto {
        return Vec::new();
    }
    let topology = generation.fleet.topology();
    let of = |model: &Model| {
        // Without a running process nothing is learned: time does not matter.
        let chosen = generation.router.chosen_strategy(model, Timestamp(0));
        let routing = RoutingConfig { strategy: chosen.strategy, ..config.routing.clone() };
        format!("  {}: {}", model.name, with_reason(&routing, chosen.reason))
    };
    let all = topology.models();
    let mut lines: Vec<String> = all.iter().take(MAX_SHOWN_MODELS).map(of).collect();
    if !lines.is_empty() && all.len() > MAX_SHOWN_MODELS {
        lines.push(format!("  and {} more", all.len() - MAX_SHOWN_MODELS));
    }
    let is_discovered =
        config.discovery.enabled && config.backends.iter().any(|one| one.models.is_none());
    if is_discovered {
        lines.push("  models by discovery: each gets its own once found, see /fleet".to_owned());
    }
    lines
}

fn models(config: &Config, backend: &BackendConfig) -> String {
    match &backend.models {
        Some(models) if models.is_empty() => "no models".to_owned(),
        Some(models) => show_names(models.iter().map(|model| model.id.as_str()), MAX_SHOWN_MODELS),
        None if config.discovery.enabled => "models by discovery".to_owned(),
        None => "no models: none are listed and discovery is off".to_owned(),
    }
}

/// Returns the backends that the addresses of a name become; check resolves no names.
fn members(backend: &BackendConfig) -> String {
    match &backend.srv {
        _ if !backend.is_group() => String::new(),
        Some(name) => format!("; a backend for each SRV record of {name}"),
        None => format!("; a backend for each address of {}", backend.url.host),
    }
}

fn keys(config: &Config) -> String {
    let auth = &config.auth;
    if auth.is_open() {
        return "none: the data port is open".to_owned();
    }
    let mut parts = vec![auth.keys.len().to_string()];
    parts.extend(auth.store.as_ref().map(|path| format!("those of {}", path.display())));
    parts.extend(auth.jwt.iter().map(|jwt| format!("tokens of {}", jwt.issuer)));
    if auth.client_certificates != CertificateName::Off {
        parts.push(format!("certificates by {}", auth.client_certificates.name()));
    }
    parts.join(", and ")
}
