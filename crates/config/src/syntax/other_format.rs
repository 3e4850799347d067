//! Recognizes files of other formats, about which the messages of a YAML parser mislead.

use super::errors::OtherFormat;

/// A format and the line, from 1, that shows it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Recognized {
    pub(super) format: OtherFormat,
    pub(super) line: u64,
}

/// Returns the format of a text that is no valid configuration.
pub(super) fn other_format(text: &str) -> Option<Recognized> {
    let lines = || (1..).zip(text.lines().map(str::trim));
    let (first, content) =
        lines().find(|(_, line)| !line.is_empty() && !line.starts_with(['#', ';']))?;
    let comment = lines().find(|(_, line)| has_comment(line));
    if let Some((line, _)) = comment.filter(|_| content.starts_with(['{', '[', '/'])) {
        return Some(Recognized { format: OtherFormat::JsonWithComments, line });
    }
    let has_values = || lines().any(|(_, line)| is_assignment(line));
    let is_toml = is_assignment(content) || is_header(content) && has_values();
    is_toml.then_some(Recognized { format: OtherFormat::Toml, line: first })
}

/// Returns whether a line is or ends with a comment of JSON; `//` in a URL is none.
pub(super) fn has_comment(line: &str) -> bool {
    let is_outside = |before: &str| {
        before.ends_with([' ', '\t', ',']) && before.matches('"').count().is_multiple_of(2)
    };
    ["//", "/*"].into_iter().any(|start| {
        line.match_indices(start)
            .filter_map(|(at, _)| line.get(..at))
            .any(|before| before.is_empty() || is_outside(before))
    })
}

/// Returns whether a line is `[section]` or `[[list]]`.
fn is_header(line: &str) -> bool {
    let line = line.split(" #").next().unwrap_or(line).trim_end();
    let name = line.strip_prefix('[').and_then(|rest| rest.strip_suffix(']'));
    let name = name.map(|name| name.trim_start_matches('[').trim_end_matches(']'));
    name.is_some_and(is_name)
}

/// Returns whether a line is `key = value`.
fn is_assignment(line: &str) -> bool {
    line.split_once('=').is_some_and(|(key, _)| is_name(key.trim_end()))
}

fn is_name(text: &str) -> bool {
    let is_part = |letter: char| letter.is_ascii_alphanumeric() || "_-.\"".contains(letter);
    !text.is_empty() && text.chars().all(is_part)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn found(text: &str) -> Option<(OtherFormat, u64)> {
        other_format(text).map(|one| (one.format, one.line))
    }

    #[test]
    fn formats_are_recognized_by_their_first_line() {
        for text in ["[server]\nlisten = \"a\"", "[[a.b]] # c\nx=1", "backends = []", "A=b"] {
            assert_eq!(found(&format!("# c\n\n{text}")), Some((OtherFormat::Toml, 3)), "{text}");
        }
        for (text, line) in [
            ("// c\n{}", 1),
            ("/* c */ {}", 1),
            ("{\n  // c\n}", 2),
            ("[\n \"http://a\", // c\n]", 2),
            ("{\"a\": 1 /* c */ }", 1),
        ] {
            assert_eq!(found(text), Some((OtherFormat::JsonWithComments, line)), "{text}");
        }
        for text in ["", "# c", "a: b = c", "[a]\nb: c", "{\"a\": \"http://b\"}", "- http://a // b"]
        {
            assert_eq!(found(text), None, "{text}");
        }
    }
}
