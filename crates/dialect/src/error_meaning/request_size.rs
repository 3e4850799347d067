//! The refusal of a request that exceeds a rate limit by itself: no wait helps it, and the limit is
//! not used up for others.

/// Phrases for a request beyond the limit, in lower case.
const PHRASES: &[&str] = &[
    "request too large",
    "request is too large",
    "larger than the limit",
    "larger than the rate limit",
    "larger than your rate limit",
    "usage is required for long context",
];
/// The words for a limit of tokens: one of concurrent requests is used up for now.
const TOKENS: &[&str] = &["token", "tpm", "too large"];
/// The words before a time after which a retry makes sense.
const BEFORE_TIMES: &[&str] =
    &["try again in ", "retry in ", "again after ", "retry after ", "retry-after: ", "wait "];
/// The words before the limit.
const LIMIT_WORDS: &[&str] = &["limit ", "limit: ", "limit = ", "limit of ", "limit is "];
/// The words before the number of tokens that the request needs.
const REQUESTED: &[&str] = &[
    "requested ",
    "requested: ",
    "requested about ",
    "requested = ",
    "request of ",
    "request has ",
    "request contains ",
    "request requires ",
    "request needs ",
];

/// Returns whether a message, in lower case, says that the request is larger than a limit. Without
/// both numbers, a message that names a time is about a limit that is used up for now.
pub(super) fn exceeds_limit(message: &str) -> bool {
    match (number_after(message, LIMIT_WORDS), number_after(message, REQUESTED)) {
        // A limit of zero is an account that may not use the model at all.
        (Some(limit), Some(requested)) => {
            limit > 0 && requested > limit && TOKENS.iter().any(|word| message.contains(word))
        }
        _ => {
            let is_said = PHRASES.iter().any(|phrase| message.contains(phrase));
            is_said && !names_time(message) && !message.contains("try again later")
        }
    }
}

/// Returns whether a message, in lower case, names a time after which a retry makes sense.
pub(super) fn names_time(message: &str) -> bool {
    let is_time = |(at, word): (usize, &str)| {
        message
            .get(at + word.len()..)
            .is_some_and(|rest| rest.starts_with(|c: char| c.is_ascii_digit()))
    };
    BEFORE_TIMES.iter().any(|word| message.match_indices(*word).any(is_time))
}

/// The first number that follows one of `words`.
fn number_after(message: &str, words: &[&str]) -> Option<u64> {
    let found = |word: &&str| {
        let mut places = message.match_indices(*word);
        places.find_map(|(at, word)| number_at(message.get(at + word.len()..)?))
    };
    words.iter().find_map(found)
}

/// The whole number at the start of a text, with or without separators of thousands; `None` if a
/// fraction or a unit follows.
fn number_at(text: &str) -> Option<u64> {
    let rest = text.trim_start_matches(|letter: char| letter.is_ascii_digit() || letter == ',');
    let mut rest = rest.bytes();
    match (rest.next(), rest.next()) {
        (Some(b'.'), Some(digit)) if digit.is_ascii_digit() => return None,
        (Some(unit), _) if unit.is_ascii_alphabetic() || unit == b'/' => return None,
        _ => {}
    }
    let digits = text.bytes().take_while(|byte| byte.is_ascii_digit() || *byte == b',');
    let digits = digits.filter(u8::is_ascii_digit).map(|digit| u64::from(digit - b'0'));
    digits.fold(None, |number: Option<u64>, digit| {
        Some(number.unwrap_or(0).saturating_mul(10).saturating_add(digit))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_requests_beyond_the_limit_itself_exceed_it() {
        for (message, expected) in [
            (
                "request too large for gpt-4o in organization org-x on tokens per min (tpm): limit \
                 30000, requested 45000. the input or output tokens must be reduced in order to run \
                 successfully.",
                true,
            ),
            (
                "request too large for model `llama-3.1-8b-instant` on tokens per minute (tpm): \
                 limit 6,000, requested 7,240, please reduce your message size and try again.",
                true,
            ),
            ("rate limit: your request of 45000 tokens exceeds the limit of 30000 tokens", true),
            ("limit 40000, used 0, requested 45000 tokens. please try again in 7.5s.", true),
            ("this request is too large for your tier", true),
            ("extra usage is required for long context requests.", true),
            ("rate limit reached: limit 30000, used 29000, requested 4000.", false),
            ("request too large on tokens per min: limit 30000, used 28000, requested 3000", false),
            ("limit 0, requested 10 tokens", false),
            ("rate limit 1.5m tokens/min, requested 200 tokens", false),
            ("tpm limit 30k exceeded, requested 4000", false),
            ("too many concurrent requests: limit 2, requested 3", false),
            ("request too large for now, please try again in 20s", false),
            ("your request is too large; try again later", false),
            ("this request would exceed your rate limit of 40,000 input tokens per minute", false),
            ("rate limit reached for requests per min. limit: 3 / min. please wait 20s", false),
            ("too many requests", false),
            ("", false),
        ] {
            assert_eq!(exceeds_limit(message), expected, "{message}");
        }
    }

    #[test]
    fn numbers_have_separators_and_never_overflow() {
        assert_eq!(number_at("1,234 tokens"), Some(1234));
        assert_eq!(number_at("99999999999999999999999"), Some(u64::MAX));
        assert_eq!(number_at("tokens"), None);
        assert_eq!(number_at(", 5"), None);
    }
}
