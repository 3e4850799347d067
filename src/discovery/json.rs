//! Reading values from the JSON of engines.

use serde_json::Value;

/// Returns the text at a JSON pointer.
pub(super) fn text<'a>(value: &'a Value, at: &str) -> Option<&'a str> {
    value.pointer(at)?.as_str()
}

/// Returns a positive number of tokens.
pub(super) fn to_tokens(value: &Value) -> Option<u32> {
    value.as_u64().and_then(|tokens| u32::try_from(tokens).ok()).filter(|tokens| *tokens > 0)
}
