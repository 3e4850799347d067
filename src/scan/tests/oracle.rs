//! The scanner against a walk over `serde_json`'s tree: the same verdict on every body, and the
//! same facts on every good one.

use proptest::prelude::*;
use serde_json::Value;

use super::super::{ScanError, ScanOptions, Syntax, TokenEstimate, scan};
use crate::api::{Capabilities, Operation};

const OPERATIONS: [Operation; 10] = [
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
];

/// JSON as a client may write it: members may come twice.
#[derive(Debug, Clone)]
enum Json {
    Literal(&'static str),
    Number(String),
    Text(String),
    Array(Vec<Json>),
    Object(Vec<(String, Json)>),
}

/// Prints with blanks and escapes where `dice` falls for them.
struct Printer {
    dice: u64,
    escapes: bool,
    out: String,
}

impl Printer {
    fn print(json: &Json, dice: u64) -> String {
        let mut printer = Self { dice: dice | 1, escapes: dice & 2 != 0, out: String::new() };
        printer.value(json);
        printer.blank();
        printer.out
    }

    fn roll(&mut self, sides: u64) -> u64 {
        self.dice ^= self.dice << 13;
        self.dice ^= self.dice >> 7;
        self.dice ^= self.dice << 17;
        (self.dice >> 11) % sides
    }

    fn blank(&mut self) {
        if self.roll(4) == 0 {
            let blank = [" ", "\n", "\t", "\r\n  "][usize::try_from(self.roll(4)).unwrap()];
            self.out.push_str(blank);
        }
    }

    fn text(&mut self, text: &str) {
        self.out.push('"');
        for character in text.chars() {
            let short = match character {
                '"' => Some("\\\""),
                '\\' => Some("\\\\"),
                '/' if self.roll(2) == 0 => Some("\\/"),
                '\n' => Some("\\n"),
                '\t' => Some("\\t"),
                '\r' => Some("\\r"),
                '\u{8}' => Some("\\b"),
                '\u{c}' => Some("\\f"),
                _ => None,
            };
            if let Some(short) = short {
                self.out.push_str(short);
            } else if character < ' ' || (self.escapes && self.roll(6) == 0) {
                for unit in character.encode_utf16(&mut [0; 2]) {
                    self.out.push_str(&format!("\\u{unit:04x}"));
                }
            } else {
                self.out.push(character);
            }
        }
        self.out.push('"');
    }

    fn value(&mut self, json: &Json) {
        self.blank();
        match json {
            Json::Literal(literal) => self.out.push_str(literal),
            Json::Number(number) => self.out.push_str(number),
            Json::Text(text) => self.text(text),
            Json::Array(elements) => {
                self.out.push('[');
                for (index, element) in elements.iter().enumerate() {
                    if index > 0 {
                        self.out.push(',');
                    }
                    self.value(element);
                    self.blank();
                }
                self.out.push(']');
            }
            Json::Object(members) => {
                self.out.push('{');
                for (index, (name, value)) in members.iter().enumerate() {
                    if index > 0 {
                        self.out.push(',');
                    }
                    self.blank();
                    self.text(name);
                    self.blank();
                    self.out.push(':');
                    self.value(value);
                    self.blank();
                }
                self.out.push('}');
            }
        }
    }
}

fn a_text() -> impl Strategy<Value = String> {
    prop_oneof![
        4 => prop::sample::select(vec![
            "text", "input_text", "output_text", "image_url", "input_image", "image", "tool_result",
            "json_object", "json_schema", "input_audio", "user", "", " ", "\u{3000}", "m",
        ]).prop_map(str::to_owned),
        3 => "[ -~]{0,90}",
        2 => "\\PC{0,40}",
        1 => any::<String>(),
        1 => ("[a-z日é😀]{1,9}", 1..400_usize).prop_map(|(piece, times)| piece.repeat(times)),
    ]
}

fn a_name() -> impl Strategy<Value = String> {
    prop_oneof![
        9 => prop::sample::select(vec![
            "type", "text", "content", "role", "format", "image_url", "model", "stream", "input",
        ]).prop_map(str::to_owned),
        1 => any::<String>(),
    ]
}

fn a_value() -> impl Strategy<Value = Json> {
    let leaf = prop_oneof![
        2 => prop::sample::select(vec!["true", "false", "null"]).prop_map(Json::Literal),
        2 => "-?(0|[1-9][0-9]{0,11})(\\.[0-9]{1,4})?([eE][+-]?[0-9]{1,2})?".prop_map(Json::Number),
        1 => "[1-9][0-9]{0,11}".prop_map(Json::Number),
        6 => a_text().prop_map(Json::Text),
    ];
    leaf.prop_recursive(6, 40, 6, |inner| {
        prop_oneof![
            prop::collection::vec(inner.clone(), 0..6).prop_map(Json::Array),
            prop::collection::vec((a_name(), inner), 0..6).prop_map(Json::Object),
        ]
    })
}

fn a_body() -> impl Strategy<Value = Json> {
    let member = prop_oneof![
        20 => (prop::sample::select(vec![
            "messages", "prompt", "input", "instructions", "system", "query", "documents",
            "text_1", "text_2", "tools", "functions", "response_format", "text", "stream",
            "max_tokens", "max_completion_tokens", "max_output_tokens", "stop", "model",
        ]).prop_map(str::to_owned), a_value()),
        2 => (Just("messages".to_owned()), a_messages()),
        1 => (a_name(), a_value()),
        3 => (Just("model".to_owned()), a_text().prop_map(Json::Text)),
    ];
    (prop::collection::vec(member, 0..9), any::<bool>(), any::<usize>()).prop_map(
        |(mut members, named, place)| {
            if named {
                let place = place % (members.len() + 1);
                members.insert(place, ("model".to_owned(), Json::Text("llama3:8b".to_owned())));
            }
            Json::Object(members)
        },
    )
}

/// Messages of the usual form, which chance alone would seldom build.
fn a_messages() -> impl Strategy<Value = Json> {
    let text = || a_text().prop_map(Json::Text);
    let part =
        (prop::sample::select(vec!["text", "image_url", "tool_result", "x"]), a_value(), text())
            .prop_map(|(kind, content, text)| {
                Json::Object(vec![
                    ("text".to_owned(), text),
                    ("type".to_owned(), Json::Text(kind.to_owned())),
                    ("content".to_owned(), content),
                ])
            });
    let content = prop_oneof![
        text(),
        prop::collection::vec(prop_oneof![3 => part, 1 => a_value()], 0..4).prop_map(Json::Array),
        a_value(),
    ];
    let message = content.prop_map(|content| Json::Object(vec![("content".to_owned(), content)]));
    prop::collection::vec(message, 0..5).prop_map(Json::Array)
}

/// The facts, found the slow way.
#[derive(Debug, Default)]
struct Facts {
    text: usize,
    ids: usize,
    has_image: bool,
    utf8: bool,
}

impl Facts {
    fn add_text(&mut self, text: &str) {
        self.text += if self.utf8 { text.len() } else { text.chars().count() };
    }

    fn add_prompt(&mut self, value: &Value, levels: usize) {
        match value {
            Value::String(text) => self.add_text(text),
            Value::Number(_) => self.ids += 1,
            Value::Array(elements) if levels > 0 => {
                elements.iter().for_each(|element| self.add_prompt(element, levels - 1));
            }
            Value::Object(document) => {
                if let Some(Value::String(text)) = document.get("text") {
                    self.add_text(text);
                }
                self.has_image |= is_image(document.get("type"));
            }
            _ => {}
        }
    }

    fn add_content(&mut self, value: &Value, in_result: bool) {
        match value {
            Value::String(text) => self.add_text(text),
            Value::Array(parts) => {
                for part in parts {
                    self.has_image |= is_image(part.get("type"));
                    match part.get("type").and_then(Value::as_str) {
                        Some("text" | "input_text" | "output_text") => {
                            if let Some(Value::String(text)) = part.get("text") {
                                self.add_text(text);
                            }
                        }
                        Some("tool_result") if !in_result => {
                            self.add_content(&part["content"], true);
                        }
                        _ => {}
                    }
                }
            }
            _ => {}
        }
    }

    fn add_messages(&mut self, value: &Value) {
        match value {
            Value::String(text) => self.add_text(text),
            Value::Array(messages) => {
                for message in messages {
                    if let Some(content) = message.as_object().and_then(|it| it.get("content")) {
                        self.add_content(content, false);
                    }
                }
            }
            _ => {}
        }
    }

    fn of(operation: Operation, body: &Value, utf8: bool) -> Self {
        let mut facts = Self { utf8, ..Self::default() };
        match operation {
            Operation::Chat => facts.add_messages(&body["messages"]),
            Operation::Messages => {
                facts.add_messages(&body["messages"]);
                facts.add_content(&body["system"], false);
            }
            Operation::Responses => {
                facts.add_messages(&body["input"]);
                facts.add_content(&body["instructions"], false);
            }
            _ => {
                let fields: &[&str] = match operation {
                    Operation::Completions | Operation::ImageGenerations => &["prompt"],
                    Operation::Rerank => &["query", "documents"],
                    Operation::Score => &["text_1", "text_2", "query", "documents"],
                    _ => &["input"],
                };
                for field in fields {
                    facts.add_prompt(&body[field], 2);
                }
            }
        }
        facts
    }
}

fn is_image(kind: Option<&Value>) -> bool {
    matches!(kind.and_then(Value::as_str), Some("image_url" | "input_image" | "image"))
}

fn is_json(format: &Value) -> bool {
    matches!(format["type"].as_str(), Some("json_object" | "json_schema"))
}

/// The verdict on the meaning of a body that is JSON.
fn expected_error(operation: Operation, value: &Value) -> Option<ScanError> {
    let has_messages = matches!(operation, Operation::Chat | Operation::Messages);
    match &value["model"] {
        Value::Null => return Some(ScanError::MissingModel),
        Value::String(name) if name.trim().is_empty() => return Some(ScanError::EmptyModel),
        Value::String(_) => {}
        _ => return Some(ScanError::WrongType { field: "model", expected: "a string" }),
    }
    let messages = value.get("messages");
    if has_messages && messages.is_some_and(|messages| !messages.is_array()) {
        return Some(ScanError::WrongType { field: "messages", expected: "an array" });
    }
    None
}

fn check_facts(operation: Operation, utf8: bool, body: &[u8], value: &Value) {
    let estimate = if utf8 { TokenEstimate::Utf8 } else { TokenEstimate::Chars };
    let options = ScanOptions { estimate, ..ScanOptions::default() };
    let scanned = scan(operation, None, body, options);
    if let Some(error) = expected_error(operation, value) {
        assert_eq!(scanned, Err(error));
        return;
    }
    let profile = scanned.unwrap();
    let facts = Facts::of(operation, value, utf8);
    assert_eq!(profile.model_name(body), value["model"].as_str().unwrap());
    assert_eq!(profile.streaming, value["stream"] == true);
    assert_eq!(profile.estimated_tokens.0 as usize, facts.text / 4 + facts.ids);
    assert_eq!(profile.needs.contains(Capabilities::VISION), facts.has_image);
    let tools = !value["tools"].is_null() || !value["functions"].is_null();
    assert_eq!(profile.needs.contains(Capabilities::TOOLS), tools);
    let json = is_json(&value["response_format"])
        || operation == Operation::Responses && is_json(&value["text"]["format"]);
    assert_eq!(profile.needs.contains(Capabilities::JSON_MODE), json);
    let limit = ["max_completion_tokens", "max_output_tokens", "max_tokens"]
        .iter()
        .find_map(|name| value[*name].as_u64());
    let limit = limit.map(|limit| u32::try_from(limit).unwrap_or(u32::MAX));
    assert_eq!(profile.max_tokens.map(|limit| limit.0), limit);
}

/// Whether `serde_json` takes the body; none where its numbers have a range and JSON's do not.
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
        body in a_body(), dice: u64, operation in prop::sample::select(&OPERATIONS[..]), utf8: bool,
    ) {
        let text = Printer::print(&body, dice);
        let value: Value = serde_json::from_str(&text).unwrap();
        check_facts(operation, utf8, text.as_bytes(), &value);
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
    // With the body's own braces 128 levels: accepted here, one too many there.
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
