//! Rules across several settings. Each rule runs only if the settings that it reads are valid; the
//! document tree provides positions.

mod backends;
mod budgets;
mod clients;
mod folders;
pub(super) mod models;
mod policies;
mod soundness;

pub(super) use folders::unusable_paths;
pub(super) use soundness::Soundness;

use std::time::Duration;

use penstock_api::units::{ByteSize, show_duration};
use penstock_scoring::{Preset, Profile};

use crate::sections::Config;
use crate::sections::backends::ConnectionTls;
use crate::sections::health::HealthConfig;
use crate::sections::listener::ListenAddress;
use crate::sections::routing::RoutingConfig;
use crate::sections::shared_state::SharedStateConfig;
use crate::sections::strategy::Strategy;
use crate::sections::telemetry::TelemetryUse;
use crate::syntax::document::Node;
use crate::syntax::errors::Problem;
use crate::syntax::reader::Reader;
use crate::syntax::source_place::SourcePlace;
use crate::syntax::suggest::nearest;
use crate::syntax::warnings::Warning;
use crate::tls::ServerTls;
use backends::{check_backends, check_identity};

/// The maximum number of backends in a configuration: sets of backends are bit masks of this size.
pub const MAX_BACKENDS: usize = 1024;
/// The memory in a prefix index of one prompt of 1,024 blocks that shares no block with others.
const ONE_PROMPT: ByteSize = ByteSize::kib(64);

/// Checks `config`, which was read from `root`, as far as the settings are valid.
pub(super) fn check(config: &Config, root: &Node, sound: &Soundness, reader: &mut Reader) {
    let holds = |keys: &[&str]| keys.iter().all(|key| sound.holds_at(root, key));
    // Gets `sound`, as others below: it looks at more than one section, and skips each by itself.
    check_addresses(config, root, sound, reader);
    folders::check_same_files(config, root, sound, reader);
    if holds(&["limits"]) {
        check_limits(config, root, reader);
    }
    if holds(&["auth", "models", "objectives"]) {
        check_objectives(config, root, reader);
    }
    if holds(&["queue", "routing"]) && sound.is_complete(root.at("queue")) {
        check_queue(config, root, reader);
    }
    if holds(&["auth"]) {
        clients::check_client_keys(config, root, reader);
        clients::check_issuers(config, root, reader);
    }
    if holds(&["auth", "server"]) {
        clients::check_certificate_names(config, root, reader);
    }
    check_routing(config, root, sound, reader);
    if holds(&["telemetry", "routing"]) {
        check_telemetry(config, root, reader);
    }
    if holds(&["limits", "routing"]) {
        check_prefix_memory(config, root, reader);
    }
    if holds(&["health"]) {
        check_health(&config.health, root.at("health"), reader);
    }
    check_backends(config, root, sound, reader);
    if holds(&["shared_state"]) {
        check_redis_tls(&config.shared_state, root.at("shared_state"), reader);
    }
    if holds(&["backends", "routing", "models"]) {
        models::check(config, root, reader);
    }
    if holds(&["auth", "backends"]) {
        policies::check_keys(config, root, reader);
    }
    if holds(&["auth", "backends", "ensembles", "routing"]) {
        models::check_asked(config, root, reader);
    }
    if holds(&["backends", "models", "budgets", "ledger", "auth", "routing"]) {
        budgets::check(config, root, reader);
    }
    if holds(&["backends", "routing", "policies"]) {
        policies::check(config, root, reader);
    }
}

/// Refuses an address with two listeners, and an admin port that is open to all.
fn check_addresses(config: &Config, root: &Node, sound: &Soundness, reader: &mut Reader) {
    let mut seen = Vec::new();
    if sound.holds_at(root, "server") {
        seen = check_listeners(config, root.at("server"), sound, reader);
    }
    let Some(address) = config.admin.listen else { return };
    let admin = root.at("admin");
    if !sound.holds_at(root, "admin") {
        return;
    }
    let place = &admin.at("listen").place;
    let is_given = root.entry("admin").is_some_and(|entry| entry.node.entry("listen").is_some());
    let address_of = ListenSetting {
        key: "admin.listen".to_owned(),
        address: ListenAddress::Tcp(address),
        place: is_given.then_some(place),
    };
    check_address(address_of, &mut seen, root, reader);
    let is_open = !address.ip().is_loopback() && config.admin.token.is_none();
    // A misspelled key may be that of the token.
    if is_open && sound.is_complete(admin) {
        reader.fault(place, Problem::AdminNeedsToken { listen: address });
    }
}

/// Checks the listeners of the data port. Returns their addresses.
fn check_listeners<'a>(
    config: &Config,
    server: &'a Node,
    sound: &Soundness,
    reader: &mut Reader,
) -> Vec<ListenSetting<'a>> {
    let list = server.at("listen");
    let mut seen: Vec<ListenSetting<'a>> = Vec::new();
    for (index, listener) in config.server.listen.iter().enumerate() {
        // The default listener is not in the file.
        let item = list.items().get(index).unwrap_or(list);
        let key = match config.server.listen.len() {
            1 => "server.listen".to_owned(),
            _ => format!("server.listen[{index}]"),
        };
        let address = listener.address.clone();
        let place = server.entry("listen").map(|_| &item.at("address").place);
        check_address(ListenSetting { key, address, place }, &mut seen, server, reader);
        // A misspelled key may be the one that lists them.
        let trusts_none = config.server.trusted_proxies.is_empty() && sound.is_complete(server);
        if listener.proxy_protocol && trusts_none {
            reader.fault(item.key_place("proxy_protocol"), Problem::NoTrustedProxies);
        }
        if let Some(tls) = &listener.tls {
            if let Err(source) = ServerTls::load(&tls.files(), listener.speaks_http2()) {
                let key = format!("server.listen[{index}].tls");
                reader.fault(item.key_place("tls"), Problem::Tls { key, source });
            }
            if tls.client_ca.is_none() && item.at("tls").entry("client_certificates").is_some() {
                let place = item.at("tls").key_place("client_certificates");
                reader.fault(place, Problem::NoClientCa);
            }
        }
    }
    seen
}

/// A setting with a listen address.
struct ListenSetting<'a> {
    key: String,
    address: ListenAddress,
    /// `None` for a default, which is not in the file.
    place: Option<&'a SourcePlace>,
}

/// Refuses an address on which an earlier listener makes it impossible to listen.
fn check_address<'a>(
    own: ListenSetting<'a>,
    seen: &mut Vec<ListenSetting<'a>>,
    section: &Node,
    reader: &mut Reader,
) {
    if let Some(other) = seen.iter().find(|other| own.address.overlaps(&other.address)) {
        // At the one that the file has: the other may be a default.
        let (at, other) = if own.place.is_some() { (&own, other) } else { (other, &own) };
        let (address, key) = (at.address.to_string(), other.key.clone());
        let problem = match at.address == other.address {
            true => Problem::ListenTwice { address, key },
            false => Problem::ListenOverlap { address, key, other: other.address.to_string() },
        };
        reader.fault(at.place.unwrap_or(&section.place), problem);
    }
    seen.push(own);
}

fn check_limits(config: &Config, root: &Node, reader: &mut Reader) {
    let (body, all) = (config.limits.max_body_size, config.limits.buffered_bodies);
    // A body of the largest size could never be held.
    if body > all {
        let low = format!("limits.max_body_size: {body}");
        let high = format!("limits.buffered_bodies: {all}");
        let place = root.at("limits").key_place("buffered_bodies");
        reader.fault(place, Problem::OutOfOrder { low, high });
    }
}

/// Refuses `queue.max_backlog` without predictions or without a queue, and warns of other settings
/// of a queue that does not exist.
fn check_queue(config: &Config, root: &Node, reader: &mut Reader) {
    for key in config.queue.unused() {
        reader.warn(root.at("queue").key_place(key), Warning::NoQueue { key });
    }
    let is_limited = config.queue.max_backlog.is_some();
    if is_limited && (config.queue.size == 0 || !config.routing.predicts()) {
        let place = root.at("queue").key_place("max_backlog");
        reader.fault(place, Problem::BacklogWithoutPrediction);
    }
}

/// Refuses references to objectives that do not exist.
fn check_objectives(config: &Config, root: &Node, reader: &mut Reader) {
    let known = || config.objectives.keys().map(String::as_str);
    let keys = config.auth.keys.iter().zip(root.at("auth").at("keys").items());
    let of_keys = keys.enumerate().filter_map(|(index, (key, item))| {
        Some((format!("auth.keys[{index}].objective"), key.objective.as_deref()?, item))
    });
    let models = config.models.iter().filter_map(|(name, model)| {
        let node = root.at("models").at(name);
        Some((format!("models.{name}.objective"), model.objective.as_deref()?, node))
    });
    for (key, given, node) in of_keys.chain(models) {
        if config.objectives.contains_key(given) {
            continue;
        }
        let problem = Problem::UnknownValue {
            key,
            given: given.to_owned(),
            suggestion: nearest(given, known()).map(str::to_owned),
            known: match config.objectives.is_empty() {
                true => "none, as 'objectives' is empty".to_owned(),
                false => known().collect::<Vec<_>>().join(", "),
            },
        };
        reader.fault(node.key_place("objective"), problem);
    }
}

/// Refuses a secret that is set both inline and as a file.
fn check_spelled_once(item: &Node, section: String, key: &'static str, reader: &mut Reader) {
    let file = format!("{key}_file");
    if let (Some(_), Some(entry)) = (item.entry(key), item.entry(&file)) {
        reader.fault(&entry.place, Problem::SecretTwice { section, key });
    }
}

fn check_routing(config: &Config, root: &Node, sound: &Soundness, reader: &mut Reader) {
    let (routing, node) = (&config.routing, root.at("routing"));
    let weights = node.at("weights");
    // A misspelled weight would blame the sum.
    if sound.holds_at(node, "weights") && sound.is_complete(weights) {
        check_weights(routing, "routing", node, reader);
    }
    if !sound.holds_at(root, "routing") {
        return;
    }
    check_strategy(routing, "routing", node, reader);
    if let Some(shadow) = &routing.shadow {
        let tried_out = routing.tried_out(shadow);
        check_weights(&tried_out, "routing.shadow", node.at("shadow"), reader);
        check_strategy(&tried_out, "routing.shadow", node.at("shadow"), reader);
    }
    if routing.move_waiting && !routing.predicts() {
        reader.warn(node.key_place("move_waiting"), Warning::MovesWithoutPredictions);
    }
    let cooldown = &routing.cooldown;
    let low = Bound { key: "routing.cooldown.min", duration: cooldown.min };
    let high = Bound { key: "routing.cooldown.max", duration: cooldown.max };
    check_order(low, high, node.key_place("cooldown"), reader);
    // Only one that was chosen: the usual one is cut by a short maximum, as it should be.
    if let Some(entry) = node.at("cooldown").entry("default")
        && cooldown.default > cooldown.max
    {
        let [default, max] = [cooldown.default, cooldown.max].map(show_duration);
        reader.warn(&entry.place, Warning::LongCooldown { default, max });
    }
}

fn check_weights(routing: &RoutingConfig, section: &'static str, node: &Node, reader: &mut Reader) {
    let weights = &routing.weights;
    let sum = [weights.priority, weights.load, weights.latency].into_iter().map(u64::from).sum();
    if sum != 100 {
        reader.fault(node.key_place("weights"), Problem::WeightSum { section, sum });
    }
}

fn check_strategy(
    routing: &RoutingConfig,
    section: &'static str,
    node: &Node,
    reader: &mut Reader,
) {
    if !routing.scorers.is_empty() && routing.preset.is_some() {
        reader.fault(node.key_place("preset"), Problem::ScorersAndPreset { section });
    }
    for (key, warning) in routing.unused(section) {
        reader.warn(node.key_place(key), warning);
    }
    if routing.strategy == Strategy::Weighted
        // A list of scorers may equal a preset, and then has the same weakness.
        && let Some((preset, warning)) = Preset::like(&routing.scorer_specs())
            .and_then(|preset| Some((preset.name, preset.warning?)))
    {
        match routing.scorers.is_empty() {
            true => reader.warn(node.key_place("preset"), Warning::Preset { preset, warning }),
            false => {
                let warning = Warning::Scorers { section, warning };
                reader.warn(node.key_place("scorers"), warning);
            }
        }
    }
}

/// Refuses a budget of 0, and warns of a weighted strategy without telemetry.
fn check_telemetry(config: &Config, root: &Node, reader: &mut Reader) {
    let (telemetry, node) = (&config.telemetry, root.at("telemetry"));
    if telemetry.max_cpu <= 0.0 {
        let problem = Problem::WrongValue {
            key: "telemetry.max_cpu".to_owned(),
            given: "0".to_owned(),
            expected: "more than 0; `telemetry.enabled: false` turns telemetry off".to_owned(),
        };
        reader.fault(&node.at("max_cpu").place, problem);
    }
    if telemetry.enabled != TelemetryUse::Never {
        return;
    }
    let shadow = config.routing.shadow.as_ref().map(|shadow| shadow.strategy);
    let strategies =
        [("routing", Some(config.routing.strategy)), ("routing.shadow", shadow)].into_iter();
    for (section, _) in strategies.filter(|(_, strategy)| *strategy == Some(Strategy::Weighted)) {
        reader.warn(node.key_place("enabled"), Warning::Blind { section });
    }
}

fn check_prefix_memory(config: &Config, root: &Node, reader: &mut Reader) {
    let routing = &config.routing;
    let reads_prefixes = routing.has_scorers()
        && Profile::new(&routing.scorer_specs(), routing.picker)
            .is_ok_and(|profile| profile.reads_prefixes());
    let of_limits = config.limits.prefix_memory;
    if reads_prefixes && of_limits < ONE_PROMPT {
        let place = root.at("limits").key_place("prefix_memory");
        let warning =
            Warning::LittlePrefixMemory { section: "limits", given: of_limits, least: ONE_PROMPT };
        reader.warn(place, warning);
    }
    // Each side gets one half.
    let both = ByteSize(ONE_PROMPT.0 * 2);
    if let Some(shadow) = routing.shadow.as_ref().filter(|shadow| shadow.prefix_memory < both) {
        let given = shadow.prefix_memory;
        let warning = Warning::LittlePrefixMemory { section: "routing.shadow", given, least: both };
        reader.warn(root.at("routing").at("shadow").key_place("prefix_memory"), warning);
    }
}

fn check_health(health: &HealthConfig, node: &Node, reader: &mut Reader) {
    let breaker = &health.breaker;
    let low = Bound { key: "breaker.open", duration: breaker.open };
    let high = Bound { key: "breaker.max_open", duration: breaker.max_open };
    check_order(low, high, node.key_place("breaker"), reader);
}

/// One end of a range of durations, with its key.
#[derive(Clone, Copy)]
struct Bound {
    key: &'static str,
    duration: Duration,
}

impl Bound {
    fn to_text(self) -> String {
        format!("{}: {}", self.key, show_duration(self.duration))
    }
}

/// Refuses a range whose lower bound is above its upper one.
fn check_order(low: Bound, high: Bound, place: &SourcePlace, reader: &mut Reader) {
    if low.duration > high.duration {
        reader.fault(place, Problem::OutOfOrder { low: low.to_text(), high: high.to_text() });
    }
}

fn check_redis_tls(config: &SharedStateConfig, item: &Node, reader: &mut Reader) {
    let is_tls = config.redis.as_ref().is_some_and(|address| address.is_tls);
    if !is_tls && config.tls != ConnectionTls::default() {
        reader.fault(item.key_place("tls"), Problem::TlsWithoutRediss);
    }
    check_identity(&config.tls, item.at("tls"), "shared_state.tls".to_owned(), reader);
}
