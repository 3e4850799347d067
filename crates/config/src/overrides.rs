//! Overrides by environment variables (`PENSTOCK_ROUTING_MAX_RETRIES=3`) and flags
//! (`routing.max_retries` = `3`). Both are inserted into the document tree, as if the file
//! contained them.

use std::cmp::Ordering;
use std::collections::BTreeSet;

use super::overridable::{Override, PREFIX, near, overrides};
use super::sections::strategy::Strategy;
use super::syntax::document::{Content, Entry, Node};
use super::syntax::environment::Environment;
use super::syntax::errors::{ConfigFault, Problem};
use super::syntax::reader::Reader;
use super::syntax::source_place::SourcePlace;
use super::syntax::warnings::Warning;
use super::unknown_variable::unknown_variable;

/// Inserts the overrides of `environment`, then of `flags`. A variable with the prefix that is
/// neither a setting nor `mentioned` in the file is an error: otherwise a key or a limit would be
/// ignored.
pub(super) fn apply_overrides(
    root: &mut Node,
    environment: &Environment,
    mentioned: &BTreeSet<String>,
    flags: &[(String, String)],
    faults: &mut Vec<ConfigFault>,
) {
    let known = overrides();
    for (name, value) in environment.with_prefix(PREFIX) {
        let place = SourcePlace::Variable(name.to_owned());
        match known.iter().find(|one| one.variable() == name) {
            Some(one) => put(root, &one.path, value, &place),
            // The file uses it as `${...}`: it need not be a setting.
            None if mentioned.contains(name) => {}
            None => {
                let problem = unknown_variable(name, value, &known);
                faults.extend(problem.map(|problem| ConfigFault { place, problem }));
            }
        }
    }
    for (path, value) in flags {
        let place = SourcePlace::CommandLine;
        match known.iter().find(|one| one.dotted() == *path) {
            Some(one) => put(root, &one.path, value, &place),
            None => {
                let (key, section) = (path.clone(), String::new());
                let suggestion = near(path, known.iter().map(Override::dotted));
                faults.push(ConfigFault {
                    place,
                    problem: Problem::UnknownKey {
                        key,
                        section,
                        suggestions: suggestion.into_iter().collect(),
                    },
                });
            }
        }
    }
}

/// The reason for the strategy that a list of scorers selects.
const BY_SCORERS: &str = "routing.scorers is set";
/// The reason for the strategy smart in the place of an unknown one.
const BY_UNKNOWN_NAME: &str = "routing.strategy names none";

/// The source of a setting; later ones take precedence.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Level {
    Unset,
    File,
    Environment,
    CommandLine,
}

impl Level {
    fn of(node: Option<&Node>) -> Self {
        match node.map(|node| &node.place) {
            None => Self::Unset,
            Some(SourcePlace::File { .. }) => Self::File,
            Some(SourcePlace::Variable(_)) => Self::Environment,
            Some(SourcePlace::CommandLine) => Self::CommandLine,
        }
    }
}

/// Resolves conflicts between `scorers`, `preset` and `strategy` from different sources: the list
/// and the preset replace each other, and a list on the command line selects the strategy weighted,
/// unless the command line names a strategy. Returns the reason for the strategy, if another key
/// selects it.
pub(super) fn resolve_scorer_conflicts(
    root: &mut Node,
    reader: &mut Reader,
) -> Option<&'static str> {
    let Entry { node: routing, .. } = root.entry("routing")?;
    let setting = |key| routing.entry(key).map(|entry| &entry.node);
    let (strategy, scorers) = (setting("strategy"), setting("scorers"));
    let overridden = match Level::of(scorers).cmp(&Level::of(setting("preset"))) {
        Ordering::Greater => Some("preset"),
        Ordering::Less => Some("scorers"),
        Ordering::Equal => None,
    };
    let is_open = Level::of(strategy) < Level::CommandLine;
    let from_flag = scorers.filter(|one| is_open && Level::of(Some(one)) == Level::CommandLine);
    let place = from_flag.map(|one| one.place.clone());
    if let Some(place) = &place
        && let Some(Content::Scalar(given)) = strategy.map(|one| &one.content)
        && Strategy::from_name(given) != Some(Strategy::Weighted)
    {
        reader.warn(place, Warning::ScorersSelectWeighted { given: given.clone() });
    }
    // Before the loser is removed: either of them names the strategy.
    let reason = match place {
        Some(place) => {
            put(root, &["routing", "strategy"], Strategy::Weighted.name(), &place);
            Some(BY_SCORERS)
        }
        None => name_strategy(root, overridden),
    };
    if let (Some(key), Content::Map(sections)) = (overridden, &mut root.content)
        && let Some(Entry { node, .. }) = sections.iter_mut().find(|one| one.key == "routing")
        && let Content::Map(entries) = &mut node.content
    {
        entries.retain(|entry| entry.key != key);
    }
    reason
}

/// Sets the strategy to the one whose settings are present, if none is named, and returns the
/// reason. `overridden`: the setting that is left out because another one replaces it.
fn name_strategy(root: &mut Node, overridden: Option<&str>) -> Option<&'static str> {
    let Entry { node: routing, .. } = root.entry("routing")?;
    // A written strategy wins, even one that does not read the scorers: that is warned about.
    if let Some(strategy) = routing.entry("strategy") {
        return match &strategy.node.content {
            Content::Scalar(name) if Strategy::from_name(name).is_none() => Some(BY_UNKNOWN_NAME),
            Content::Scalar(_) | Content::Null | Content::List(_) | Content::Map(_) => None,
        };
    }
    let mut meant = [
        ("scorers", Strategy::Weighted, BY_SCORERS),
        ("preset", Strategy::Weighted, "routing.preset is set"),
        ("weights", Strategy::Smart, "only routing.weights is set"),
    ];
    meant.sort_by_key(|(key, ..)| overridden == Some(*key));
    let is_empty = |node: &Node| match &node.content {
        Content::Null => true,
        Content::List(items) => items.is_empty(),
        Content::Scalar(_) | Content::Map(_) => false,
    };
    let (strategy, reason, place) = meant.into_iter().find_map(|(key, strategy, reason)| {
        let node = &routing.entry(key)?.node;
        (!is_empty(node)).then(|| (strategy, reason, node.place.clone()))
    })?;
    put(root, &["routing", "strategy"], strategy.name(), &place);
    Some(reason)
}

/// Inserts `value` at `path`. Leaves a node that is not a mapping unchanged: the reader reports it.
fn put(node: &mut Node, path: &[&str], value: &str, place: &SourcePlace) {
    let Some((key, deeper)) = path.split_first() else {
        *node = Node { place: place.clone(), content: Content::Scalar(value.to_owned()) };
        return;
    };
    // `routing:` without anything below it is no mapping yet.
    if matches!(node.content, Content::Null) {
        node.content = Content::Map(Vec::new());
    }
    // A scalar in place of a section: the reader reports that, with the line of the file.
    let Content::Map(entries) = &mut node.content else { return };
    if !entries.iter().any(|entry| entry.key == *key) {
        let empty = Node { place: place.clone(), content: Content::Null };
        entries.push(Entry { key: (*key).to_owned(), place: place.clone(), node: empty });
    }
    if let Some(entry) = entries.iter_mut().find(|entry| entry.key == *key) {
        put(&mut entry.node, deeper, value, place);
    }
}
