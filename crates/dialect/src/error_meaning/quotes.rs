//! The request behind an error: what a message may quote from it.

use std::borrow::Cow;

use memchr::{memchr_iter, memchr2_iter};

/// Returns whether a message may have `phrase`, which is in lower case, from the request.
pub(super) fn may_be_quoted(phrase: &str, request: &[u8]) -> bool {
    let phrase = phrase.as_bytes();
    places(phrase, request).next().is_some() || {
        let plain = without_escapes(request);
        matches!(plain, Cow::Owned(_)) && places(phrase, &plain).next().is_some()
    }
}

/// Returns whether `name`, in lower case, is a whole string of the request, or the whole line of a
/// form, and no key.
pub(super) fn is_value(name: &str, request: &[u8]) -> bool {
    let name = name.as_bytes();
    let is_whole = |text: &[u8], at: usize| {
        let before = at.checked_sub(1).and_then(|before| text.get(before));
        let after = text.get(at + name.len()..).unwrap_or_default();
        let rest = after.get(1..).unwrap_or_default().trim_ascii_start();
        matches!(before, Some(b'"' | b'\n'))
            && matches!(after.first(), Some(b'"' | b'\r' | b'\n'))
            && rest.first() != Some(&b':')
    };
    !name.is_empty()
        && (places(name, request).any(|at| is_whole(request, at)) || {
            let plain = without_escapes(request);
            places(name, &plain).any(|at| is_whole(&plain, at))
        })
}

/// The places of `phrase`, which is in lower case, in a text.
fn places<'a>(phrase: &'a [u8], text: &'a [u8]) -> impl Iterator<Item = usize> + 'a {
    let first = phrase.first().copied().unwrap_or_default();
    let is_here = |at: &usize| {
        let part = text.get(*at..at.saturating_add(phrase.len()));
        part.is_some_and(|part| part.eq_ignore_ascii_case(phrase))
    };
    memchr2_iter(first, first.to_ascii_uppercase(), text).filter(is_here)
}

/// The text with the letters that its escapes stand for, where they are ASCII: a client may write
/// each letter as an escape, and an engine quotes the letter.
fn without_escapes(text: &[u8]) -> Cow<'_, [u8]> {
    let mut plain = Vec::new();
    let mut rest = 0;
    for at in memchr_iter(b'\\', text).filter(|at| is_escape(text, *at)) {
        let Some((letter, end)) = escaped_letter(text, at) else { continue };
        plain.extend_from_slice(text.get(rest..at).unwrap_or_default());
        plain.push(letter);
        rest = end;
    }
    if rest == 0 {
        return Cow::Borrowed(text);
    }
    plain.extend_from_slice(text.get(rest..).unwrap_or_default());
    Cow::Owned(plain)
}

/// Returns whether a backslash starts an escape, and is not escaped itself.
fn is_escape(text: &[u8], at: usize) -> bool {
    let before = text.get(..at).unwrap_or_default();
    before.iter().rev().take_while(|byte| **byte == b'\\').count() % 2 == 0
}

/// The ASCII letter of the escape at `at`, and the end of the escape.
fn escaped_letter(text: &[u8], at: usize) -> Option<(u8, usize)> {
    match text.get(at + 1)? {
        b'/' => Some((b'/', at + 2)),
        b'u' => {
            let digits = text.get(at + 2..at + 6)?;
            let code = u32::from_str_radix(str::from_utf8(digits).ok()?, 16).ok()?;
            let letter = u8::try_from(code)
                .ok()
                .filter(|letter| letter.is_ascii_graphic() || *letter == b' ');
            // What would end the string stays an escape.
            let letter = letter.filter(|letter| !matches!(letter, b'"' | b'\\'))?;
            Some((letter, at + 6))
        }
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn phrase_is_found_however_it_is_written() {
        for (request, expected) in [
            (r#"{"prompt":"rate limit"}"#, true),
            (r#"{"prompt":"Rate LIMIT"}"#, true),
            (r#"{"prompt":"\u0072ate\u0020limi\u0074"}"#, true),
            (r#"{"prompt":"\\\u0072ate limit"}"#, true),
            (r#"{"prompt":"\\u0072ate limit"}"#, false),
            (r#"{"prompt":"rate \u00e9 limit"}"#, false),
            (r#"{"prompt":"rate"}"#, false),
            ("", false),
        ] {
            assert_eq!(may_be_quoted("rate limit", request.as_bytes()), expected, "{request}");
        }
        assert!(may_be_quoted("a/b", br#"{"m":"a\/b"}"#));
    }

    #[test]
    fn values_are_whole_and_no_keys() {
        for (request, expected) in [
            (r#"{"model":"gpt"}"#, true),
            (r#"{"model":"GP\u0054"}"#, true),
            ("--x\r\n\r\ngpt\r\n--x--", true),
            (r#"{"model":"gpt-4"}"#, false),
            (r#"{"gpt" : 1}"#, false),
            (r#"{"prompt":"a \"gpt\""}"#, false),
            ("", false),
        ] {
            assert_eq!(is_value("gpt", request.as_bytes()), expected, "{request}");
        }
        assert!(!is_value("", b"\"\""));
    }
}
