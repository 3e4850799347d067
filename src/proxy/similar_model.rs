//! "Did you mean" for a model that is not found: the nearest name among those that the client may
//! use. The work is bounded, whatever name a client sends and however many models there are.

use penstock_api::ErrorCode;
use penstock_config::nearest;
use penstock_core::fleet::Topology;

use crate::proxy::failure::OwnError;
use crate::proxy::flow::RequestContext;

/// The longest name that is compared, in bytes.
const MAX_LENGTH: usize = 128;
/// The minimum length of a name compared by letters: in shorter names any letter is a near one.
const MIN_LENGTH: usize = 4;
/// The most names that are looked at.
const MAX_SEEN: usize = 20_000;
/// The most names that are compared letter by letter, or with the models that the key may use.
const MAX_COMPARED: usize = 512;
/// The maximum difference in length of similar names: `nearest` allows three edits.
const MAX_EDITS: usize = 3;

/// Adds the name that the client may have meant to an error about a model that is not found.
pub(crate) fn with_similar_model(ctx: &RequestContext, given: &str, error: OwnError) -> OwnError {
    if error.code != ErrorCode::ModelNotFound || given.len() > MAX_LENGTH {
        return error;
    }
    let snapshot = ctx.generation.fleet.topology();
    match similar(ctx, &snapshot, given) {
        Some(name) => {
            OwnError { message: format!("{}; did you mean '{name}'?", error.message), ..error }
        }
        None => error,
    }
}

fn similar<'a>(ctx: &'a RequestContext, topology: &'a Topology, given: &str) -> Option<&'a str> {
    let names = &ctx.generation.router.names;
    let models = topology.models().iter().map(|model| &*model.name);
    let aliases = names.aliases().map(|(alias, _)| alias);
    let splits = names.splits().map(|(alias, _)| alias);
    let all = models.chain(aliases).chain(splits).take(MAX_SEEN).filter(|name| *name != given);
    nearest_name(given, all, |name| ctx.may_use(name))
}

/// The name that differs by a tag or an owner alone (`llama3` and `llama3:8b`, `org/model` and
/// `model`), or else by few letters.
fn nearest_name<'a>(
    given: &str,
    names: impl Iterator<Item = &'a str>,
    may_use: impl Fn(&str) -> bool,
) -> Option<&'a str> {
    let is_part = |name: &str| is_part_of(given, name) || is_part_of(name, given);
    let usable: Vec<&str> = names
        .filter(|name| is_part(name) || name.len().abs_diff(given.len()) <= MAX_EDITS)
        .take(MAX_COMPARED)
        .filter(|name| may_use(name))
        .collect();
    if let Some(part) = usable.iter().find(|name| is_part(name)) {
        return Some(part);
    }
    nearest(given, usable.into_iter()).filter(|_| given.len() >= MIN_LENGTH)
}

/// Returns whether `part` is `whole` without its tag or its owner.
fn is_part_of(part: &str, whole: &str) -> bool {
    !part.is_empty()
        && (whole.strip_prefix(part).is_some_and(|tag| tag.starts_with(':'))
            || whole.strip_suffix(part).is_some_and(|owner| owner.ends_with('/')))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nearest_name_is_a_part_or_a_few_letters_away() {
        let models = ["llama3:8b", "plain", "org/qwen"];
        for (given, wanted) in [
            ("plian", Some("plain")),
            ("llama3", Some("llama3:8b")),
            ("LLAMA3:8b", Some("llama3:8b")),
            ("qwen", Some("org/qwen")),
            ("other/plain", Some("plain")),
            ("gpt-4", None),
            ("m", None),
            ("", None),
        ] {
            assert_eq!(nearest_name(given, models.into_iter(), |_| true), wanted, "{given}");
        }
        assert_eq!(nearest_name("plian", models.into_iter(), |name| name != "plain"), None);
    }
}
