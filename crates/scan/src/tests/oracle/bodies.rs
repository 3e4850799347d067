//! Bodies as generators and clients write them.

use proptest::prelude::*;

/// JSON as a client may write it: members may be repeated.
#[derive(Debug, Clone)]
pub(in crate::tests) enum Json {
    Literal(&'static str),
    Number(String),
    Text(String),
    Array(Vec<Json>),
    Object(Vec<(String, Json)>),
}

/// Prints JSON with blanks and escapes chosen by `dice`.
pub(in crate::tests) struct Printer {
    dice: u64,
    escapes: bool,
    out: String,
}

impl Printer {
    pub(in crate::tests) fn print(json: &Json, dice: u64) -> String {
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
            "type", "text", "content", "role", "format", "image_url", "model", "stream",
        ]).prop_map(str::to_owned),
        1 => any::<String>(),
    ]
}

pub(in crate::tests) fn a_value() -> impl Strategy<Value = Json> {
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

pub(super) fn a_body() -> impl Strategy<Value = Json> {
    let member = prop_oneof![
        20 => (prop::sample::select(vec![
            "messages", "prompt", "input", "instructions", "system", "query", "documents",
            "content", "tokens", "input_prefix", "input_extra", "input_suffix", "suffix",
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

/// Generates messages of the usual form, which random JSON would seldom contain.
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
