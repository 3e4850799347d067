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
                self.has_image |= is_image(value);
                if let Some(content) = document.get("content") {
                    self.add_content(content, true);
                }
            }
            _ => {}
        }
    }

    fn add_content(&mut self, value: &Value, is_inner: bool) {
        match value {
            Value::String(text) => self.add_text(text),
            Value::Array(parts) => {
                parts.iter().filter(|part| part.is_object()).for_each(|part| self.add_part(part));
            }
            Value::Object(_) if is_inner => self.add_part(value),
            _ => {}
        }
    }

    fn add_part(&mut self, part: &Value) {
        self.has_image |= is_image(part);
        match part.get("type").and_then(Value::as_str) {
            Some("text" | "input_text" | "output_text") => {
                if let Some(Value::String(text)) = part.get("text") {
                    self.add_text(text);
                }
            }
            Some("tool_result") => self.add_content(&part["content"], true),
            Some("image_url" | "input_image" | "image" | "input_audio") => {}
            _ if is_image(part) => {}
            // The text of what is not known is no conversation, but an image is one anywhere.
            _ => {
                let mut inner = Self::default();
                inner.add_content(&part["content"], true);
                self.has_image |= inner.has_image;
            }
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
                let chats = [Operation::Tokenize, Operation::Classify, Operation::Embeddings];
                if chats.contains(&operation) {
                    facts.add_messages(&body["messages"]);
                }
                let fields: &[&str] = match operation {
                    Operation::ImageGenerations => &["prompt"],
                    Operation::Tokenize => &["content", "prompt"],
                    Operation::Detokenize => &["tokens"],
                    Operation::NativeEmbedding => &["content", "input"],
                    Operation::Infill => &["input_prefix", "input_extra", "input_suffix", "prompt"],
                    Operation::Completions | Operation::FillInTheMiddle => &["prompt", "suffix"],
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

fn is_image(part: &Value) -> bool {
    let is_filled = |value: &Value| match value {
        Value::String(text) => !text.is_empty(),
        value => value.is_object() || value.is_array(),
    };
    match part.get("type").and_then(Value::as_str) {
        Some("image_url" | "input_image" | "image") => true,
        Some("text" | "input_text" | "output_text" | "tool_result" | "input_audio") => false,
        _ => {
            let has_text = part["text"].as_str().is_some_and(|text| !text.is_empty());
            !has_text && part.get("image_url").is_some_and(is_filled)
        }
    }
}

pub(super) fn is_json(format: &Value) -> bool {
    matches!(format["type"].as_str(), Some("json_object" | "json_schema"))
}
