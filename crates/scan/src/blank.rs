//! Distinguishes output from white space, which is no output where an engine produces nothing else.

use std::sync::LazyLock;

use memchr::memmem::Finder;
use penstock_api::Operation;

use super::cursor::{Cursor, Syntax};
use super::ollama::is_filled;

/// The ends of a generation by a limit or by a string of the client, in whole responses.
static CUTS: LazyLock<[Finder<'static>; 6]> = LazyLock::new(|| {
    [
        "\"length\"",
        "\"incomplete\"",
        ":\"max_tokens\"",
        ": \"max_tokens\"",
        ":\"stop_sequence\"",
        ": \"stop_sequence\"",
    ]
    .map(Finder::new)
});

/// Returns whether a whole response ended before the engine would have: white space may have been
/// the beginning of more.
pub(super) fn is_cut_short(body: &[u8]) -> bool {
    CUTS.iter().any(|cut| cut.find(body).is_some())
}

/// Returns whether white space alone may be the result of an operation, as where code or a text is
/// continued: Ollama's `generate` does that, too.
pub fn may_be_blank(operation: Operation) -> bool {
    !matches!(
        operation,
        Operation::Chat | Operation::Messages | Operation::Responses | Operation::OllamaChat
    )
}

/// Consumes a value. Returns whether it is a string with more than white space, or a non-empty
/// array or object.
pub(super) fn is_visible(cursor: &mut Cursor<'_>, kind: u8) -> Result<bool, Syntax> {
    let is_blank = is_blank_string(cursor);
    Ok(is_filled(cursor, kind)? && !is_blank)
}

/// Returns whether the cursor is at a string that is empty or has only white space, as far as it
/// came if it is cut off. It reads no further than the first other character.
pub(super) fn is_blank_string(cursor: &Cursor<'_>) -> bool {
    match cursor.bytes.get(cursor.at..) {
        Some([b'"', text @ ..]) => {
            let rest = after_blank(text);
            rest.starts_with(b"\"") || is_cut_off(rest)
        }
        _ => false,
    }
}

/// Returns the rest of a string's text after the white space that it begins with.
pub(super) fn after_blank(text: &[u8]) -> &[u8] {
    let mut rest = text;
    loop {
        rest = match rest {
            [b' ', rest @ ..] | [b'\\', b'n' | b'r' | b't' | b'f', rest @ ..] => rest,
            [b'\\', b'u', one, two, three, four, rest @ ..]
                if is_space([*one, *two, *three, *four]) =>
            {
                rest
            }
            _ => return rest,
        }
    }
}

/// Returns whether a text ends here, at most in the middle of an escape.
pub(super) fn is_cut_off(rest: &[u8]) -> bool {
    matches!(rest, [] | [b'\\']) || (rest.starts_with(b"\\u") && rest.len() < 6)
}

/// Returns whether the digits of an escape are those of white space.
fn is_space(digits: [u8; 4]) -> bool {
    let digits = digits.map(|digit| char::from(digit).to_digit(16));
    let unit = digits.iter().try_fold(0, |unit, digit| digit.map(|digit| unit << 4 | digit));
    unit.and_then(char::from_u32).is_some_and(char::is_whitespace)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_white_space_is_blank() {
        for (value, expected) in [
            (r#""""#, true),
            (r#"" ""#, true),
            (r#""\n""#, true),
            (r#"" \n\t\r\f \u0020\u000a\u00A0\u3000""#, true),
            (r#""a""#, false),
            (r#""   a""#, false),
            (r#""\n\u0041""#, false),
            (r#""\n\ud83d\ude00""#, false),
            (r#""\\n""#, false),
            (r#""\"""#, false),
            (r#""."#, false),
            (r#"" "#, true),
            (r#"" a"#, false),
            (r#""\n\"#, true),
            (r#"" \u00"#, true),
            ("null", false),
            ("[]", false),
        ] {
            assert_eq!(
                is_blank_string(&Cursor::of_response(value.as_bytes())),
                expected,
                "{value}"
            );
        }
    }
}
