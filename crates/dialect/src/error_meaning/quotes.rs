//! The request behind an error: what a message may quote from it.

use std::borrow::Cow;
use std::cell::OnceCell;

use memchr::memmem::find_iter;
use memchr::{memchr, memchr2_iter};

/// The text of a request, as an engine may quote it. Its escapes are read once, when the first
/// search needs them.
pub(crate) struct RequestText<'a> {
    request: &'a [u8],
    plain: OnceCell<Cow<'a, [u8]>>,
}

impl<'a> RequestText<'a> {
    pub(crate) fn new(request: &'a [u8]) -> Self {
        Self { request, plain: OnceCell::new() }
    }

    fn plain(&self) -> &[u8] {
        self.plain.get_or_init(|| without_escapes(self.request))
    }

    /// Returns whether a message may have `phrase`, which is in lower case, from the request.
    pub(crate) fn may_contain(&self, phrase: &str) -> bool {
        places(phrase.as_bytes(), self.plain()).next().is_some()
    }

    /// Returns whether `name` is a whole string of the request, or the whole line of a form, and no
    /// key. The owner of a model may stand before it.
    pub(super) fn has_value(&self, name: &str) -> bool {
        let (name, text) = (name.as_bytes(), self.plain());
        let is_whole = |at: usize| {
            let before = at.checked_sub(1).and_then(|before| text.get(before));
            let after = text.get(at + name.len()..).unwrap_or_default();
            let rest = after.get(1..).unwrap_or_default().trim_ascii_start();
            matches!(before, Some(b'"' | b'\n' | b'/'))
                && matches!(after.first(), Some(b'"' | b'\r' | b'\n'))
                && rest.first() != Some(&b':')
        };
        !name.is_empty() && find_iter(text, name).any(is_whole)
    }
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

/// The text with the letters that its escapes stand for: a client may write each letter as an
/// escape, and an engine quotes the letter.
fn without_escapes(text: &[u8]) -> Cow<'_, [u8]> {
    let mut plain = Vec::new();
    let (mut rest, mut at) = (0, 0);
    while let Some(found) = text.get(at..).and_then(|text| memchr(b'\\', text)) {
        let start = at + found;
        // A pair: a backslash that is escaped starts no escape.
        at = start + 2;
        let Some((letter, end)) = escaped_letter(text, start) else { continue };
        plain.extend_from_slice(text.get(rest..start).unwrap_or_default());
        plain.extend_from_slice(letter.encode_utf8(&mut [0; 4]).as_bytes());
        (rest, at) = (end, end);
    }
    if rest == 0 {
        return Cow::Borrowed(text);
    }
    plain.extend_from_slice(text.get(rest..).unwrap_or_default());
    Cow::Owned(plain)
}

/// The letter of the escape at `at`, and the end of the escape. None is outside the first plane of
/// Unicode: no name or phrase has one.
fn escaped_letter(text: &[u8], at: usize) -> Option<(char, usize)> {
    match text.get(at + 1)? {
        b'/' => Some(('/', at + 2)),
        b'n' => Some(('\n', at + 2)),
        b'u' => {
            let digits = text.get(at + 2..at + 6)?;
            let code = u32::from_str_radix(str::from_utf8(digits).ok()?, 16).ok()?;
            // What would end the string stays an escape.
            let letter =
                char::from_u32(code).filter(|it| !it.is_control() && !matches!(it, '"' | '\\'));
            Some((letter?, at + 6))
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
            let request_text = RequestText::new(request.as_bytes());
            assert_eq!(request_text.may_contain("rate limit"), expected, "{request}");
        }
        assert!(RequestText::new(br#"{"m":"a\/b"}"#).may_contain("a/b"));
        let backslashes = [b'\\'; 200_001];
        assert_eq!(without_escapes(&backslashes).len(), backslashes.len(), "in one pass");
    }

    #[test]
    fn values_are_whole_and_no_keys() {
        for (request, expected) in [
            (r#"{"model":"gpt"}"#, true),
            (r#"{"model":"gp\u0074"}"#, true),
            (r#"{"model":"owner/gpt"}"#, true),
            (r#"{"model":"gpt\n"}"#, true),
            ("--x\r\n\r\ngpt\r\n--x--", true),
            (r#"{"model":"gpt-4"}"#, false),
            (r#"{"gpt" : 1}"#, false),
            (r#"{"prompt":"a \"gpt\""}"#, false),
            ("", false),
        ] {
            let request_text = RequestText::new(request.as_bytes());
            assert_eq!(request_text.has_value("gpt"), expected, "{request}");
        }
        assert!(!RequestText::new(b"\"\"").has_value(""));
        assert!(RequestText::new(br#"{"model":"cr\u00e8me"}"#).has_value("crème"));
    }
}
