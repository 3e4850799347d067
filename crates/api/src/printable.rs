//! Makes text from files and backends safe for a terminal, a log line or a label: one line, of
//! bounded length, without characters that such a reader interprets.

use std::borrow::Cow;

/// The longest name that a backend may give to anything, in bytes; longer ones are cut for display.
pub const MAX_NAME: usize = 256;
/// The end of a text that was cut.
const CUT: char = '\u{2026}';

/// Returns whether a reader of text may interpret a character instead of showing it: control
/// characters, line separators and bidirectional overrides.
pub fn is_unprintable(character: char) -> bool {
    character.is_control()
        || matches!(character, '\u{2028}' | '\u{2029}' | '\u{200e}' | '\u{200f}' | '\u{feff}')
        || ('\u{202a}'..='\u{202e}').contains(&character)
        || ('\u{2066}'..='\u{2069}').contains(&character)
}

/// Returns `text` on one line, its unprintable characters escaped as in `\n` and `\u{1b}`, cut
/// after `limit` bytes.
pub fn escape(text: &str, limit: usize) -> Cow<'_, str> {
    // The usual case: metrics and logs escape every name that they write, and allocate for none.
    if text.len() <= limit && !text.contains(is_unprintable) {
        return Cow::Borrowed(text);
    }
    let mut escaped = String::with_capacity(text.len().min(limit));
    for character in text.chars() {
        let before = escaped.len();
        if is_unprintable(character) {
            escaped.extend(character.escape_default());
        } else {
            escaped.push(character);
        }
        if escaped.len() > limit {
            // All of an escape or nothing: a part of it would read as another character.
            escaped.truncate(before);
            escaped.push(CUT);
            break;
        }
    }
    Cow::Owned(escaped)
}

/// Lists the first `limit` names, and the number of the remaining ones.
pub fn show_names<'a>(names: impl Iterator<Item = &'a str>, limit: usize) -> String {
    let mut names = names.peekable();
    let shown: Vec<_> = names.by_ref().take(limit).map(|name| escape(name, MAX_NAME)).collect();
    match names.count() {
        0 => shown.join(", "),
        more => format!("{} and {more} more", shown.join(", ")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn unprintable_characters_are_escaped() {
        assert!(matches!(escape("llama3:8b \u{e9}", 40), Cow::Borrowed(_)));
        let text = "a\r\n\t\u{1b}[2J\u{7}\u{202e}b\u{85}\u{7f}";
        let escaped = escape(text, 100);
        assert_eq!(escaped, "a\\r\\n\\t\\u{1b}[2J\\u{7}\\u{202e}b\\u{85}\\u{7f}");
        assert!(!escaped.contains(is_unprintable));
    }

    #[test]
    fn long_text_is_cut_between_characters() {
        assert_eq!(escape("abcdef", 6), "abcdef");
        assert_eq!(escape("abcdefg", 6), "abcdef\u{2026}");
        assert_eq!(escape("abcde\n", 6), "abcde\u{2026}", "no half escape");
        assert_eq!(escape("\u{20ac}\u{20ac}", 4), "\u{20ac}\u{2026}");
    }

    #[test]
    fn names_over_the_limit_are_counted() {
        assert_eq!(show_names(["a", "b"].into_iter(), 2), "a, b");
        assert_eq!(show_names(["a", "b\n", "c", "d"].into_iter(), 2), "a, b\\n and 2 more");
        assert_eq!(show_names(std::iter::empty(), 2), "");
    }
}
