//! The key that a backend gets in place of the client's. Some backends quote it in their errors,
//! and some echo it in a field of the head; clients must not see it.

use std::ops::Range;

use bytes::{Bytes, BytesMut};
use http::header::HeaderValue;
use memchr::memmem;
use penstock_config::{AuthorizationPolicy, BackendConfig};
use pingora::http::ResponseHeader;

/// The shortest key with a digit that counts as a secret.
const MIN_SECRET: usize = 8;
/// The shortest key without a digit that counts as one. For an engine that needs no key, `api_key`
/// is often a word such as `EMPTY`, `ollama` or `lm-studio`, which its responses contain anyway.
const MIN_LETTERS: usize = 20;

/// The key of a backend.
#[derive(Debug, Clone, Copy)]
pub(crate) struct OwnKey<'a>(&'a [u8]);

impl<'a> OwnKey<'a> {
    /// Returns the key that a backend gets; `None` without one, and for the client's own.
    pub(crate) fn of(config: &'a BackendConfig) -> Option<Self> {
        let is_own = config.authorization == AuthorizationPolicy::Replace;
        let key = config.api_key.as_ref().filter(|_| is_own)?.reveal().as_bytes();
        is_secret(key).then_some(Self(key))
    }

    /// Masks the key in a text; its length stays, which the head may have announced.
    pub(crate) fn mask(self, text: Bytes) -> Bytes {
        let Some(first) = memmem::find(&text, self.0) else {
            return text;
        };
        let mut text = BytesMut::from(text);
        let mut next = Some(first);
        while let Some(start) = next {
            let end = start + self.0.len();
            mask_range(&mut text, start..end);
            let rest = text.get(end..).unwrap_or_default();
            next = memmem::find(rest, self.0).map(|at| end + at);
        }
        text.freeze()
    }

    /// Masks the key in the fields of a head.
    pub(crate) fn mask_fields(self, head: &mut ResponseHeader) {
        let has_key = |value: &HeaderValue| {
            let text = value.as_bytes();
            text.len() >= self.0.len() && memmem::find(text, self.0).is_some()
        };
        // Nearly no head has one, and an empty list allocates nothing.
        let names =
            head.headers.keys().filter(|name| head.headers.get_all(*name).iter().any(has_key));
        let names: Vec<_> = names.cloned().collect();
        for name in names {
            let values: Vec<_> = head.headers.get_all(&name).iter().cloned().collect();
            head.remove_header(&name);
            for value in values {
                let masked = self.mask(Bytes::copy_from_slice(value.as_bytes()));
                let masked = HeaderValue::from_maybe_shared(masked);
                let added = masked.is_ok_and(|value| head.append_header(&name, value).is_ok());
                debug_assert!(added, "a field of the same name and length was there");
            }
        }
    }
}

fn mask_range(text: &mut BytesMut, range: Range<usize>) {
    if let Some(quoted) = text.get_mut(range) {
        quoted.fill(b'*');
    }
}

fn is_secret(key: &[u8]) -> bool {
    let has_digit = key.iter().any(u8::is_ascii_digit);
    key.len() >= if has_digit { MIN_SECRET } else { MIN_LETTERS }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_are_no_secrets() {
        for (key, expected) in [
            ("sk-12345", true),
            ("lm-studio", false),
            ("application", false),
            ("********", false),
            ("AbCdEfGhIjKlMnOpQrSt", true),
            ("k1", false),
        ] {
            assert_eq!(is_secret(key.as_bytes()), expected, "{key}");
        }
    }

    const KEY: OwnKey<'_> = OwnKey(b"sk-SECRET123456");

    #[test]
    fn key_is_masked_wherever_it_is_quoted() {
        let masked = |text: &str| KEY.mask(Bytes::from(text.to_owned()));
        for text in ["", "sk-SECRET12345", "an error without it"] {
            assert_eq!(masked(text), text);
        }
        let twice = "bad sk-SECRET123456sk-SECRET123456, given: Bearer sk-SECRET123456";
        let expected = twice.replace("sk-SECRET123456", "***************");
        assert_eq!(masked(twice), expected);
        assert_eq!(masked(twice).len(), twice.len());
    }

    #[test]
    fn key_is_masked_in_every_field_of_its_name() {
        let mut head = ResponseHeader::build(401, None).unwrap();
        for value in ["a", "Bearer sk-SECRET123456", "b"] {
            head.append_header("x-echo", value).unwrap();
        }
        head.insert_header("x-other", "sk-SECRET123456").unwrap();
        KEY.mask_fields(&mut head);
        OwnKey(b"***************").mask_fields(&mut head);
        let values = |name: &str| {
            let all = head.headers.get_all(name).iter();
            all.map(|value| value.to_str().unwrap().to_owned()).collect::<Vec<_>>()
        };
        assert_eq!(values("x-echo"), ["a", "Bearer ***************", "b"]);
        assert_eq!(values("x-other"), ["***************"]);
    }
}
