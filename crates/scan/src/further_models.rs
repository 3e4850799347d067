//! Further models of a body: aggregators such as OpenRouter and LiteLLM try them where the model of
//! `model` fails. They are read only for clients that are limited to models.

use std::borrow::Cow;

use super::cursor::{Cursor, Members, Parsed, Syntax};
use super::unescape::Unescape;
use super::{BYTE_ORDER_MARK, TokenEstimate};

/// The most levels of lists and objects in which names are read. The deepest known form has four:
/// `[{"model": ["name"]}]`.
const MAX_LEVELS: u32 = 8;

/// Returns whether a member of a body names further models: `models` of OpenRouter, the others of
/// LiteLLM.
#[inline]
pub(super) fn names_further_models(name: &[u8]) -> bool {
    matches!(
        name,
        b"models" | b"fallbacks" | b"context_window_fallbacks" | b"content_policy_fallbacks"
    )
}

/// Returns the first of the further models in a scanned body that `is_refused`.
pub fn find_further_model(body: &[u8], is_refused: impl Fn(&str) -> bool) -> Option<Box<str>> {
    let mut search = Search { is_refused: &is_refused, found: None };
    let mut cursor = Cursor::new(body, TokenEstimate::Chars);
    if body.starts_with(BYTE_ORDER_MARK) {
        cursor.at = BYTE_ORDER_MARK.len();
    }
    if cursor.peek() != b'{' {
        return None;
    }
    let read = cursor.members(Members::named(names_further_models), |cursor, is_list, kind| {
        if is_list { search.read(cursor, kind, true, 0) } else { cursor.skip(kind) }
    });
    debug_assert!(read.is_ok() || search.found.is_some(), "the body has been scanned");
    search.found
}

fn is_model(name: &[u8]) -> bool {
    name == b"model"
}

struct Search<'s> {
    is_refused: &'s dyn Fn(&str) -> bool,
    found: Option<Box<str>>,
}

impl Search<'_> {
    /// Consumes a value: a name, a list of names, an object with its name as `model`, or one with
    /// lists of names by the model that they follow. `is_name` is true if a string at the cursor is
    /// a name.
    fn read(&mut self, cursor: &mut Cursor<'_>, kind: u8, is_name: bool, level: u32) -> Parsed {
        match kind {
            b'"' if is_name => self.check(cursor),
            b'[' if level < MAX_LEVELS => {
                cursor.elements(|cursor, kind| self.read(cursor, kind, true, level + 1))
            }
            b'{' if level < MAX_LEVELS => {
                let (start, mut has_model) = (cursor.at, false);
                cursor.members(Members::named(is_model), |cursor, is_model, kind| {
                    has_model |= is_model;
                    cursor.skip(kind)
                })?;
                // The other members of a request with a model are its settings.
                cursor.at = start;
                cursor.members(Members::named(is_model), |cursor, is_model, kind| {
                    match is_model || !has_model {
                        true => self.read(cursor, kind, is_model, level + 1),
                        false => cursor.skip(kind),
                    }
                })
            }
            _ => cursor.skip(kind),
        }
    }

    fn check(&mut self, cursor: &mut Cursor<'_>) -> Result<(), Syntax> {
        let text = cursor.string()?;
        let name = match text.is_escaped() {
            true => Cow::Owned(Unescape::new(cursor.raw(text)).collect()),
            false => String::from_utf8_lossy(cursor.raw(text)),
        };
        if self.found.is_none() && (self.is_refused)(&name) {
            self.found = Some(Box::from(&*name));
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use penstock_api::Operation;

    use super::*;
    use crate::{ScanOptions, scan};

    fn refused(members: &str) -> Option<String> {
        let body = format!("{{\"model\":\"mine\",{members},\"messages\":[]}}");
        let options = ScanOptions::default();
        let profile = scan(Operation::Chat, None, body.as_bytes(), options).unwrap();
        let found = find_further_model(body.as_bytes(), |name| name != "mine");
        assert!(profile.names_further_models || found.is_none(), "{members}");
        found.map(String::from)
    }

    #[test]
    fn models_in_every_known_form_are_found() {
        for members in [
            r#""models":["secret"]"#,
            r#""models":["mine","secret"]"#,
            r#""models":"secret""#,
            r#""mod\u0065ls":["s\u0065cret"]"#,
            r#""fallbacks":["secret"]"#,
            r#""fallbacks":[{"model":"secret","messages":[{"role":"user","content":"x"}]}]"#,
            r#""fallbacks":[{"mine":["mine","secret"]}]"#,
            r#""context_window_fallbacks":[{"mine":["secret"]}]"#,
            r#""content_policy_fallbacks":[{"mine":[{"model":"secret"}]}]"#,
            r#""models":["secret"],"models":["mine"]"#,
            r#""models":["mine"],"models":["secret"]"#,
        ] {
            assert_eq!(refused(members).as_deref(), Some("secret"), "{members}");
        }
    }

    #[test]
    fn other_texts_are_no_models() {
        for members in [
            r#""models":["mine"]"#,
            r#""models":null,"fallbacks":[],"fallbacks":5"#,
            r#""fallbacks":[{"model":"mine","messages":[{"role":"user","content":"secret"}]}]"#,
            r#""other":["secret"],"metadata":{"models":["secret"]}"#,
            r#""fallbacks":[{"model":"mine","stop":["secret"]},{"tags":{"a":["mine"]},"model":"mine"}]"#,
        ] {
            assert_eq!(refused(members), None, "{members}");
        }
    }
}
