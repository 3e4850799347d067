//! `${NAME}` and `${NAME:-default}` in values. They are expanded in parsed scalars, never in the
//! text, so that no value can change the structure of the file.

use std::collections::BTreeSet;

use super::document::{Content, Node};
use super::environment::Environment;
use super::errors::{ConfigFault, Problem};

/// Expands the variables in every value below `node`, and adds their names to `mentioned`; keys are
/// unchanged.
pub(crate) fn expand_variables(
    node: &mut Node,
    environment: &Environment,
    mentioned: &mut BTreeSet<String>,
    faults: &mut Vec<ConfigFault>,
) {
    match &mut node.content {
        Content::Null => {}
        Content::Scalar(text) => match expand(text, environment, mentioned) {
            Ok(expanded) => *text = expanded,
            Err(problem) => faults.push(ConfigFault { place: node.place.clone(), problem }),
        },
        Content::List(items) => {
            for item in items {
                expand_variables(item, environment, mentioned, faults);
            }
        }
        Content::Map(entries) => {
            for entry in entries {
                expand_variables(&mut entry.node, environment, mentioned, faults);
            }
        }
    }
}

fn expand(
    text: &str,
    environment: &Environment,
    mentioned: &mut BTreeSet<String>,
) -> Result<String, Problem> {
    let mut expanded = String::with_capacity(text.len());
    let mut rest = text;
    while let Some(start) = rest.find("${") {
        let (before, from) = rest.split_at(start);
        // `$${` is a literal `${`.
        if let Some(before) = before.strip_suffix('$') {
            expanded.push_str(before);
            expanded.push_str("${");
            rest = from.get(2..).unwrap_or_default();
            continue;
        }
        expanded.push_str(before);
        let Some(end) = from.find('}') else {
            // Not taken literally: a forgotten brace would send `${KEY` as a key.
            return Err(Problem::MalformedVariable { given: from.to_owned() });
        };
        let (variable, after) = from.split_at(end + 1);
        expanded.push_str(&value_of(variable, environment, mentioned)?);
        rest = after;
    }
    expanded.push_str(rest);
    Ok(expanded)
}

fn is_letter(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || byte == b'_'
}

/// Returns the value of `variable`, given with its braces. As in a shell, the default also replaces
/// an empty variable.
fn value_of(
    variable: &str,
    environment: &Environment,
    mentioned: &mut BTreeSet<String>,
) -> Result<String, Problem> {
    let inner = variable.trim_start_matches("${").trim_end_matches('}');
    let (name, default) = match inner.split_once(":-") {
        Some((name, default)) => (name, Some(default)),
        None => (inner, None),
    };
    if name.is_empty()
        || !name.bytes().all(is_letter)
        || name.starts_with(|c: char| c.is_ascii_digit())
    {
        return Err(Problem::MalformedVariable { given: variable.to_owned() });
    }
    // Even if it is unset: a mentioned variable is not taken for a misspelt setting.
    mentioned.insert(name.to_owned());
    match (environment.get(name), default) {
        // As in a shell, where `:-` treats an empty variable like an unset one.
        (Some(""), Some(default)) | (None, Some(default)) => Ok(default.to_owned()),
        (Some(value), _) => Ok(value.to_owned()),
        (None, None) => Err(Problem::UnsetVariable { name: name.to_owned() }),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn expanded(text: &str) -> Result<String, String> {
        let environment =
            [("HOST".to_owned(), "gpu-a".to_owned()), ("EMPTY".to_owned(), String::new())];
        expand(text, &environment.into_iter().collect(), &mut BTreeSet::new())
            .map_err(|problem| problem.to_string())
    }

    #[test]
    fn variables_and_defaults_expand() {
        assert_eq!(expanded("http://${HOST}:${PORT:-8000}/").unwrap(), "http://gpu-a:8000/");
        assert_eq!(expanded("${EMPTY:-x}${EMPTY}${NONE:-}").unwrap(), "x");
        assert_eq!(expanded("$HOST costs 5$").unwrap(), "$HOST costs 5$");
    }

    #[test]
    fn doubled_dollar_is_a_plain_one() {
        assert_eq!(expanded("$${HOST} and ${HOST}").unwrap(), "${HOST} and gpu-a");
    }

    #[test]
    fn unset_and_malformed_variables_are_named() {
        assert!(expanded("${TEAM_KEY}").unwrap_err().contains("'TEAM_KEY' is not set"));
        for text in ["${", "${}", "${A B}", "${9}", "x${HOST"] {
            assert!(expanded(text).unwrap_err().contains("invalid variable"), "{text}");
        }
    }

    #[test]
    fn values_are_not_expanded_again() {
        let environment = [("A".to_owned(), "${B}".to_owned())].into_iter().collect();
        assert_eq!(expand("${A}", &environment, &mut BTreeSet::new()).unwrap(), "${B}");
    }
}
