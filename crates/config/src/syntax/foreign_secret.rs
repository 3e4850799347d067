//! Secrets in the syntax of another program, which would be sent as they stand: a variable without
//! braces, a template, a command, or the value of a whole header. No message quotes the secret:
//! only what must be the name of a variable.

use super::reader::Reader;
use super::source_place::SourcePlace;
use super::warnings::Warning;

/// Beginnings of a variable in the configuration of other programs, and in their languages.
const VARIABLES: &[&str] = &["os.environ", "os.getenv", "process.env.", "$env:", "env:", "env."];

/// The beginning and the end of a template.
const BRACKETS: &[(&str, &str)] = &[("{{", "}}"), ("{%", "%}"), ("<%", "%>")];
/// The beginning and the end of a command.
const COMMANDS: &[(&str, &str)] = &[("$(", ")"), ("`", "`")];

/// Warns of a secret in the configuration that looks like something else.
pub(super) fn warn_of_inline(text: &str, place: &SourcePlace, reader: &mut Reader) {
    warn_of_scheme(text, place, reader);
    // Values of the environment and of flags are not expanded.
    let is_expanded = matches!(place, SourcePlace::File { .. });
    if let Some(variable) = foreign_variable(text.trim()).filter(|_| is_expanded) {
        let name = variable.unwrap_or("NAME").to_owned();
        let key = reader.path();
        reader.warn(place, Warning::ForeignVariable { key, name });
    }
}

/// Warns of a secret in a file that looks like something else.
pub(super) fn warn_of_file(text: &str, place: &SourcePlace, reader: &mut Reader) {
    warn_of_scheme(text, place, reader);
    let text = text.trim();
    // Files are not expanded: here the right syntax for a variable is as wrong as others.
    if foreign_variable(text).is_some() || text.starts_with("${") && text.ends_with('}') {
        let key = reader.path();
        reader.warn(place, Warning::VariableInSecretFile { key });
    }
}

fn warn_of_scheme(text: &str, place: &SourcePlace, reader: &mut Reader) {
    if has_scheme(text.trim()) {
        let key = reader.path();
        reader.warn(place, Warning::SchemeInSecret { key });
    }
}

/// Returns whether a secret is the value of a header, with its scheme or even its name.
fn has_scheme(text: &str) -> bool {
    let is_first = |word: &str| {
        text.split_at_checked(word.len()).is_some_and(|(start, _)| start.eq_ignore_ascii_case(word))
    };
    ["Bearer ", "Authorization:", "x-api-key:"].into_iter().any(is_first)
}

/// Returns the name of the variable that `text` stands for in another program; `None` inside if it
/// has none.
fn foreign_variable(text: &str) -> Option<Option<&str>> {
    let is_within = |(start, end): &(&str, &str)| text.starts_with(start) && text.ends_with(end);
    // A command has words in capitals as well, which are no variables.
    if COMMANDS.iter().any(is_within) {
        return Some(None);
    }
    let is_variable = [("$", ""), ("%", "%"), ("{$", "}"), ("{env.", "}")].iter().any(|ends| {
        let inner = text.strip_prefix(ends.0).and_then(|rest| rest.strip_suffix(ends.1));
        inner.is_some_and(is_identifier)
    });
    let is_foreign = is_variable
        || BRACKETS.iter().any(is_within)
        || VARIABLES.iter().any(|start| text.starts_with(start));
    is_foreign.then(|| text.split(|one: char| !is_part(one)).find(|name| is_usual_name(name)))
}

fn is_part(letter: char) -> bool {
    letter.is_ascii_alphanumeric() || letter == '_'
}

fn is_identifier(text: &str) -> bool {
    text.starts_with(|first: char| first.is_ascii_alphabetic() || first == '_')
        && text.chars().all(is_part)
}

/// Returns whether a name may be shown: in capitals, as variables are. Other words may be a part of
/// a secret.
fn is_usual_name(text: &str) -> bool {
    is_identifier(text)
        && text.len() > 1
        && !text.contains(|letter: char| letter.is_ascii_lowercase())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn variables_of_other_programs_are_recognized() {
        for text in [
            "$OPENAI_KEY",
            "$env:OPENAI_KEY",
            "%OPENAI_KEY%",
            "os.environ/OPENAI_KEY",
            "os.environ[\"OPENAI_KEY\"]",
            "{{ OPENAI_KEY }}",
            "{{ env \"OPENAI_KEY\" }}",
            "{env.OPENAI_KEY}",
            "{$OPENAI_KEY}",
            "env:OPENAI_KEY",
        ] {
            assert_eq!(foreign_variable(text), Some(Some("OPENAI_KEY")), "{text}");
        }
        for text in ["$(cat /run/KEY)", "`pass KEY`", "$key", "{{ .Values.key }}", "%key%"] {
            assert_eq!(foreign_variable(text), Some(None), "{text}");
        }
        for text in ["sk-$A", "$5", "$a-b", "%20", "%a b%", "a%", "{json}", "environment", "$"] {
            assert_eq!(foreign_variable(text), None, "{text}");
        }
    }

    #[test]
    fn headers_are_recognized_by_their_beginning() {
        assert!(has_scheme("bearer sk-x") && has_scheme("Authorization: Bearer sk-x"));
        assert!(!has_scheme("bearer") && !has_scheme("bearer-token") && !has_scheme("é"));
    }
}
