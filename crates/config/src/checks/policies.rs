//! Rules about `policies:` and the zones and tiers that they speak of.

use std::collections::BTreeSet;

use penstock_api::{ZoneId, is_same_model};

use super::models::{declared_models, resolve};
use crate::model_table::ModelTable;
use crate::sections::Config;
use crate::sections::backends::BackendConfig;
use crate::sections::policies::{MAX_POLICIES, PolicyConfig, TierMode};
use crate::syntax::document::Node;
use crate::syntax::errors::Problem;
use crate::syntax::reader::Reader;
use crate::syntax::suggest::nearest;
use crate::syntax::warnings::Warning;

/// Checks the policies of `config`.
pub(super) fn check(config: &Config, root: &Node, reader: &mut Reader) {
    let node = root.at("policies");
    let count = config.policies.len();
    // The checks below compare each with all before it.
    if count > MAX_POLICIES {
        let problem = Problem::TooManyPolicies { count, limit: MAX_POLICIES };
        reader.fault(root.key_place("policies"), problem);
        return;
    }
    let zones: BTreeSet<&str> = config.zone_names().collect();
    if zones.len() > ZoneId::MAX {
        let problem = Problem::TooManyZones { count: zones.len(), limit: ZoneId::MAX };
        reader.fault(root.key_place("policies"), problem);
    }
    for (index, (policy, item)) in config.policies.iter().zip(node.items()).enumerate() {
        let earlier = config.policies.get(..index).unwrap_or_default();
        if earlier.iter().any(|other| other.name == policy.name) {
            let name = policy.name.clone();
            reader.fault(item.key_place("name"), Problem::PolicyTwice { name });
        }
        check_policy(config, policy, item, reader);
    }
    check_models(config, root, reader);
}

fn check_policy(config: &Config, policy: &PolicyConfig, item: &Node, reader: &mut Reader) {
    let name = || policy.name.clone();
    if policy.zones.is_empty() && policy.min_tier.is_none() && policy.quality.is_none() {
        reader.warn(&item.place, Warning::EmptyPolicy { policy: name() });
    }
    if policy.tier_mode == TierMode::Flexible && policy.min_tier.is_none() {
        reader.warn(item.key_place("tier_mode"), Warning::NoTier { policy: name() });
    }
    if let Some(quality) = &policy.quality {
        let bounds = (&quality.max_error_share, &quality.max_ttft, &quality.max_tpot);
        if bounds == (&None, &None, &None) {
            reader.warn(item.key_place("quality"), Warning::NoBounds { policy: name() });
        }
    }
    check_zones(config, format!("policy '{}'", policy.name), &policy.zones, item, reader);
    let is_satisfied = config.backends.iter().any(|backend| serves_under(backend, policy));
    if !is_satisfied && !config.backends.is_empty() {
        reader.warn(&item.place, Warning::UnsatisfiedPolicy { policy: name() });
    }
}

/// Warns of the zones of client keys in which there is no backend.
pub(super) fn check_keys(config: &Config, root: &Node, reader: &mut Reader) {
    if config.backends.is_empty() {
        return;
    }
    for (key, item) in config.auth.keys.iter().zip(root.at("auth").at("keys").items()) {
        check_zones(config, format!("key '{}'", key.name), &key.zones, item, reader);
    }
}

/// Warns of zones in which there is no backend; `item` is the policy or key that names them.
fn check_zones(config: &Config, owner: String, zones: &[String], item: &Node, reader: &mut Reader) {
    let known: BTreeSet<&str> =
        config.backends.iter().filter_map(BackendConfig::zone_name).collect();
    for (zone, place) in zones.iter().zip(item.at("zones").items()) {
        if !known.contains(zone.as_str()) {
            let suggestion = nearest(zone, known.iter().copied()).map(str::to_owned);
            let (owner, zone) = (owner.clone(), zone.clone());
            reader.warn(&place.place, Warning::UnknownZone { owner, zone, suggestion });
        }
    }
}

/// Returns whether a backend may take a request under a policy, as far as its models are declared.
fn serves_under(backend: &BackendConfig, policy: &PolicyConfig) -> bool {
    if !is_in_zone(backend, policy) {
        return false;
    }
    // A flexible tier is a preference: lower ones serve as well.
    let wanted = policy.min_tier.filter(|_| policy.tier_mode == TierMode::Strict);
    let has_tier = |tier| wanted.is_none_or(|least| tier >= least);
    let Some(models) = &backend.models else { return has_tier(backend.tier) };
    models.iter().any(|model| has_tier(model.tier.unwrap_or(backend.tier)))
}

fn is_in_zone(backend: &BackendConfig, policy: &PolicyConfig) -> bool {
    let is_listed = |zone: &str| policy.zones.iter().any(|listed| listed == zone);
    policy.zones.is_empty() || backend.zone_name().is_some_and(is_listed)
}

/// Warns of models that no policy is about although others are, and of fallbacks that leave the
/// zones of their model.
fn check_models(config: &Config, root: &Node, reader: &mut Reader) {
    if config.policies.is_empty() {
        return;
    }
    let place = root.key_place("policies");
    // Discovery may find models of any name.
    let Some(declared) = declared_models(config) else { return };
    for model in declared.names() {
        let is_met =
            config.policies.iter().any(|policy| is_about(config, &declared, policy, model));
        if !is_met {
            reader.warn(place, Warning::NoPolicy { model: model.clone() });
        }
    }
    let fallbacks = root.at("routing").at("fallbacks");
    for (model, chain) in config.routing.fallbacks.iter() {
        // A policy for some clients leaves the fallback to the others.
        let for_all = |policy: &&PolicyConfig| policy.keys.is_empty() && policy.teams.is_empty();
        let mut policies = config.policies.iter().filter(for_all);
        let policy = policies.find(|policy| is_about(config, &declared, policy, model));
        let Some(policy) = policy else { continue };
        for (fallback, item) in chain.iter().zip(fallbacks.at(model).items()) {
            let reached = resolve(&config.routing, Some(&declared), fallback);
            let mut backends = config.backends.iter().filter(|backend| {
                let mut models = backend.models.iter().flatten();
                models.any(|one| is_among(&reached, &one.id))
            });
            let has_any = backends.clone().next().is_some();
            if has_any && !backends.any(|backend| is_in_zone(backend, policy)) {
                let (model, fallback) = (model.clone(), fallback.clone());
                let policy = policy.name.clone();
                let warning = Warning::FallbackOutside { model, fallback, policy };
                reader.warn(&item.place, warning);
            }
        }
    }
}

/// Returns whether a model is among those `reached`, in any spelling.
fn is_among(reached: &BTreeSet<&str>, model: &str) -> bool {
    reached.iter().any(|name| is_same_model(name, model))
}

/// Returns whether a policy is about a model, by its name or by one of the backends' names for it.
fn is_about(
    config: &Config,
    declared: &ModelTable<()>,
    policy: &PolicyConfig,
    model: &str,
) -> bool {
    let reached = resolve(&config.routing, Some(declared), model);
    let names = reached.iter().copied().chain([model]);
    let entries = config.backends.iter().flat_map(|backend| backend.models.iter().flatten());
    let upstream = entries.filter(|one| is_among(&reached, &one.id));
    let upstream = upstream.filter_map(|one| one.upstream_id.as_deref());
    let names: Vec<&str> = names.chain(upstream).collect();
    policy.models.is_empty()
        || policy.models.iter().any(|glob| names.iter().any(|name| glob.matches_spelling(name)))
}
