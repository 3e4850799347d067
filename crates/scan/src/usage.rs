//! Finds the token counts that a backend reports, in the last bytes of a response or in one event
//! of a stream. The response itself is not stored, and counts that cannot be parsed are not an
//! error.
//!
//! Three forms exist: the `usage` object of OpenAI and Anthropic, and the counts that llama.cpp and
//! Ollama put beside the text in their own dialects, llama.cpp also as `timings`.

use std::sync::LazyLock;

use memchr::memmem::Finder;

use super::TokenEstimate;
use super::cursor::{Cursor, Members, Parsed};
use super::member_name::MemberName;

static USAGE: LazyLock<MemberName> = LazyLock::new(|| MemberName::new("\"usage\""));
static TIMINGS: LazyLock<MemberName> = LazyLock::new(|| MemberName::new("\"timings\""));
/// The names of the prompt's token count in llama.cpp and Ollama.
static PROMPT: LazyLock<[MemberName; 2]> = LazyLock::new(|| {
    [MemberName::new("\"tokens_evaluated\""), MemberName::new("\"prompt_eval_count\"")]
});
/// The names of the response's token count in llama.cpp and Ollama.
static COMPLETION: LazyLock<[MemberName; 2]> =
    LazyLock::new(|| [MemberName::new("\"tokens_predicted\""), MemberName::new("\"eval_count\"")]);

/// The type of the first event of Anthropic's streams.
static MESSAGE_START: LazyLock<Finder<'static>> =
    LazyLock::new(|| Finder::new("\"message_start\""));

/// The token counts that a backend reported for a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Usage {
    /// Tokens of the prompt, cached ones included: `prompt_tokens`, `input_tokens`.
    pub prompt_tokens: Option<u32>,
    /// Tokens of the response: `completion_tokens`, `output_tokens`.
    pub completion_tokens: Option<u32>,
    /// Tokens of the prompt that came from a cache.
    pub cached_tokens: Option<u32>,
    /// Tokens of the response that are reasoning, which a stream may not show.
    pub reasoning_tokens: Option<u32>,
    /// The counts that exceeded the bounds of the request and were cut to them.
    pub cut: CutCounts,
}

/// The counts that were cut.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct CutCounts {
    /// True if the prompt's count was cut.
    pub prompt: bool,
    /// True if the response's count was cut.
    pub completion: bool,
    /// True if the count of cached tokens was cut.
    pub cached: bool,
}

impl Usage {
    /// These counts, completed by `earlier` ones: a stream may report the prompt's tokens at its
    /// start and the response's at its end.
    #[must_use]
    pub fn or(self, earlier: Self) -> Self {
        Self {
            prompt_tokens: self.prompt_tokens.or(earlier.prompt_tokens),
            completion_tokens: self.completion_tokens.or(earlier.completion_tokens),
            cached_tokens: self.cached_tokens.or(earlier.cached_tokens),
            reasoning_tokens: self.reasoning_tokens.or(earlier.reasoning_tokens),
            cut: self.cut,
        }
    }

    /// These counts without that of the response; `None` if there is no other.
    pub(super) fn without_output(self) -> Option<Self> {
        let usage = Self { completion_tokens: None, ..self };
        (usage != Self::default()).then_some(usage)
    }

    /// The tokens of the response without its reasoning; `None` if the response was not counted.
    pub fn shown_tokens(self) -> Option<u32> {
        Some(self.completion_tokens?.saturating_sub(self.reasoning_tokens.unwrap_or(0)))
    }

    fn read(&mut self, cursor: &mut Cursor<'_>) -> Parsed {
        // Anthropic counts cache reads and cache writes apart from `input_tokens`; the others
        // include them.
        let (mut had, mut taken) = (None, None);
        cursor.members(Members::named(UsageCount::of), |cursor, count, kind| match count {
            UsageCount::Prompt => read_count(cursor, kind, &mut self.prompt_tokens),
            UsageCount::Completion => read_count(cursor, kind, &mut self.completion_tokens),
            UsageCount::CacheRead => read_count(cursor, kind, &mut had),
            UsageCount::CacheCreation => read_count(cursor, kind, &mut taken),
            UsageCount::PromptDetails => {
                read_detail(cursor, kind, b"cached_tokens", &mut self.cached_tokens)
            }
            UsageCount::CompletionDetails => {
                read_detail(cursor, kind, b"reasoning_tokens", &mut self.reasoning_tokens)
            }
            UsageCount::Other => cursor.skip(kind),
        })?;
        let apart = had.unwrap_or(0).saturating_add(taken.unwrap_or(0));
        self.prompt_tokens = self.prompt_tokens.map(|count| count.saturating_add(apart));
        self.cached_tokens = self.cached_tokens.or(had);
        Ok(())
    }

    /// Reads llama.cpp's `timings`, which count the cached part of the prompt separately.
    fn read_timings(&mut self, cursor: &mut Cursor<'_>) -> Parsed {
        let mut processed = None;
        cursor.members(Members::named(TimingMember::of), |cursor, timing, kind| match timing {
            TimingMember::Processed => read_count(cursor, kind, &mut processed),
            TimingMember::Cached => read_count(cursor, kind, &mut self.cached_tokens),
            TimingMember::Predicted => read_count(cursor, kind, &mut self.completion_tokens),
            TimingMember::Other => cursor.skip(kind),
        })?;
        let cached = self.cached_tokens.unwrap_or(0);
        self.prompt_tokens = processed.map(|count: u32| count.saturating_add(cached));
        Ok(())
    }
}

/// A member of `timings`.
#[derive(Clone, Copy)]
enum TimingMember {
    Processed,
    Cached,
    Predicted,
    Other,
}

impl TimingMember {
    fn of(name: &[u8]) -> Self {
        match name {
            b"prompt_n" => Self::Processed,
            b"cache_n" => Self::Cached,
            b"predicted_n" => Self::Predicted,
            _ => Self::Other,
        }
    }
}

/// A member of `usage`.
#[derive(Clone, Copy)]
enum UsageCount {
    Prompt,
    Completion,
    CacheRead,
    CacheCreation,
    PromptDetails,
    CompletionDetails,
    Other,
}

impl UsageCount {
    fn of(name: &[u8]) -> Self {
        match name {
            b"prompt_tokens" | b"input_tokens" => Self::Prompt,
            b"completion_tokens" | b"output_tokens" => Self::Completion,
            b"cache_read_input_tokens" => Self::CacheRead,
            b"cache_creation_input_tokens" => Self::CacheCreation,
            b"prompt_tokens_details" | b"input_tokens_details" => Self::PromptDetails,
            b"completion_tokens_details" | b"output_tokens_details" => Self::CompletionDetails,
            _ => Self::Other,
        }
    }
}

/// Reads the count of this name in an object of details.
fn read_detail(
    cursor: &mut Cursor<'_>,
    kind: u8,
    name: &'static [u8],
    count: &mut Option<u32>,
) -> Parsed {
    if kind != b'{' {
        return cursor.skip(kind);
    }
    cursor.members(Members::named(|it| it == name), |cursor, is_it, kind| match is_it {
        true => read_count(cursor, kind, count),
        false => cursor.skip(kind),
    })
}

fn read_count(cursor: &mut Cursor<'_>, kind: u8, count: &mut Option<u32>) -> Parsed {
    if !kind.is_ascii_digit() {
        return cursor.skip(kind);
    }
    // A fraction is no count, and leaves an earlier one in place.
    *count = cursor.number()?.or(*count);
    Ok(())
}

/// Returns the counts in the last valid `usage` object of `tail`, which is the end of a response or
/// the data of one event.
pub fn find_usage(tail: &[u8]) -> Option<Usage> {
    let usage = USAGE.find_last(tail, |cursor, kind| read_object(cursor, kind, Usage::read))?;
    if !is_message_start(tail) {
        return Some(usage);
    }
    // The output has not started, and a stream that is cut gets no other count of it.
    usage.without_output()
}

/// Returns whether `data` is the first event of Anthropic's streams.
fn is_message_start(data: &[u8]) -> bool {
    let mut cursor = Cursor::new(data, TokenEstimate::Chars);
    // Few events contain the name, so the cost of parsing them is small.
    if MESSAGE_START.find(data).is_none() || cursor.peek() != b'{' {
        return false;
    }
    let mut is_start = false;
    // The end of an event that was cut off may be missing: the members before it count.
    _ = cursor.members(Members::named(|name| name == b"type"), |cursor, is_type, kind| {
        let start = cursor.at;
        cursor.skip(kind)?;
        let value = cursor.bytes.get(start..cursor.at);
        is_start |= is_type && value == Some(MESSAGE_START.needle());
        Ok(())
    });
    is_start
}

/// Returns the counts in `tail` of llama.cpp's and Ollama's own APIs, which have no `usage`.
pub fn find_counts(tail: &[u8]) -> Option<Usage> {
    let timings =
        TIMINGS.find_last(tail, |cursor, kind| read_object(cursor, kind, Usage::read_timings));
    let count =
        |names: &[MemberName]| names.iter().find_map(|name| name.find_last(tail, whole_count));
    let usage = Usage {
        prompt_tokens: count(&*PROMPT),
        completion_tokens: count(&*COMPLETION),
        ..Usage::default()
    };
    let usage = timings.map_or(usage, |timings| usage.or(timings));
    (usage != Usage::default()).then_some(usage)
}

/// Reads an object of counts; `None` if it is incomplete, null, or has none.
fn read_object(
    cursor: &mut Cursor<'_>,
    kind: u8,
    read: impl Fn(&mut Usage, &mut Cursor<'_>) -> Parsed,
) -> Option<Usage> {
    let mut usage = Usage::default();
    if kind != b'{' {
        return None;
    }
    read(&mut usage, cursor).ok()?;
    (usage != Usage::default()).then_some(usage)
}

/// Reads a count that is complete: followed by another member or the end of the object.
fn whole_count(cursor: &mut Cursor<'_>, kind: u8) -> Option<u32> {
    let mut count = None;
    read_count(cursor, kind, &mut count).ok()?;
    count.filter(|_| matches!(cursor.peek(), b',' | b'}'))
}

#[cfg(test)]
mod tests {
    use penstock_api::{Operation, StreamFraming};
    use proptest::prelude::*;

    use super::*;
    use crate::EventScanner;

    fn counts(prompt: u32, completion: u32, cached: Option<u32>) -> Option<Usage> {
        Some(Usage {
            prompt_tokens: Some(prompt),
            completion_tokens: Some(completion),
            cached_tokens: cached,
            ..Usage::default()
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
                counts(11, 2, Some(4)),
            ),
            (
                r#""usage":{"cache_creation_input_tokens":5,"input_tokens":7,"cache_read_input_tokens":4,"output_tokens":2}"#,
                counts(16, 2, Some(4)),
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
    fn native_dialects_count_beside_the_text() {
        let timings = r#""timings":{"cache_n":4,"prompt_n":3,"prompt_ms":1.5,"predicted_n":2}"#;
        let evaluated = r#""tokens_predicted":2,"tokens_evaluated":7,"truncated":false"#;
        for (tail, expected) in [
            (
                format!(r#"{{"content":"x",{evaluated},"tokens_cached":8,{timings}}}"#),
                counts(7, 2, Some(4)),
            ),
            (format!(r#"{{"choices":[],{timings}}}"#), counts(7, 2, Some(4))),
            (format!(r#"{{"content":"x",{evaluated}}}"#), counts(7, 2, None)),
            (
                r#"{"done":true,"total_duration":9,"prompt_eval_count":7,"eval_count": 2 }"#
                    .to_owned(),
                counts(7, 2, None),
            ),
        ] {
            assert_eq!(find_counts(tail.as_bytes()), expected, "{tail}");
        }
        for tail in [
            r#"{"content":"\"eval_count\":9,"}"#,
            r#"{"timings":{"prompt_n":7,"#,
            r#"{"timings":null,"eval_count":-1,"prompt_eval_count":7"#,
            r#"{"response":"eval_count","done":true}"#,
        ] {
            assert_eq!(find_counts(tail.as_bytes()), None, "{tail}");
        }
    }

    #[test]
    fn output_of_a_message_that_starts_is_not_counted() {
        let start = r#"{"type":"message_start","message":{"usage":{"input_tokens":7,"cache_read_input_tokens":4,"output_tokens":1}}}"#;
        let expected = Usage { completion_tokens: None, ..counts(11, 1, Some(4)).unwrap() };
        assert_eq!(find_usage(start.as_bytes()), Some(expected));
        let last = r#"{"message":{"usage":{"output_tokens":1}}, "type" : "message_start"}"#;
        assert_eq!(find_usage(last.as_bytes()), None);
        let quoted = r#"{"type":"message","content":[{"type":"tool_use","input":{"type":"message_start"}}],"usage":{"input_tokens":7,"output_tokens":2}}"#;
        assert_eq!(find_usage(quoted.as_bytes()), counts(7, 2, None), "a whole response");

        let mut events = EventScanner::new(Operation::Messages, StreamFraming::Events);
        events.feed(format!("event: message_start\ndata: {start}\n\n").as_bytes());
        assert_eq!(events.usage(), Some(expected), "a stream that is cut here");
        events.feed(b"data: {\"type\":\"message_delta\",\"usage\":{\"output_tokens\":9}}\n\n");
        assert_eq!(events.usage(), counts(11, 9, Some(4)));
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
            Just(b"\"timings\":{\"prompt_n\":".to_vec()), Just(b"\"eval_count\":".to_vec()),
            prop::collection::vec(any::<u8>(), 0..6),
        ], 0..40)) {
            _ = (find_usage(&pieces.concat()), find_counts(&pieces.concat()));
        }
    }
}
