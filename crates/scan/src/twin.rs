//! Twins: names in another spelling that an engine may read as a field that penstock decides by.
//! Ollama decodes JSON with Go's `encoding/json`, which folds case (including the two Unicode
//! letters that fold to ASCII) and takes the last of several members. A request with a twin is
//! refused: otherwise penstock would check one value, and the engine use another.

use super::cursor::{Cursor, Members};
use super::{ScanError, TokenEstimate};

/// The fields that penstock decides by, in any operation: the members read at the top of a body.
const DECIDING: &[&str] = &[
    "model",
    "name",
    "source",
    "destination",
    "from",
    "stream",
    "stream_options",
    "max_tokens",
    "max_completion_tokens",
    "max_output_tokens",
    "n_predict",
    "n",
    "best_of",
    "previous_response_id",
    "conversation",
    "options",
    "keep_alive",
    "format",
    "images",
    "messages",
    "input",
    "prompt",
    "system",
    "instructions",
    "tools",
    "functions",
    "response_format",
    "text",
    "cache_salt",
    "prompt_cache_key",
    "query",
    "documents",
    "texts",
    "image_data",
    "truncate",
    "truncate_prompt_tokens",
    "content",
    "tokens",
    "suffix",
    "context",
    "text_1",
    "text_2",
    "input_prefix",
    "input_extra",
    "input_suffix",
];

/// The number of these fields, from the start, that also decide in a query, where an engine may
/// look for them.
const IN_QUERY: usize = 16;

/// U+017F in UTF-8, which folds to `s`.
const LONG_S: &[u8] = "\u{17f}".as_bytes();
/// U+212A in UTF-8, which folds to `k`.
const KELVIN: &[u8] = "\u{212a}".as_bytes();

/// Returns whether an engine that folds case reads `name` as `field`, which is in lower case.
fn folds_to(name: &[u8], field: &str) -> bool {
    let mut rest = name;
    for wanted in field.bytes() {
        let (letter, length) = match rest.first() {
            Some(byte) if byte.is_ascii() => (byte.to_ascii_lowercase(), 1),
            Some(_) if rest.starts_with(LONG_S) => (b's', LONG_S.len()),
            Some(_) if rest.starts_with(KELVIN) => (b'k', KELVIN.len()),
            _ => return false,
        };
        if letter != wanted {
            return false;
        }
        rest = rest.get(length..).unwrap_or_default();
    }
    rest.is_empty()
}

/// Returns the field among `fields` that `name` is a twin of; `None` if `name` is one of them.
#[inline]
pub(super) fn twin_among(name: &[u8], fields: &[&'static str]) -> Option<&'static str> {
    // Every field is in lower case, so nearly no name needs more than this.
    if !name.iter().any(|byte| byte.is_ascii_uppercase() || !byte.is_ascii()) {
        return None;
    }
    find_twin(name, fields)
}

#[cold]
fn find_twin(name: &[u8], fields: &[&'static str]) -> Option<&'static str> {
    fields.iter().copied().find(|field| folds_to(name, field))
}

/// Returns the field that a member of a body is a twin of.
#[inline]
pub(super) fn twin_of(name: &[u8]) -> Option<&'static str> {
    twin_among(name, DECIDING)
}

/// Returns the field that a decoded name in a query stands for, in any spelling.
pub fn deciding_in_query(name: &str) -> Option<&'static str> {
    let fields = DECIDING.get(..IN_QUERY).unwrap_or(DECIDING);
    // Frameworks read `model[]` and `model[0]` as `model`, and skip blanks around it.
    let plain = name.split('[').next().unwrap_or(name).trim();
    fields.iter().copied().find(|field| folds_to(plain.as_bytes(), field))
}

/// Checks the members at the top of a JSON body that is read elsewhere. None may be a twin. No
/// field that penstock decides by may be repeated as null (Go ignores it), or as an object or
/// array. Bodies that are not JSON are left to their reader.
///
/// # Errors
/// [`ScanError::Twin`] if there is one.
pub fn check_twins(body: &[u8]) -> Result<(), ScanError> {
    let mut cursor = Cursor::new(body, TokenEstimate::Utf8);
    let (mut seen, mut twin) = (0_u64, None);
    if cursor.peek() == b'{' {
        // The reader of the body refuses what does not parse.
        _ = cursor.members(Members::named(MemberMeaning::of), |cursor, found, kind| {
            match found {
                MemberMeaning::Twin(field) => twin = Some(field),
                MemberMeaning::Deciding(index) => {
                    // `DECIDING` has fewer than 64 fields.
                    let bit = 1 << index;
                    if seen & bit != 0 && matches!(kind, b'n' | b'{' | b'[') {
                        twin = DECIDING.get(index).copied();
                    }
                    seen |= bit;
                }
                MemberMeaning::Other => {}
            }
            cursor.skip(kind)
        });
    }
    twin.map_or(Ok(()), |field| Err(ScanError::Twin { field }))
}

/// The meaning of a member of such a body.
#[derive(Debug, Clone, Copy)]
enum MemberMeaning {
    Deciding(usize),
    Twin(&'static str),
    Other,
}

impl MemberMeaning {
    fn of(name: &[u8]) -> Self {
        match DECIDING.iter().position(|field| field.as_bytes() == name) {
            Some(index) => Self::Deciding(index),
            None => twin_of(name).map_or(Self::Other, Self::Twin),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn twins_are_found_in_every_spelling_and_plain_names_are_none() {
        for (name, field) in [
            ("Model", "model"),
            ("MODEL", "model"),
            ("ſtream", "stream"),
            ("max_toKens", "max_tokens"),
            ("Max_To\u{212a}enſ", "max_tokens"),
            ("OPTIONS", "options"),
        ] {
            assert_eq!(twin_of(name.as_bytes()), Some(field), "{name}");
        }
        for field in DECIDING {
            assert_eq!(twin_of(field.as_bytes()), None, "{field} is the field itself");
            assert_eq!(twin_of(field.to_uppercase().as_bytes()), Some(*field));
        }
        for name in
            ["", "models", "mode", "Models", "mödel", "temperature", "Temperature", "mod\u{131}l"]
        {
            assert_eq!(twin_of(name.as_bytes()), None, "{name}");
        }
    }

    #[test]
    fn commands_are_checked_member_by_member() {
        for (body, field) in [
            (r#"{"model":"a","Model":"b"}"#, Some("model")),
            (r#"{"model":"a","mod\u0045l":"b"}"#, Some("model")),
            (r#"{"source":"a","destination":"b","SOURCE":"c"}"#, Some("source")),
            (r#"{"model":"a","from":"b","from":null}"#, Some("from")),
            (r#"{"options":{},"options":{}}"#, Some("options")),
            (r#"{"model":"a","model":"b"}"#, None),
            (r#"{"model":null,"model":"b"}"#, None),
            (r#"{"files":{"Model":"x"},"model":"a"}"#, None),
            ("[]", None),
        ] {
            let expected = field.map_or(Ok(()), |field| Err(ScanError::Twin { field }));
            assert_eq!(check_twins(body.as_bytes()), expected, "{body}");
        }
    }

    #[test]
    fn fields_in_queries_are_found_in_every_spelling() {
        for name in ["model", "Model", " model", "model[]", "model[0]"] {
            assert_eq!(deciding_in_query(name), Some("model"), "{name}");
        }
        assert_eq!(deciding_in_query("options"), Some("options"), "the last that counts");
        for name in ["api-version", "keep_alive", "beta", "submodel", "limit", ""] {
            assert_eq!(deciding_in_query(name), None, "{name}");
        }
    }
}
