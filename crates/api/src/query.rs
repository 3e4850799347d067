//! Values in the query of a URL.

use std::fmt::Write;

/// Returns the value of the first parameter called `name`, decoded.
pub fn query_value(query: &str, name: &str) -> Option<String> {
    let pair = query.split('&').find_map(|pair| {
        let (key, value) = pair.split_once('=').unwrap_or((pair, ""));
        (key == name).then_some(value)
    })?;
    // Before the decoding, which makes a plus sign of `%2B`.
    Some(percent_decode(&pair.replace('+', " ")))
}

/// Returns the query without the parameters called `name`; `None` if nothing remains.
pub fn query_without(query: &str, name: &str) -> Option<String> {
    let mut left = String::with_capacity(query.len());
    for pair in query.split('&').filter(|pair| pair.split('=').next() != Some(name)) {
        let separator = if left.is_empty() { "" } else { "&" };
        // Writing to a string does not fail.
        _ = write!(left, "{separator}{pair}");
    }
    (!left.is_empty()).then_some(left)
}

/// Decodes `%XX`; invalid sequences stay unchanged.
pub fn percent_decode(text: &str) -> String {
    let mut bytes = Vec::with_capacity(text.len());
    let mut rest = text.as_bytes();
    while let Some((&first, after)) = rest.split_first() {
        let code = after.first_chunk::<2>().and_then(|digits| std::str::from_utf8(digits).ok());
        let decoded = code.and_then(|digits| u8::from_str_radix(digits, 16).ok());
        match decoded {
            Some(byte) if first == b'%' => {
                bytes.push(byte);
                rest = after.get(2..).unwrap_or_default();
            }
            Some(_) | None => {
                bytes.push(first);
                rest = after;
            }
        }
    }
    // No name of a model or a key is anything but UTF-8, so that either form matches nothing.
    String::from_utf8(bytes).unwrap_or_else(|_not_utf8| text.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_are_percent_decoded() {
        assert_eq!(percent_decode("meta%2Fllama%3A8b"), "meta/llama:8b");
        assert_eq!(percent_decode("100%"), "100%");
        assert_eq!(percent_decode("%zz%4"), "%zz%4");
        assert_eq!(query_value("a=1&model=x%3Ay+z", "model").as_deref(), Some("x:y z"));
        assert_eq!(query_value("models=1&model", "model").as_deref(), Some(""));
        assert_eq!(query_value("", "model"), None);
    }

    #[test]
    fn parameter_is_removed_wherever_it_is() {
        for (query, left) in [
            ("api_key=s", None),
            ("a=1&api_key=s", Some("a=1")),
            ("api_key=s&a=1&api_key=t&b", Some("a=1&b")),
            ("my_api_key=s", Some("my_api_key=s")),
        ] {
            assert_eq!(query_without(query, "api_key").as_deref(), left, "{query}");
        }
    }
}
