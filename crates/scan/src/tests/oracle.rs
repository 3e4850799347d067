//! Compares the scanner with a walk over `serde_json`'s tree: the same verdict on every body, and
//! the same facts on every valid one.

pub(super) mod bodies;
mod facts;

use penstock_api::{Capabilities, Operation};
use proptest::prelude::*;
use serde_json::Value;

use super::super::{ScanError, ScanOptions, Syntax, TokenEstimate, scan};
use super::is_measured;
use bodies::{Printer, a_body};
use facts::{Facts, is_json};

const OPERATIONS: [Operation; 18] = [
    Operation::Chat,
    Operation::Completions,
    Operation::Embeddings,
    Operation::Responses,
    Operation::Messages,
    Operation::Rerank,
    Operation::Score,
    Operation::Moderations,
    Operation::Speech,
    Operation::ImageGenerations,
    Operation::CountTokens,
    Operation::InputTokens,
    Operation::Classify,
    Operation::Tokenize,
    Operation::Detokenize,
    Operation::NativeEmbedding,
    Operation::Infill,
    Operation::FillInTheMiddle,
];

/// Returns the verdict on the meaning of a body that is valid JSON.
fn expected_error(operation: Operation, value: &Value) -> Option<ScanError> {
    let has_messages =
        matches!(operation, Operation::Chat | Operation::Messages | Operation::CountTokens);
    match &value["model"] {
        Value::String(name) if name.trim().is_empty() => return Some(ScanError::EmptyModel),
        Value::String(_) | Value::Null => {}
        _ => return Some(ScanError::WrongType { field: "model", expected: "a string" }),
    }
    let messages = value.get("messages");
    if has_messages && messages.is_some_and(|messages| !messages.is_array()) {
        return Some(ScanError::WrongType { field: "messages", expected: "an array" });
    }
    None
}

fn check_facts(operation: Operation, estimate: TokenEstimate, body: &[u8], value: &Value) {
    let options = ScanOptions { estimate, ..ScanOptions::default() };
    let scanned = scan(operation, None, body, options);
    if let Err(ScanError::Twin { field }) = scanned {
        // The tree does not show that null followed a name, or a name in other case.
        let text = String::from_utf8_lossy(body);
        assert!(
            field != "model"
                || text.contains("null")
                || !text.is_ascii()
                || text != text.to_lowercase()
        );
        return;
    }
    if let Some(error) = expected_error(operation, value) {
        assert_eq!(scanned, Err(error));
        return;
    }
    let profile = scanned.unwrap();
    let facts = Facts::of(operation, value, estimate);
    assert_eq!(profile.model_name(body), value["model"].as_str().unwrap_or(""));
    assert_eq!(profile.names_model(), value["model"].is_string());
    assert_eq!(profile.streaming, value["stream"] == true);
    if !is_measured(&String::from_utf8_lossy(body), estimate) {
        assert_eq!(profile.estimated_tokens.0 as usize, facts.text / 4 + facts.ids);
    }
    assert!(profile.prompt_tokens >= profile.estimated_tokens);
    assert_eq!(profile.needs.contains(Capabilities::VISION), facts.has_image);
    let tools = !value["tools"].is_null() || !value["functions"].is_null();
    assert_eq!(profile.needs.contains(Capabilities::TOOLS), tools);
    let json = is_json(&value["response_format"])
        || operation == Operation::Responses && is_json(&value["text"]["format"]);
    assert_eq!(profile.needs.contains(Capabilities::JSON_MODE), json);
    let names = ["max_completion_tokens", "max_output_tokens", "max_tokens"];
    // Fractions and texts depend on their spelling; the rules test those.
    if names.iter().all(|name| value[*name].is_null() || value[*name].is_u64()) {
        let limit = names.iter().find_map(|name| value[*name].as_u64());
        let limit = limit.map(|limit| u32::try_from(limit).unwrap_or(u32::MAX));
        assert_eq!(profile.max_tokens.map(|limit| limit.0), limit);
    }
}

/// Returns whether `serde_json` accepts the body; `None` if a number exceeds its range, which JSON
/// does not limit.
pub(super) fn serde_takes(body: &[u8]) -> Option<bool> {
    match serde_json::from_slice::<Value>(body) {
        Ok(value) => Some(value.is_object()),
        Err(error) if error.to_string().starts_with("number out of range") => None,
        Err(_) => Some(false),
    }
}

pub(super) fn we_take(body: &[u8]) -> bool {
    !matches!(
        scan(Operation::Chat, None, body, ScanOptions::default()),
        Err(ScanError::Malformed { .. }
            | ScanError::TrailingComma { .. }
            | ScanError::Truncated { .. }
            | ScanError::InvalidUtf8 { .. })
    )
}

fn check_verdict(body: &[u8]) {
    if let Some(takes) = serde_takes(body) {
        assert_eq!(we_take(body), takes, "{:?}", String::from_utf8_lossy(body));
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 400, ..ProptestConfig::default() })]

    #[test]
    fn facts_agree_with_a_walk_over_the_tree(
        body in a_body(), dice: u64, operation in prop::sample::select(&OPERATIONS[..]),
        estimate in prop::sample::select(&TokenEstimate::ALL),
    ) {
        let text = Printer::print(&body, dice);
        let value: Value = serde_json::from_str(&text).unwrap();
        check_facts(operation, estimate, text.as_bytes(), &value);
    }

    #[test]
    fn broken_bodies_get_the_same_verdict(
        body in a_body(),
        dice: u64,
        edits in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>(), 0..4_u8), 1..4),
    ) {
        const LIKELY: &[u8] = b"{}[]:,\"\\u09eE+-.tfn \n\x00\x1f\x80\xc3\xff";
        let mut bytes = Printer::print(&body, dice).into_bytes();
        for (place, byte, edit) in edits {
            let place = place.index(bytes.len() + 1).min(bytes.len().saturating_sub(1));
            let byte = LIKELY.get(usize::from(byte)).copied().unwrap_or(byte);
            match edit {
                0 => bytes.insert(place, byte),
                1 => bytes.truncate(place),
                _ if bytes.is_empty() => {}
                2 => _ = bytes.remove(place),
                _ => bytes[place] = byte,
            }
        }
        check_verdict(&bytes);
        for operation in OPERATIONS {
            _ = scan(operation, None, &bytes, ScanOptions::default());
        }
    }

    #[test]
    fn garbage_gets_the_same_verdict(bytes in prop::collection::vec(any::<u8>(), 0..200)) {
        check_verdict(&bytes);
        let mut inside = b"{\"a\":\"".to_vec();
        inside.extend(&bytes);
        inside.extend(b"\"}");
        check_verdict(&inside);
    }

    #[test]
    fn any_number_gets_the_same_verdict(number in "[-+]?[0-9.eE+-]{1,6}") {
        check_verdict(format!("{{\"a\":{number}}}").as_bytes());
        check_verdict(format!("{{\"max_tokens\":{number}}}").as_bytes());
    }

    #[test]
    fn any_escape_gets_the_same_verdict(text in "(\\\\(u[dD][89a-fA-F0-9]{2}[0-9]|[a-z\"\\\\/]|u[0-9a-g]{3,4})){1,3}") {
        check_verdict(format!("{{\"a\":\"{text}\"}}").as_bytes());
    }
}

#[test]
fn depth_ends_one_level_behind_serde_json() {
    // Including the body's own braces 128 levels: accepted here, one too many there.
    for depth in (120..135).filter(|depth| depth + 1 != 128) {
        for (open, close) in [("[", "]"), ("{\"a\":", "}")] {
            for field in ["a", "messages", "tools", "response_format", "text"] {
                let body =
                    format!("{{\"{field}\":{}1{}}}", open.repeat(depth), close.repeat(depth));
                check_verdict(body.as_bytes());
            }
        }
    }
    let expected = Syntax::Depth;
    let body =
        |depth| format!("{{\"model\":\"m\",\"a\":{}1{}}}", "[".repeat(depth), "]".repeat(depth));
    let scanned =
        |depth| scan(Operation::Chat, None, body(depth).as_bytes(), ScanOptions::default());
    assert!(scanned(127).is_ok(), "128 levels");
    let offset = "{\"model\":\"m\",\"a\":".len() + 127;
    assert_eq!(scanned(128), Err(ScanError::Malformed { offset, expected }));
}
