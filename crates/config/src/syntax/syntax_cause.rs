//! The usual cause of a YAML error, derived from the parser's message and the text at its position.

use serde_saphyr::{MessageFormatter, UserMessageFormatter};

use super::errors::SyntaxCause;

/// The cause and the position (from 1) of the text that misled the parser.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Misled {
    pub(super) cause: SyntaxCause,
    pub(super) line: u64,
    pub(super) column: u64,
}

/// Parts of the messages with which parsers report wrong indentation.
const INDENTATION: &[&str] = &[
    "mapping values are not allowed",
    "did not find expected '-' indicator",
    "did not find expected key",
    "simple key expected",
];

/// Returns the usual cause of an error at a line and column of `text`; `None` if the parser's
/// message is clear enough.
pub(super) fn cause_of(
    text: &str,
    line: u64,
    column: u64,
    error: &serde_saphyr::Error,
) -> Option<Misled> {
    let message = UserMessageFormatter.format_message(error);
    let is_said = |words: &str| message.contains(words);
    let here = |cause| Some(Misled { cause, line, column });
    if is_said("tab")
        && let Some(misled) = tab_near(text, line)
    {
        return Some(misled);
    }
    let content = line_at(text, line);
    if is_said("mapping values are not allowed") && has_two_keys(content, column) {
        return here(SyntaxCause::Colon);
    }
    if INDENTATION.iter().any(|words| is_said(words)) {
        // A tab first: the columns look right, and the advice on columns would not help.
        return tab_near(text, line).or(here(SyntaxCause::Indentation));
    }
    if is_said("illegal placement of ':'") {
        return here(SyntaxCause::Bracket);
    }
    if is_said("quoted scalar") {
        return here(SyntaxCause::Quote);
    }
    let is_odd_start = is_said("unexpected character") || is_said("reference to unknown value");
    let first = content.chars().nth(usize::try_from(column.checked_sub(1)?).ok()?);
    first.filter(|_| is_odd_start).and_then(|first| here(SyntaxCause::FirstCharacter(first)))
}

fn line_at(text: &str, line: u64) -> &str {
    let index = usize::try_from(line.saturating_sub(1)).unwrap_or(usize::MAX);
    text.lines().nth(index).unwrap_or("")
}

/// Returns the first of a line and the one after it that is indented with a tab.
fn tab_near(text: &str, line: u64) -> Option<Misled> {
    [line, line + 1].into_iter().find_map(|line| {
        let indentation = line_at(text, line).chars().take_while(|letter| letter.is_whitespace());
        let at = indentation.enumerate().find(|(_, letter)| *letter == '\t')?.0;
        let column = u64::try_from(at).ok()? + 1;
        Some(Misled { cause: SyntaxCause::Tab, line, column })
    })
}

/// Returns whether a line has a key and its value before the colon in `column`.
fn has_two_keys(content: &str, column: u64) -> bool {
    let before = usize::try_from(column.saturating_sub(1)).unwrap_or(usize::MAX);
    let before: String = content.chars().take(before).collect();
    // Only a colon before a space separates in YAML.
    before.contains(": ")
}
