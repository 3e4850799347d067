//! The facts of a body, found by a walk over its tree.

use penstock_api::Operation;
use serde_json::Value;

use super::super::{TokenEstimate, length};

/// The facts, found naively.
#[derive(Debug, Default)]
pub(super) struct Facts {
    pub(super) text: usize,
    pub(super) ids: usize,
    pub(super) has_image: bool,
    estimate: TokenEstimate,
}

impl Facts {
    fn add_text(&mut self, text: &str) {
        self.text += length(text, self.estimate);
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

    pub(super) fn of(operation: Operation, body: &Value, estimate: TokenEstimate) -> Self {
        let mut facts = Self { estimate, ..Self::default() };
        match operation {
            Operation::Chat => facts.add_messages(&body["messages"]),
            Operation::Messages | Operation::CountTokens => {
                facts.add_messages(&body["messages"]);
                facts.add_content(&body["system"], false);
            }
            Operation::Responses | Operation::InputTokens => {
                facts.add_messages(&body["input"]);
                facts.add_content(&body["instructions"], false);
            }
            _ => {
                if matches!(operation, Operation::Tokenize | Operation::Classify) {
                    facts.add_messages(&body["messages"]);
                }
                let fields: &[&str] = match operation {
                    Operation::Completions | Operation::ImageGenerations => &["prompt"],
                    Operation::Tokenize => &["content", "prompt"],
                    Operation::Detokenize => &["tokens"],
                    Operation::NativeEmbedding => &["content", "input"],
                    Operation::Infill => &["input_prefix", "input_extra", "input_suffix", "prompt"],
                    Operation::FillInTheMiddle => &["prompt", "suffix"],
                    Operation::Rerank => &["query", "documents", "texts"],
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

pub(super) fn is_json(format: &Value) -> bool {
    matches!(format["type"].as_str(), Some("json_object" | "json_schema"))
}
