//! Overrides by environment variables (`PENSTOCK_ROUTING_MAX_RETRIES=3`) and flags
//! (`routing.max_retries` = `3`). Both are inserted into the document tree, as if the file had them.

use std::cmp::Ordering;

use super::sections::Config;
use super::sections::strategy::Strategy;
use super::syntax::document::{Content, Entry, Node};
use super::syntax::environment::Environment;
use super::syntax::errors::{Fault, Place, Problem, Warning};
use super::syntax::reader::Reader;
use super::syntax::setting::Setting;
use super::syntax::shape::Shape;
use super::syntax::suggest::nearest;

const PREFIX: &str = "PENSTOCK_";

/// A setting that a variable or a flag can override.
pub(super) struct Override {
    /// The path to it, as in `["routing", "max_retries"]`.
    pub(super) path: Vec<&'static str>,
}

impl Override {
    /// Its name in the environment.
    pub(super) fn variable(&self) -> String {
        format!("{PREFIX}{}", self.path.join("_").to_uppercase())
    }

    /// Its name as a path.
    pub(super) fn dotted(&self) -> String {
        self.path.join(".")
    }
}

/// Every environment variable that overrides a setting, for help texts.
pub fn known_variables() -> Vec<String> {
    overrides().iter().map(Override::variable).collect()
}

/// Every setting that a variable or a flag can override: scalars in a section.
fn overrides() -> Vec<Override> {
    let mut found = Vec::new();
    collect_overrides(&Config::shape(), &mut Vec::new(), &mut found);
    found.retain(|one| one.path.len() > 1);
    found
}

fn collect_overrides(shape: &Shape, path: &mut Vec<&'static str>, found: &mut Vec<Override>) {
    match shape {
        Shape::Section(section) => {
            for field in &section.fields {
                path.push(field.name);
                collect_overrides(&field.shape, path, found);
                path.pop();
            }
        }
        _ if shape.is_plain() => found.push(Override { path: path.clone() }),
        Shape::Scalar(_) | Shape::List(_) | Shape::Table(_) | Shape::Either(_) => {}
    }
}

/// Inserts the overrides of `environment`, then of `flags`.
pub(super) fn apply_overrides(
    root: &mut Node,
    environment: &Environment,
    flags: &[(String, String)],
    faults: &mut Vec<Fault>,
) {
    let known = overrides();
    for (name, value) in environment.with_prefix(PREFIX) {
        let place = Place::Variable(name.to_owned());
        match known.iter().find(|one| one.variable() == name) {
            Some(one) => put(root, &one.path, value, &place),
            None if is_ours(name, &known) => {
                let suggestion = near(name, known.iter().map(Override::variable));
                faults.push(Fault { place, problem: Problem::UnknownVariable { suggestion } });
            }
            None => {}
        }
    }
    for (path, value) in flags {
        let place = Place::CommandLine;
        match known.iter().find(|one| one.dotted() == *path) {
            Some(one) => put(root, &one.path, value, &place),
            None => {
                let (key, section) = (path.clone(), String::new());
                let suggestion = near(path, known.iter().map(Override::dotted));
                faults.push(Fault {
                    place,
                    problem: Problem::UnknownKey { key, section, suggestion },
                });
            }
        }
    }
}

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
            Some(Place::File { .. }) => Self::File,
            Some(Place::Variable(_)) => Self::Environment,
            Some(Place::CommandLine) => Self::CommandLine,
        }
    }
}

/// Resolves conflicts between `scorers`, `preset` and `strategy` from different sources: the list and
/// the preset replace each other, and a list on the command line selects the strategy weighted, unless
/// the command line names a strategy.
pub(super) fn resolve_scorer_conflicts(root: &mut Node, reader: &mut Reader) {
    let Some(Entry { node: routing, .. }) = root.entry("routing") else { return };
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
    if let Some(place) = place {
        put(root, &["routing", "strategy"], Strategy::Weighted.name(), &place);
    }
    if let (Some(key), Content::Map(sections)) = (overridden, &mut root.content)
        && let Some(Entry { node, .. }) = sections.iter_mut().find(|one| one.key == "routing")
        && let Content::Map(entries) = &mut node.content
    {
        entries.retain(|entry| entry.key != key);
    }
}

/// Whether an unknown variable is probably a misspelled setting: it starts with the name of a section,
/// and Kubernetes did not set it for a service such as `penstock-admin`.
fn is_ours(name: &str, known: &[Override]) -> bool {
    let Some(rest) = name.strip_prefix(PREFIX).map(str::to_lowercase) else { return false };
    let is_service_link = rest.ends_with("_port")
        || ["_service_host", "_service_port", "_port_"].iter().any(|part| rest.contains(part));
    let mut sections = known.iter().filter_map(|one| one.path.first());
    let is_in_section = sections
        .any(|section| rest.strip_prefix(section).is_some_and(|suffix| suffix.starts_with('_')));
    is_in_section && !is_service_link
}

fn near(given: &str, known: impl Iterator<Item = String>) -> Option<String> {
    let known: Vec<String> = known.collect();
    nearest(given, known.iter().map(String::as_str)).map(str::to_owned)
}

/// Inserts `value` at `path`. Leaves a node that is not a mapping unchanged: the reader reports it.
fn put(node: &mut Node, path: &[&str], value: &str, place: &Place) {
    let Some((key, deeper)) = path.split_first() else {
        *node = Node { place: place.clone(), content: Content::Scalar(value.to_owned()) };
        return;
    };
    if matches!(node.content, Content::Null) {
        node.content = Content::Map(Vec::new());
    }
    let Content::Map(entries) = &mut node.content else { return };
    if !entries.iter().any(|entry| entry.key == *key) {
        let empty = Node { place: place.clone(), content: Content::Null };
        entries.push(Entry { key: (*key).to_owned(), place: place.clone(), node: empty });
    }
    if let Some(entry) = entries.iter_mut().find(|entry| entry.key == *key) {
        put(&mut entry.node, deeper, value, place);
    }
}
