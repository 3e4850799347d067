//! Rules about model names: aliases and fallback chains against the declared models.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet};

use crate::model_table::ModelTable;
use crate::sections::Config;
use crate::sections::aliases::AliasTargets;
use crate::sections::default_model::DefaultModel;
use crate::sections::routing::{BY_MODEL, RoutingConfig};
use crate::syntax::document::{Content, KeyPlaces, Node};
use crate::syntax::errors::Problem;
use crate::syntax::glob::ModelGlob;
use crate::syntax::reader::Reader;
use crate::syntax::source_place::SourcePlace;
use crate::syntax::suggest::nearest;
use crate::syntax::warnings::Warning;

/// The maximum number of hops of an alias, here and in routing.
// Enough for an alias of an alias; a longer chain is more likely a mistake.
pub const ALIAS_HOPS: usize = 3;

/// Checks the names that `config` gives to models.
pub(super) fn check(config: &Config, root: &Node, reader: &mut Reader) {
    let routing = root.at("routing");
    check_aliases(config, routing.at("aliases"), reader);
    check_passthrough(config, routing.at("passthrough"), reader);
    let declared = declared_models(config);
    check_fallbacks(&config.routing, declared.as_ref(), routing.at("fallbacks"), reader);
    // Only if all models are declared: discovery may find more.
    if let Some(declared) = declared {
        check_targets(&config.routing, &declared, routing.at("aliases"), reader);
        for model in config.models.names().filter(|model| !declared.contains(model)) {
            let place = root.at("models").key_place(model);
            reader.warn(place, Warning::UnknownModel { model: model.clone() });
        }
        check_members(config, &declared, root.at("models"), reader);
    }
}

/// Warns of models that requests without a model and client keys name, and no backend serves.
pub(super) fn check_asked(config: &Config, root: &Node, reader: &mut Reader) {
    let Some(declared) = declared_models(config) else { return };
    let node = root.at("routing").at("default_model");
    for (model, item) in default_models(&config.routing.default_model, node) {
        if !is_name_served(config, &declared, model) {
            let model = model.to_owned();
            reader.warn(&item.place, Warning::UnknownDefaultModel { model });
        }
    }
    let names = requested_names(config, &declared);
    for (key, item) in config.auth.keys.iter().zip(root.at("auth").at("keys").items()) {
        // Such a key makes the models that it names.
        let globs = if key.manage_models { &[][..] } else { &key.models };
        for (glob, item) in globs.iter().zip(item.at("models").items()) {
            if !names.iter().any(|name| may_match(glob, name)) {
                let (key, model) = (key.name.clone(), glob.as_str().to_owned());
                reader.warn(&item.place, Warning::UnknownKeyModel { key, model });
            }
        }
    }
}

/// Returns the models that requests without one are for, and their nodes in the document.
fn default_models<'a>(given: &'a DefaultModel, node: &'a Node) -> Vec<(&'a str, &'a Node)> {
    match (given, &node.content) {
        (DefaultModel::One(model), _) => vec![(model, node)],
        (DefaultModel::PerOperation(_), Content::Map(entries)) => entries
            .iter()
            .filter_map(|entry| match &entry.node.content {
                Content::Scalar(model) => Some((model.as_str(), &entry.node)),
                Content::Null | Content::List(_) | Content::Map(_) => None,
            })
            .collect(),
        (DefaultModel::Auto | DefaultModel::None | DefaultModel::PerOperation(_), _) => Vec::new(),
    }
}

/// Returns whether requests for a name are served, by a model or a fallback.
fn is_name_served(config: &Config, declared: &ModelTable<()>, name: &str) -> bool {
    let (routing, ensembles) = (&config.routing, &config.ensembles);
    let model = name.strip_prefix(ensembles.prefix.as_str()).filter(|_| ensembles.enabled);
    [Some(name), model].into_iter().flatten().any(|name| {
        let mut passed = alias_paths(routing, name).into_iter().flatten();
        passed.any(|name| routing.fallbacks.contains(name))
            || is_served(declared, &resolve(routing, Some(declared), name))
    })
}

/// Returns the names that requests are served under: models, aliases, and models with fallbacks.
fn requested_names(config: &Config, declared: &ModelTable<()>) -> Vec<String> {
    let routing = &config.routing;
    let others = routing.aliases.keys().chain(routing.fallbacks.names()).cloned();
    let mut names: Vec<String> = declared.names().cloned().chain(others).collect();
    if config.ensembles.enabled {
        let prefix = &config.ensembles.prefix;
        let ensembles: Vec<String> = names.iter().map(|name| format!("{prefix}{name}")).collect();
        names.extend(ensembles);
    }
    names
}

/// Returns whether a pattern may match a name, which may be the pattern of an alias.
fn may_match(glob: &ModelGlob, name: &str) -> bool {
    // Two patterns are not compared: they usually have a name in common.
    let has_common =
        || ModelGlob::is_pattern(glob.as_str()) || ModelGlob::new(name).matches(glob.as_str());
    glob.matches_spelling(name) || (ModelGlob::is_pattern(name) && has_common())
}

fn check_members(config: &Config, declared: &ModelTable<()>, node: &Node, reader: &mut Reader) {
    for (model, settings) in config.models.iter() {
        let items = node.at(model).at("ensemble").items();
        for (member, item) in settings.ensemble.iter().zip(items) {
            if !is_served(declared, &resolve(&config.routing, Some(declared), member)) {
                let (model, member) = (model.clone(), member.clone());
                reader.warn(&item.place, Warning::UnknownMember { model, member });
            }
        }
    }
}

/// Returns the paths from `alias` along the aliases, starting with itself: one for each model that
/// shares its requests. Each path ends at a name that is no alias, or at the first repeated name.
fn alias_paths<'a>(routing: &'a RoutingConfig, alias: &'a str) -> Vec<Vec<&'a str>> {
    let mut open = vec![vec![alias]];
    let mut ended = Vec::new();
    let mut has_split = false;
    while let Some(path) = open.pop() {
        let targets = path.last().and_then(|name| routing.aliases.get(*name));
        let targets = targets.map(|targets| targets.0.as_slice()).unwrap_or_default();
        // A second split is refused elsewhere; following it could take exponential time.
        let followed = if has_split { 1 } else { targets.len() };
        has_split |= targets.len() > 1;
        if targets.is_empty() {
            ended.push(path);
            continue;
        }
        // Reversed, because the stack returns the last one first.
        for target in targets.iter().take(followed).rev() {
            let is_repeated = path.contains(&target.to.as_str());
            let longer = path.iter().copied().chain([target.to.as_str()]).collect();
            if is_repeated { ended.push(longer) } else { open.push(longer) }
        }
    }
    ended
}

fn check_passthrough(config: &Config, node: &Node, reader: &mut Reader) {
    for (path, to) in &config.routing.passthrough {
        let place = node.key_place(path);
        if !path.starts_with('/') {
            reader.fault(place, Problem::PassthroughPath { path: path.clone() });
        }
        // A group has no address to forward to.
        let single = config.backends.iter().filter(|backend| !backend.is_group());
        let names = single.map(|backend| backend.name.as_str());
        let known: Vec<&str> = names.chain([BY_MODEL]).collect();
        if !known.contains(&to.as_str()) {
            let suggestion = nearest(to, known.into_iter()).map(str::to_owned);
            let (path, given) = (path.clone(), to.clone());
            reader.fault(place, Problem::PassthroughTarget { path, given, suggestion });
        }
    }
}

fn check_aliases(config: &Config, node: &Node, reader: &mut Reader) {
    let routing = &config.routing;
    let places = KeyPlaces::of(node);
    let mut backend_of: BTreeMap<&str, &str> = BTreeMap::new();
    for backend in &config.backends {
        for model in backend.models.iter().flatten() {
            // One backend is enough to show that the model is hidden.
            backend_of.entry(&model.id).or_insert(&backend.name);
        }
    }
    let mut in_cycles: BTreeSet<&str> = BTreeSet::new();
    for (alias, targets) in &routing.aliases {
        let place = places.place(alias);
        for path in alias_paths(routing, alias) {
            check_path(&path, place, &mut in_cycles, reader);
            let splits =
                |name: &&&str| routing.aliases.get(**name).is_some_and(AliasTargets::is_split);
            if let (true, Some(target)) = (targets.is_split(), path.iter().skip(1).find(splits)) {
                let (alias, target) = (alias.clone(), (*target).to_owned());
                reader.fault(place, Problem::NestedSplit { alias, target });
                break;
            }
        }
        if let Some(backend) = backend_of.get(alias.as_str()) {
            let (alias, backend) = (alias.clone(), (*backend).to_owned());
            reader.warn(place, Warning::AliasHidesModel { alias, backend });
        }
    }
}

/// Refuses a cycle, and warns of a path longer than routing follows.
fn check_path<'a>(
    path: &[&'a str],
    place: &SourcePlace,
    in_cycles: &mut BTreeSet<&'a str>,
    reader: &mut Reader,
) {
    let Some((alias, last)) = path.first().zip(path.last()) else { return };
    if path.iter().filter(|name| *name == last).count() > 1 {
        // Reported once, and not for aliases that only lead into the cycle.
        if last == alias && !in_cycles.contains(alias) {
            in_cycles.extend(path);
            let cycle = path.iter().map(|name| (*name).to_owned()).collect();
            reader.fault(place, Problem::AliasCycle { cycle });
        }
        return;
    }
    let hops = path.len() - 1;
    if let (true, Some(reached)) = (hops > ALIAS_HOPS, path.get(ALIAS_HOPS)) {
        let (alias, reached) = ((*alias).to_owned(), (*reached).to_owned());
        reader.warn(place, Warning::LongAliasChain { alias, hops, limit: ALIAS_HOPS, reached });
    }
}

/// Returns the models that a name resolves to, after at most [`ALIAS_HOPS`] aliases. A pattern
/// applies to names that no backend serves: known if all models are `declared`.
pub(super) fn resolve<'a>(
    routing: &'a RoutingConfig,
    declared: Option<&ModelTable<()>>,
    name: &'a str,
) -> BTreeSet<&'a str> {
    let mut reached = BTreeSet::new();
    let mut open = vec![(name, ALIAS_HOPS)];
    while let Some((name, left)) = open.pop() {
        for path in alias_paths(routing, name) {
            let hops = (path.len() - 1).min(left);
            let Some(last) = path.get(hops).copied() else { continue };
            let is_model = declared.is_none_or(|declared| declared.contains(last));
            match covering(routing, last).filter(|_| !is_model && hops < left) {
                // One hop less for the pattern itself.
                Some(targets) => {
                    open.extend(targets.0.iter().map(|to| (to.to.as_str(), left - hops - 1)));
                }
                None => _ = reached.insert(last),
            }
        }
    }
    reached
}

/// Returns the targets of the most specific pattern that covers a name.
fn covering<'a>(routing: &'a RoutingConfig, name: &str) -> Option<&'a AliasTargets> {
    let patterns = routing.aliases.iter().filter(|(alias, _)| ModelGlob::is_pattern(alias));
    let patterns = patterns.map(|(alias, targets)| (ModelGlob::new(alias), targets));
    let covering = patterns.filter(|(glob, _)| glob.matches(name));
    covering.min_by_key(|(glob, _)| Reverse(glob.specificity())).map(|(_, targets)| targets)
}

/// Returns every declared model; `None` if a backend relies on discovery.
pub(super) fn declared_models(config: &Config) -> Option<ModelTable<()>> {
    let lists = config.backends.iter().map(|backend| backend.models.as_ref());
    let lists: Option<Vec<_>> = lists.collect();
    let declared = lists?.into_iter().flatten().map(|model| (model.id.clone(), ())).collect();
    // Without backends every model would look like a mistake.
    (!config.backends.is_empty()).then_some(declared)
}

/// Returns whether one of the models that a name leads to is declared.
pub(super) fn is_served(declared: &ModelTable<()>, reached: &BTreeSet<&str>) -> bool {
    reached.iter().any(|model| declared.contains(model))
}

fn check_targets(
    routing: &RoutingConfig,
    declared: &ModelTable<()>,
    node: &Node,
    reader: &mut Reader,
) {
    let places = KeyPlaces::of(node);
    for alias in routing.aliases.keys() {
        for path in alias_paths(routing, alias) {
            let target = path.iter().take(ALIAS_HOPS + 1).next_back().copied().unwrap_or(alias);
            // A fallback serves what the target cannot.
            let has_chain = path.iter().any(|name| routing.fallbacks.contains(name));
            let leads_to_one = || is_served(declared, &resolve(routing, Some(declared), target));
            if !declared.contains(target) && !has_chain && !leads_to_one() {
                let (place, target) = (places.place(alias), target.to_owned());
                reader.warn(place, Warning::DeadAlias { alias: alias.clone(), target });
            }
        }
    }
}

fn check_fallbacks(
    routing: &RoutingConfig,
    declared: Option<&ModelTable<()>>,
    node: &Node,
    reader: &mut Reader,
) {
    let places = KeyPlaces::of(node);
    for (model, chain) in routing.fallbacks.iter() {
        let place = places.place(model);
        if chain.is_empty() {
            reader.warn(place, Warning::EmptyFallback { model: model.clone() });
            continue;
        }
        check_shadow(routing, model, place, reader);
        let mut served = 0;
        for (fallback, item) in chain.iter().zip(node.at(model).items()) {
            let (model, fallback, reached) =
                (model.clone(), fallback.clone(), resolve(routing, declared, fallback));
            if reached == resolve(routing, declared, &model) {
                reader.warn(&item.place, Warning::SelfFallback { model, fallback });
            } else if declared.is_some_and(|declared| !is_served(declared, &reached)) {
                reader.warn(&item.place, Warning::UnknownFallback { model, fallback });
            } else {
                served += 1;
            }
        }
        if served == 0 {
            reader.warn(place, Warning::DeadFallback { model: model.clone() });
        }
    }
}

/// Warns of a fallback chain that is never used: routing looks for a chain at the target first,
/// then back along the aliases.
fn check_shadow(routing: &RoutingConfig, alias: &str, place: &SourcePlace, reader: &mut Reader) {
    let path = alias_paths(routing, alias).into_iter().next().unwrap_or_default();
    let has_chain =
        |name: &&&str| routing.fallbacks.get(name).is_some_and(|chain| !chain.is_empty());
    if let Some(target) = path.iter().take(ALIAS_HOPS + 1).skip(1).rev().find(has_chain) {
        let (alias, target) = (alias.to_owned(), (*target).to_owned());
        reader.warn(place, Warning::ShadowedFallback { alias, target });
    }
}
