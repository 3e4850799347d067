//! Requests that a model cannot serve: the errors of engines, and the request without its tools or
//! its images. Everything else keeps its bytes.

use std::ops::Range;

use memchr::{memchr2_iter, memmem};
use penstock_api::{Capabilities, Operation};
use serde::Deserialize;
use serde_json::value::RawValue;

use super::context_shift::{TOOL_MEMBERS, cut_items, range_in};
use super::error_body::text_of;
use super::error_meaning::RequestText;
use super::json::{Fields, Text};

/// The phrases by which engines refuse requests beyond their model's abilities, in lower case.
const MARKS: &[(&str, Capabilities)] = &[
    // Ollama
    ("does not support tools", Capabilities::TOOLS),
    ("missing data required for image input", Capabilities::VISION),
    // llama.cpp
    ("image input is not supported", Capabilities::VISION),
    ("tools param requires --jinja", Capabilities::TOOLS),
    // vLLM
    ("requires --enable-auto-tool-choice", Capabilities::TOOLS),
    ("is not a multimodal model", Capabilities::VISION),
    ("at most 0 image(s) may be provided", Capabilities::VISION),
    // LM Studio
    ("model does not support images", Capabilities::VISION),
    // OpenRouter
    ("no endpoints found that support tool use", Capabilities::TOOLS),
    ("no endpoints found that support image input", Capabilities::VISION),
    // OpenAI, Azure
    ("of type 'json_schema' is not supported with", Capabilities::JSON_MODE),
    ("of type 'json_object' is not supported with", Capabilities::JSON_MODE),
];

/// Returns the capabilities that an engine's error reports as missing; empty if it is about
/// something else. A phrase that the `request` contains is no report: the engine may quote it.
pub fn read_unsupported(body: &[u8], request: &[u8]) -> Capabilities {
    let text = text_of(body).to_ascii_lowercase();
    let found = MARKS.iter().find(|(mark, _)| text.contains(mark));
    let found = found.filter(|(mark, _)| !RequestText::new(request).may_contain(mark));
    found.map_or(Capabilities::NONE, |(_, capability)| *capability)
}

/// Returns a request without the tools or images in `what`. Returns `None` if it has none, or is
/// not what its API describes.
pub fn without(operation: Operation, body: &[u8], what: Capabilities) -> Option<Vec<u8>> {
    let mut edits = Vec::new();
    if what.contains(Capabilities::TOOLS) {
        drop_tools(body, &mut edits)?;
    }
    if what.contains(Capabilities::VISION) {
        let mut images = Images { body, edits: &mut edits };
        images.read(operation)?;
    }
    (!edits.is_empty()).then(|| apply(body, edits))
}

/// Returns whether an image of a request is an SVG, which no vision model reads.
pub fn has_svg(operation: Operation, body: &[u8]) -> bool {
    if !may_name_svg(body) {
        return false;
    }
    let mut edits = Vec::new();
    let mut images = Images { body, edits: &mut edits };
    let is_read = images.read(operation).is_some();
    let is_svg = |edit: &Edit| {
        let text = body.get(edit.seen.clone()).unwrap_or_default();
        [&b"data:image/svg"[..], b".svg\""].iter().any(|mark| memmem::find(text, mark).is_some())
    };
    is_read && edits.iter().any(is_svg)
}

/// Returns whether a body has one of the marks of `has_svg`. The search looks for a byte that
/// base64 does not contain, so a large image costs one pass: the letters alone occur in every
/// megabyte of base64.
fn may_name_svg(body: &[u8]) -> bool {
    memchr2_iter(b':', b'.', body)
        .filter_map(|at| body.get(at..))
        .any(|rest| rest.starts_with(b":image/svg") || rest.starts_with(b".svg\""))
}

struct Edit {
    /// The replaced range.
    range: Range<usize>,
    by: &'static str,
    /// The images that the change removes.
    seen: Range<usize>,
}

fn apply(body: &[u8], mut edits: Vec<Edit>) -> Vec<u8> {
    // Tools and images were found by two walks.
    edits.sort_by_key(|edit| edit.range.start);
    let mut out = Vec::with_capacity(body.len());
    let mut at = 0;
    for edit in &edits {
        out.extend_from_slice(body.get(at..edit.range.start).unwrap_or_default());
        out.extend_from_slice(edit.by.as_bytes());
        at = edit.range.end;
    }
    out.extend_from_slice(body.get(at..).unwrap_or_default());
    out
}

/// Cuts the members that only have a meaning with tools.
fn drop_tools(body: &[u8], edits: &mut Vec<Edit>) -> Option<()> {
    let fields = Fields::of_body(body).ok()?;
    let mut members = Vec::new();
    let mut end = body.iter().position(|byte| *byte == b'{')?;
    for (name, value) in fields.iter() {
        let range = range_in(body, value)?;
        let start = end + body.get(end..range.start)?.iter().position(|byte| *byte == b'"')?;
        end = range.end;
        members.push((TOOL_MEMBERS.contains(&name), start..end));
    }
    let ranges: Vec<_> = members.iter().map(|(_, range)| range.clone()).collect();
    let is_tool = |index: usize| members.get(index).is_some_and(|(is_tool, _)| *is_tool);
    let cuts = cut_items(&ranges, is_tool).into_iter();
    edits.extend(cuts.map(|range| Edit { range, by: "", seen: 0..0 }));
    Some(())
}

/// The relevant members of a part of a message.
#[derive(Default, Deserialize)]
#[serde(default, bound(deserialize = "'de: 'a"))]
struct MessagePart<'a> {
    #[serde(rename = "type")]
    kind: Option<Text<'a>>,
    content: Option<&'a RawValue>,
}

/// A message or an item.
#[derive(Default, Deserialize)]
#[serde(default, bound(deserialize = "'de: 'a"))]
struct MessageOrItem<'a> {
    content: Option<&'a RawValue>,
    output: Option<&'a RawValue>,
    images: Option<&'a RawValue>,
}

struct Images<'a, 'e> {
    body: &'a [u8],
    edits: &'e mut Vec<Edit>,
}

impl Images<'_, '_> {
    fn read(&mut self, operation: Operation) -> Option<()> {
        if operation == Operation::OllamaGenerate {
            let mut fields = Fields::of_body(self.body).ok()?;
            return fields.take("images").map_or(Some(()), |list| self.empty(list));
        }
        let list = operation.row().messages_member()?;
        let mut fields = Fields::of_body(self.body).ok()?;
        let Some(list) = fields.take(list) else { return Some(()) };
        // A prompt as text has no images.
        let messages: Vec<MessageOrItem<'_>> = serde_json::from_str(list.get()).unwrap_or_default();
        for message in messages {
            for parts in [message.content, message.output].into_iter().flatten() {
                self.read_parts(parts)?;
            }
            if let Some(list) = message.images {
                self.empty(list)?;
            }
        }
        Some(())
    }

    /// Empties Ollama's list of images.
    fn empty(&mut self, list: &RawValue) -> Option<()> {
        let range = range_in(self.body, list)?;
        // Without a quote the list is empty already.
        if list.get().contains('"') {
            self.edits.push(Edit { range: range.clone(), by: "[]", seen: range });
        }
        Some(())
    }

    fn read_parts(&mut self, list: &RawValue) -> Option<()> {
        let Ok(items) = serde_json::from_str::<Vec<&RawValue>>(list.get()) else { return Some(()) };
        let mut ranges = Vec::with_capacity(items.len());
        let mut are_images = Vec::with_capacity(items.len());
        for item in &items {
            let part: MessagePart<'_> = serde_json::from_str(item.get()).ok()?;
            let kind = part.kind.as_deref().unwrap_or_default();
            are_images.push(matches!(kind, "image_url" | "input_image" | "image"));
            ranges.push(range_in(self.body, item)?);
            if let Some(parts) = part.content.filter(|_| kind == "tool_result") {
                self.read_parts(parts)?;
            }
        }
        let is_image = |index: usize| are_images.get(index) == Some(&true);
        if are_images.iter().all(|is_image| *is_image) && !are_images.is_empty() {
            // A message must have some content, even if there is none to read.
            let range = range_in(self.body, list)?;
            self.edits.push(Edit { range: range.clone(), by: "\"\"", seen: range });
            return Some(());
        }
        let cuts = cut_items(&ranges, is_image);
        self.edits.extend(cuts.into_iter().map(|cut| Edit {
            range: cut.clone(),
            by: "",
            seen: cut,
        }));
        Some(())
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn drop(operation: Operation, body: &Value, what: Capabilities) -> Option<Value> {
        let without = without(operation, body.to_string().as_bytes(), what)?;
        Some(serde_json::from_slice(&without).unwrap())
    }

    #[test]
    fn engines_say_what_their_models_cannot_do() {
        for (body, expected) in [
            (r#"{"error": "registry.ollama.ai/library/m does not support tools"}"#, "[tools]"),
            (
                r#"{"error": {"code": 500, "message": "image input is not supported - hint"}}"#,
                "[vision]",
            ),
            (
                r#"{"error": {"message": "\"auto\" tool choice requires --enable-auto-tool-choice"}}"#,
                "[tools]",
            ),
            (
                r#"{"error":{"message":"No endpoints found that support tool use.","code":404}}"#,
                "[tools]",
            ),
            (
                r#"{"error":{"message":"Invalid parameter: 'response_format' of type 'json_schema' is not supported with this model."}}"#,
                "[json_mode]",
            ),
            (r#"{"error": "does not support thinking"}"#, "[]"),
            ("x", "[]"),
        ] {
            assert_eq!(read_unsupported(body.as_bytes(), b"{}").to_string(), expected, "{body}");
        }
    }

    #[test]
    fn engine_that_quotes_a_prompt_reports_nothing() {
        let error = br#"{"error": "template failed at: m does not support tools"}"#;
        let request = br#"{"messages": [{"content": "Why: m DOES NOT support \u0074ools?"}]}"#;
        assert!(read_unsupported(error, request).is_empty());
    }

    #[test]
    fn letters_in_base64_are_no_mark_of_an_svg() {
        let names = |url: &str| may_name_svg(json!({"url": url}).to_string().as_bytes());
        assert!(names("data:image/svg+xml;base64,PHN2Zz4="));
        assert!(names("https://example.com/drawing.svg"));
        assert!(!names("data:image/png;base64,AAsvgsvgAA/svg+"));
        assert!(!names("https://example.com/svg.png"));
    }

    #[test]
    fn tools_go_with_all_that_is_about_them() {
        let body =
            json!({"tools": [{"x": 1}], "model": "m", "tool_choice": "auto", "messages": []});
        let expected = json!({"model": "m", "messages": []});
        assert_eq!(drop(Operation::Chat, &body, Capabilities::TOOLS), Some(expected));
        let body = json!({"model": "m", "messages": []});
        assert_eq!(drop(Operation::Chat, &body, Capabilities::TOOLS), None, "nothing to drop");
        assert!(without(Operation::Chat, b"[", Capabilities::TOOLS).is_none());
    }

    #[test]
    fn images_are_removed_and_text_is_kept() {
        let vision = Capabilities::VISION;
        let chat = json!({"messages": [
            {"role": "user", "content": [
                {"type": "image_url", "image_url": {"url": "data:image/png;base64,AA"}},
                {"type": "text", "text": "and this"},
                {"type": "image_url", "image_url": {"url": "data:image/png;base64,BB"}},
            ]},
            {"role": "user", "content": [{"type": "image_url", "image_url": {"url": "x"}}]},
        ]});
        let expected = json!({"messages": [
            {"role": "user", "content": [{"type": "text", "text": "and this"}]},
            {"role": "user", "content": ""},
        ]});
        assert_eq!(drop(Operation::Chat, &chat, vision), Some(expected));
        let ollama = json!({"messages": [{"role": "user", "content": "a", "images": ["AA"]}]});
        let expected = json!({"messages": [{"role": "user", "content": "a", "images": []}]});
        assert_eq!(drop(Operation::OllamaChat, &ollama, vision), Some(expected.clone()));
        assert_eq!(drop(Operation::OllamaChat, &expected, vision), None);
        let generate = json!({"prompt": "a", "images": ["AA"]});
        let expected = json!({"prompt": "a", "images": []});
        assert_eq!(drop(Operation::OllamaGenerate, &generate, vision), Some(expected));
        let messages = json!({"messages": [{"role": "user", "content": [
            {"type": "tool_result", "tool_use_id": "1", "content": [
                {"type": "text", "text": "a"}, {"type": "image", "source": {}},
            ]},
        ]}]});
        let expected = json!({"messages": [{"role": "user", "content": [
            {"type": "tool_result", "tool_use_id": "1", "content": [{"type": "text", "text": "a"}]},
        ]}]});
        assert_eq!(drop(Operation::Messages, &messages, vision), Some(expected));
        assert_eq!(drop(Operation::Responses, &json!({"input": "text"}), vision), None);
    }

    #[test]
    fn svg_is_found_in_images_only() {
        let chat = |url: &str, text: &str| {
            json!({"messages": [{"role": "user", "content": [
                {"type": "text", "text": text}, {"type": "image_url", "image_url": {"url": url}},
            ]}]})
            .to_string()
        };
        for (url, text, expected) in [
            ("data:image/svg+xml;base64,AA", "", true),
            ("https://example.com/a.svg", "", true),
            ("data:image/png;base64,AA", "what is data:image/svg+xml?", false),
            ("data:image/png;base64,svg", "", false),
        ] {
            let body = chat(url, text);
            assert_eq!(has_svg(Operation::Chat, body.as_bytes()), expected, "{body}");
        }
        assert!(!has_svg(Operation::Embeddings, b"{\"input\": \"svg\"}"));
    }
}
