//! Suggests where an unknown key belongs: the sections that have a key of that name, and the
//! settings known by another name elsewhere.

use super::syntax::errors::{ConfigFault, Problem};
use super::syntax::shape::Shape;

/// The maximum number of places that a message names.
const MAX_PLACES: usize = 3;

/// Other words for a setting, each with the path of the setting.
const OTHER_WORDS: &[(&str, &str)] = &[
    ("smart", "routing.weights"),
    ("weighted", "routing.scorers"),
    ("slo", "objectives"),
    ("port", "server.listen"),
    ("port", "admin.listen"),
    ("host", "server.listen"),
    ("host", "admin.listen"),
    ("bind", "server.listen"),
    ("bind", "admin.listen"),
    ("workers", "server.threads"),
    ("upstreams", "backends"),
    ("servers", "backends"),
    ("endpoints", "backends"),
    ("nodes", "backends"),
    ("model_list", "backends"),
    ("api_keys", "auth.keys"),
    ("retries", "routing.max_retries"),
    ("num_retries", "routing.max_retries"),
    ("circuit_breaker", "health.breaker"),
    ("health_check", "health"),
    ("health_checks", "health"),
    ("metrics", "admin.listen"),
    ("logging", "log"),
    ("redis_url", "shared_state.redis"),
    ("rpm", "auth.limits.requests_per_minute"),
    ("tpm", "auth.limits.tokens_per_minute"),
    ("type", "backends[].engine"),
    ("kind", "backends[].engine"),
    ("provider", "backends[].engine"),
    ("address", "backends[].url"),
    ("host", "backends[].url"),
    ("endpoint", "backends[].url"),
    ("base_url", "backends[].url"),
    ("api_base", "backends[].url"),
    ("key", "backends[].api_key"),
    ("token", "backends[].api_key"),
    ("max_connections", "backends[].max_in_flight"),
    ("max_parallel_requests", "backends[].max_in_flight"),
    ("name", "backends[].models[].id"),
    ("model", "backends[].models[].id"),
    ("model_name", "backends[].models[].id"),
    ("num_ctx", "backends[].models[].context_length"),
    ("context_window", "backends[].models[].context_length"),
    ("max_model_len", "backends[].models[].context_length"),
];

/// Adds to each unknown key the places of the schema where it belongs, if no key of its section
/// resembles it. A word known to stand for a setting of the section is not a misspelling.
pub(super) fn suggest_places(faults: &mut [ConfigFault], schema: &Shape) {
    for fault in faults {
        if let Problem::UnknownKey { key, section, suggestions } = &mut fault.problem {
            let section = without_indexes(section);
            let meant = other_words(key, &section);
            if !meant.is_empty() {
                // Rather than a key that is spelt alike: other programs' words are what people
                // bring along.
                *suggestions = meant;
            } else if suggestions.is_empty() {
                *suggestions = places_of(key, &section, schema);
            }
        }
    }
}

/// Returns the settings below a section that a word stands for.
pub(crate) fn other_words(key: &str, section: &str) -> Vec<String> {
    let is_below = |place: &str| {
        let rest = place.strip_prefix(section);
        // A word for a setting of an item means something else outside of the list.
        let is_inside = rest.is_some_and(|rest| !rest.contains("[]"));
        is_inside && rest.is_some_and(|rest| section.is_empty() || rest.starts_with('.'))
    };
    let known = OTHER_WORDS.iter().filter(|(word, place)| *word == key && is_below(place));
    known.map(|(_, place)| (*place).to_owned()).collect()
}

fn places_of(key: &str, section: &str, schema: &Shape) -> Vec<String> {
    let mut places = Vec::new();
    collect_places(schema, key, "", &mut places);
    // Places below the section in question come first, then those nearest to the top.
    let below = format!("{section}.");
    places.sort_by_key(|place| (!place.starts_with(&below), place.matches('.').count()));
    // The alternatives of one setting may have the same key.
    places.dedup();
    if !section.is_empty() && places.iter().any(|place| place.starts_with(&below)) {
        places.retain(|place| place.starts_with(&below));
    }
    // A longer list helps less than none.
    places.truncate(MAX_PLACES);
    places
}

/// Returns a path as the schema has it: `backends[2].tls` is `backends[].tls`.
fn without_indexes(path: &str) -> String {
    let mut rest = path;
    let mut written = String::with_capacity(path.len());
    while let Some((before, after)) = rest.split_once('[') {
        written.push_str(before);
        written.push_str("[]");
        rest = after.split_once(']').map_or("", |(_, after)| after);
    }
    written + rest
}

fn collect_places(shape: &Shape, key: &str, path: &str, places: &mut Vec<String>) {
    match shape {
        Shape::Scalar(_) => {}
        Shape::List(item) => collect_places(item, key, &format!("{path}[]"), places),
        // The name is the user's choice, so that the suggestion has a placeholder.
        Shape::Table(value) => collect_places(value, key, &format!("{path}.NAME"), places),
        Shape::Either(shapes) => {
            shapes.iter().for_each(|shape| collect_places(shape, key, path, places));
        }
        Shape::Section(section) => {
            for field in &section.fields {
                let start = if path.is_empty() { String::new() } else { format!("{path}.") };
                let below = format!("{start}{}", field.name);
                if field.name == key {
                    places.push(below.clone());
                }
                collect_places(&field.shape, key, &below, places);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Config;
    use crate::syntax::setting::Setting;

    fn places(key: &str, section: &str) -> Vec<String> {
        places_of(key, section, &Config::shape())
    }

    #[test]
    fn misplaced_keys_are_found_where_they_belong() {
        assert_eq!(places("tls", "server"), ["server.listen[].tls"]);
        assert_eq!(other_words("smart", "routing"), ["routing.weights"]);
        assert_eq!(other_words("port", "admin"), ["admin.listen"]);
        assert_eq!(other_words("port", "backends[]"), Vec::<String>::new());
        assert_eq!(other_words("type", "backends[]"), ["backends[].engine"]);
        assert_eq!(other_words("name", "backends[].models[]"), ["backends[].models[].id"]);
        assert_eq!(other_words("name", ""), Vec::<String>::new());
        assert_eq!(other_words("host", ""), ["server.listen", "admin.listen"]);
        assert_eq!(places("strategy", ""), ["routing.strategy", "routing.shadow.strategy"]);
        assert_eq!(places("aliases", ""), ["routing.aliases"]);
        assert_eq!(places("context_length", "models.NAME"), ["backends[].models[].context_length"]);
        assert_eq!(places("colour", "server"), Vec::<String>::new());
        assert_eq!(without_indexes("backends[2].models[10]"), "backends[].models[]");
    }

    #[test]
    fn other_words_lead_to_settings() {
        let schema = Config::shape();
        for (word, path) in OTHER_WORDS {
            let name = path.rsplit('.').next().unwrap_or(path);
            let mut places = Vec::new();
            collect_places(&schema, name, "", &mut places);
            assert!(places.iter().any(|place| place == path), "{word}: {path} in {places:?}");
        }
    }
}
