//! Reads the items of `input`: messages, calls of tools and their results, thinking.

use serde::Deserialize;
use serde_json::value::RawValue;

use crate::conversation::{Call, CallResult, Image, Message, Part, Role, flat_name};
use crate::error::ConvertError;
use crate::image;
use crate::json::{ObjectWriter, Text, is_string};

#[derive(Default, Deserialize)]
#[serde(default, bound(deserialize = "'de: 'a"))]
struct InputItem<'a> {
    #[serde(rename = "type")]
    kind: Option<Text<'a>>,
    role: Option<Text<'a>>,
    content: Option<&'a RawValue>,
    summary: Option<Vec<ItemPart<'a>>>,
    call_id: Option<Text<'a>>,
    name: Option<Text<'a>>,
    namespace: Option<Text<'a>>,
    arguments: Option<Text<'a>>,
    input: Option<Text<'a>>,
    output: Option<&'a RawValue>,
    /// The action of a shell call.
    action: Option<&'a RawValue>,
    id: Option<Text<'a>>,
}

#[derive(Deserialize)]
#[serde(bound(deserialize = "'de: 'a"))]
struct ItemPart<'a> {
    #[serde(rename = "type")]
    kind: Text<'a>,
    text: Option<Text<'a>>,
    refusal: Option<Text<'a>>,
    image_url: Option<Text<'a>>,
    detail: Option<Text<'a>>,
}

/// Appends the items as messages. Successive texts and calls of the model become one message, and
/// so do instructions: many chat templates take only one system message.
pub(super) fn read_items<'a>(
    raw: &'a RawValue,
    messages: &mut Vec<Message<'a>>,
) -> Result<(), ConvertError> {
    let invalid = ConvertError::Invalid { field: "input", expected: "a string or a list of items" };
    let items: Vec<&RawValue> = serde_json::from_str(raw.get()).map_err(|_error| invalid)?;
    if items.is_empty() {
        return Err(ConvertError::Empty { field: "input" });
    }
    for (index, raw) in items.into_iter().enumerate() {
        let invalid = ConvertError::InvalidItem {
            field: "input",
            index,
            expected: "an item of a known type",
        };
        let item: InputItem<'_> = serde_json::from_str(raw.get()).map_err(|_error| invalid)?;
        let (role, parts) = read_item(item).ok_or(invalid)?;
        match messages.last_mut() {
            Some(last) if last.role == role && matches!(role, Role::System | Role::Assistant) => {
                last.parts.extend(parts);
            }
            _ => messages.push(Message { role, parts }),
        }
    }
    Ok(())
}

/// Reads the author and the parts of an item; returns `None` if it is malformed, or made by
/// OpenAI's platform.
fn read_item(item: InputItem<'_>) -> Option<(Role, Vec<Part<'_>>)> {
    match item.kind.as_deref() {
        None | Some("message") => {
            let role = match item.role.as_deref()? {
                "system" | "developer" => Role::System,
                "user" => Role::User,
                "assistant" => Role::Assistant,
                _ => return None,
            };
            Some((role, read_content(item.content?)?))
        }
        Some("function_call") => {
            let arguments = item.arguments.filter(|text| !text.trim().is_empty());
            let arguments = arguments.unwrap_or_else(|| "{}".into());
            let name = full_name(item.name?, item.namespace);
            Some((Role::Assistant, vec![call(item.call_id, name, arguments)]))
        }
        // These calls come from a turn of another model.
        Some("local_shell_call") => {
            let action = item.action.map(RawValue::get).filter(|action| action.starts_with('{'))?;
            let call = call(item.call_id.or(item.id), "local_shell".into(), action.into());
            Some((Role::Assistant, vec![call]))
        }
        Some("custom_tool_call") => {
            let mut arguments = Vec::new();
            ObjectWriter::new(&mut arguments).text("input", &item.input?);
            let arguments = String::from_utf8(arguments).ok()?;
            let name = full_name(item.name?, item.namespace);
            Some((Role::Assistant, vec![call(item.call_id, name, arguments.into())]))
        }
        Some("function_call_output" | "custom_tool_call_output" | "local_shell_call_output") => {
            let parts = read_content(item.output?)?;
            let (call, name) = (item.call_id.or(item.id)?, Text::default());
            let result = CallResult { call, name, parts, is_error: false };
            Some((Role::Tool, vec![Part::Result(result)]))
        }
        Some("reasoning") => {
            let content = item.content.map(read_content).unwrap_or_default().unwrap_or_default();
            let summary = item.summary.into_iter().flatten().filter_map(read_part).collect();
            // The summary shortens what the content has whole.
            let texts: Vec<Part<'_>> = if content.is_empty() { summary } else { content };
            let thinking = texts.into_iter().filter_map(|part| match part {
                Part::Text(text) => Some(Part::Thinking { text, signature: None }),
                Part::Image(_) | Part::Thinking { .. } | Part::Call(_) | Part::Result(_) => None,
            });
            Some((Role::Assistant, thinking.collect()))
        }
        Some(_) => None,
    }
}

/// Returns the name by which a backend knows a tool.
fn full_name<'a>(name: Text<'a>, namespace: Option<Text<'a>>) -> Text<'a> {
    match namespace {
        Some(namespace) => flat_name(&namespace, &name).into(),
        None => name,
    }
}

fn call<'a>(id: Option<Text<'a>>, name: Text<'a>, arguments: Text<'a>) -> Part<'a> {
    Part::Call(Call { id: id.unwrap_or_default(), name, arguments })
}

fn read_content(content: &RawValue) -> Option<Vec<Part<'_>>> {
    if is_string(content) {
        return Some(vec![Part::Text(serde_json::from_str(content.get()).ok()?)]);
    }
    let parts: Vec<ItemPart<'_>> = serde_json::from_str(content.get()).ok()?;
    parts.into_iter().map(read_part).collect()
}

fn read_part(part: ItemPart<'_>) -> Option<Part<'_>> {
    match &*part.kind {
        "input_text" | "output_text" | "text" | "reasoning_text" | "summary_text" => {
            part.text.map(Part::Text)
        }
        "refusal" => part.refusal.map(Part::Text),
        "input_image" => {
            // Chat has no other words for it, and engines refuse them.
            let detail = part.detail.filter(|word| matches!(&**word, "auto" | "low" | "high"));
            let source = image::of_url(part.image_url?);
            Some(Part::Image(Image { source, detail }))
        }
        _ => None,
    }
}
