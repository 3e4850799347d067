//! Finds the token counts that a backend reports, in the last bytes of a response or in one event of a
//! stream. The response itself is not stored, and counts that cannot be parsed are not an error.

use std::sync::LazyLock;

use memchr::memmem::{Finder, FinderRev};

use super::TokenEstimate;
use super::cursor::{Cursor, Members, Syntax};

/// Most events have no usage. The forward search is vectorised, so it rules them out faster.
static ANY_USAGE: LazyLock<Finder<'static>> = LazyLock::new(|| Finder::new(b"\"usage\""));
static LAST_USAGE: LazyLock<FinderRev<'static>> = LazyLock::new(|| FinderRev::new(b"\"usage\""));

/// The number of `usage` members tried in one tail. It bounds the work for a hostile response.
const ATTEMPTS: usize = 16;

/// The token counts that a backend reported for a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Usage {
    /// Tokens of the prompt: `prompt_tokens`, `input_tokens`.
    pub prompt_tokens: Option<u32>,
    /// Tokens of the response: `completion_tokens`, `output_tokens`.
    pub completion_tokens: Option<u32>,
    /// Tokens of the prompt that came from a cache.
    pub cached_tokens: Option<u32>,
}

impl Usage {
    /// These counts, completed by `earlier` ones: a stream may report the prompt's tokens at its start
    /// and the response's at its end.
    #[must_use]
    pub fn or(self, earlier: Self) -> Self {
        Self {
            prompt_tokens: self.prompt_tokens.or(earlier.prompt_tokens),
            completion_tokens: self.completion_tokens.or(earlier.completion_tokens),
            cached_tokens: self.cached_tokens.or(earlier.cached_tokens),
        }
    }

    fn read(&mut self, cursor: &mut Cursor<'_>) -> Result<(), Syntax> {
        cursor.members(Members::named(Count::of), |cursor, count, kind| match count {
            Count::Prompt => read_count(cursor, kind, &mut self.prompt_tokens),
            Count::Completion => read_count(cursor, kind, &mut self.completion_tokens),
            Count::Cached => read_count(cursor, kind, &mut self.cached_tokens),
            Count::PromptDetails if kind == b'{' => {
                cursor.members(Members::named(is_cached_tokens), |cursor, is_cached, kind| {
                    if is_cached {
                        read_count(cursor, kind, &mut self.cached_tokens)
                    } else {
                        cursor.skip(kind)
                    }
                })
            }
            Count::PromptDetails | Count::Other => cursor.skip(kind),
        })
    }
}

/// A member of `usage`.
#[derive(Clone, Copy)]
enum Count {
    Prompt,
    Completion,
    Cached,
    PromptDetails,
    Other,
}

impl Count {
    fn of(name: &[u8]) -> Self {
        match name {
            b"prompt_tokens" | b"input_tokens" => Self::Prompt,
            b"completion_tokens" | b"output_tokens" => Self::Completion,
            b"cache_read_input_tokens" => Self::Cached,
            b"prompt_tokens_details" | b"input_tokens_details" => Self::PromptDetails,
            _ => Self::Other,
        }
    }
}

fn is_cached_tokens(name: &[u8]) -> bool {
    name == b"cached_tokens"
}

fn read_count(cursor: &mut Cursor<'_>, kind: u8, count: &mut Option<u32>) -> Result<(), Syntax> {
    if !kind.is_ascii_digit() {
        return cursor.skip(kind);
    }
    *count = cursor.number()?.or(*count);
    Ok(())
}

/// The counts in the last valid `usage` object of `tail`, which is the end of a response or the data of
/// one event.
pub fn find_usage(tail: &[u8]) -> Option<Usage> {
    ANY_USAGE.find(tail)?;
    let mut before = tail;
    for _ in 0..ATTEMPTS {
        let at = LAST_USAGE.rfind(before)?;
        if let Some(usage) = tail.get(at..).and_then(usage_of) {
            return Some(usage);
        }
        before = tail.get(..at)?;
    }
    None
}

/// Reads `"usage": {…}`; `None` if it is incomplete, null, or has no counts.
fn usage_of(member: &[u8]) -> Option<Usage> {
    let mut cursor = Cursor::new(member, TokenEstimate::Chars);
    cursor.string().ok()?;
    if cursor.peek() != b':' {
        return None;
    }
    cursor.at += 1;
    if cursor.peek() != b'{' {
        return None;
    }
    let mut usage = Usage::default();
    usage.read(&mut cursor).ok()?;
    (usage != Usage::default()).then_some(usage)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn counts(prompt: u32, completion: u32, cached: Option<u32>) -> Option<Usage> {
        Some(Usage {
            prompt_tokens: Some(prompt),
            completion_tokens: Some(completion),
            cached_tokens: cached,
        })
    }

    #[test]
    fn each_dialect_names_its_counts() {
        for (tail, expected) in [
            (
                r#"…"}}],"usage":{"prompt_tokens":7,"total_tokens":9,"completion_tokens":2}}"#,
                counts(7, 2, None),
            ),
            (
                r#"{"usage": {"prompt_tokens": 7, "completion_tokens": 2, "prompt_tokens_details": {"audio": 1, "cached_tokens": 4}}}"#,
                counts(7, 2, Some(4)),
            ),
            (
                r#""usage":{"prompt_tokens_details":null,"prompt_tokens":7,"completion_tokens":2}"#,
                counts(7, 2, None),
            ),
            (
                r#"{"response":{"usage":{"input_tokens":7,"input_tokens_details":{"cached_tokens":4},"output_tokens":2}}}"#,
                counts(7, 2, Some(4)),
            ),
            (
                r#""usage":{"input_tokens":7,"cache_read_input_tokens":4,"output_tokens":2,"service_tier":"x"}"#,
                counts(7, 2, Some(4)),
            ),
            (
                r#"{"usage":{"prompt_tokens":7,"completion_tokens":99999999999}}"#,
                counts(7, u32::MAX, None),
            ),
        ] {
            assert_eq!(find_usage(tail.as_bytes()), expected, "{tail}");
        }
    }

    #[test]
    fn last_valid_usage_counts() {
        let earlier = r#"{"usage":{"prompt_tokens":1,"completion_tokens":1}}"#;
        for last in [
            r#"{"usage":null}"#,
            r#"{"usage":{"#,
            r#"{"usage":{"prompt_tokens":7,"comp"#,
            r#"{"usage":{}}"#,
            r#"{"content":"usage"}"#,
            r#"{"content":"\"usage\":{\"prompt_tokens\":9}"}"#,
            r#"{"usage":{"prompt_tokens":-1}}"#,
        ] {
            let tail = format!("{earlier}{last}");
            assert_eq!(find_usage(tail.as_bytes()), counts(1, 1, None), "{last}");
        }
        let later = format!(r#"{earlier}{{"usage":{{"prompt_tokens":7,"completion_tokens":2}}}}"#);
        assert_eq!(find_usage(later.as_bytes()), counts(7, 2, None));
        assert_eq!(find_usage(b""), None);
    }

    proptest! {
        #[test]
        fn garbage_never_panics(pieces in prop::collection::vec(prop_oneof![
            Just(b"\"usage\":{".to_vec()), Just(b"\"prompt_tokens\":".to_vec()), Just(b"1}".to_vec()),
            prop::collection::vec(any::<u8>(), 0..6),
        ], 0..40)) {
            _ = find_usage(&pieces.concat());
        }
    }
}
