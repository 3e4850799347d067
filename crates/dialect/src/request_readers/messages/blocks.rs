//! Reads the content of Anthropic's messages: a string, or blocks.

use serde::Deserialize;
use serde_json::value::RawValue;

use crate::conversation::{Call, CallResult, ImageSource, Part, join, joined_text};
use crate::error::ConvertError;
use crate::image;
use crate::json::{Text, is_string, read_value};

#[derive(Deserialize)]
#[serde(bound(deserialize = "'de: 'a"))]
struct InputBlock<'a> {
    #[serde(rename = "type")]
    kind: Text<'a>,
    text: Option<Text<'a>>,
    thinking: Option<Text<'a>>,
    signature: Option<Text<'a>>,
    source: Option<&'a RawValue>,
    id: Option<Text<'a>>,
    name: Option<Text<'a>>,
    input: Option<&'a RawValue>,
    tool_use_id: Option<Text<'a>>,
    content: Option<&'a RawValue>,
    is_error: Option<bool>,
    title: Option<Text<'a>>,
    /// The description of a document.
    context: Option<Text<'a>>,
    tool_name: Option<Text<'a>>,
}

#[derive(Deserialize)]
#[serde(bound(deserialize = "'de: 'a"))]
struct Source<'a> {
    #[serde(rename = "type")]
    kind: Text<'a>,
    media_type: Option<Text<'a>>,
    data: Option<Text<'a>>,
    url: Option<Text<'a>>,
}

/// Appends the parts of a content; `field` names its position.
pub(super) fn read_content<'a>(
    content: &'a RawValue,
    field: &'static str,
    parts: &mut Vec<Part<'a>>,
) -> Result<(), ConvertError> {
    if is_string(content) {
        parts.push(Part::Text(read_value(content, field, "text")?));
        return Ok(());
    }
    let blocks: Vec<InputBlock<'_>> =
        read_value(content, field, "a string or a list of content blocks")?;
    for block in blocks {
        parts.extend(read_block(block, field)?);
    }
    Ok(())
}

fn read_block<'a>(
    block: InputBlock<'a>,
    field: &'static str,
) -> Result<Option<Part<'a>>, ConvertError> {
    let part = match &*block.kind {
        "text" => Part::Text(block.text.unwrap_or_default()),
        "thinking" => {
            Part::Thinking { text: block.thinking.unwrap_or_default(), signature: block.signature }
        }
        // Encrypted by Anthropic's platform: no other engine can read it.
        "redacted_thinking" => return Ok(None),
        "image" => read_image(block.source, field)?,
        "document" => read_document(&block)?,
        "search_result" => read_search_result(block, field)?,
        // The result of a search for tools: all tools are offered, so the name is enough.
        "tool_reference" => Part::Text(block.tool_name.unwrap_or_default()),
        "tool_use" => {
            let arguments = block.input.map_or("{}", RawValue::get);
            if !arguments.starts_with('{') {
                let expected = "messages whose tool_use blocks have an object as input";
                return Err(ConvertError::Invalid { field, expected });
            }
            let (id, name) = (block.id.unwrap_or_default(), block.name.unwrap_or_default());
            Part::Call(Call { id, name, arguments: arguments.into() })
        }
        "tool_result" => {
            let mut parts = Vec::new();
            if let Some(content) = block.content {
                read_content(content, field, &mut parts)?;
            }
            Part::Result(CallResult {
                call: block.tool_use_id.unwrap_or_default(),
                name: Text::default(),
                parts,
                is_error: block.is_error.unwrap_or(false),
            })
        }
        _ => {
            let reason = "a content block has a type that only Anthropic's API knows";
            return Err(ConvertError::Unsupported { field, reason });
        }
    };
    Ok(Some(part))
}

/// Converts a search result to text: its title, its source and its content.
fn read_search_result<'a>(
    block: InputBlock<'a>,
    field: &'static str,
) -> Result<Part<'a>, ConvertError> {
    const SOURCE: &str = "messages whose search results have a source";
    let mut parts = Vec::new();
    if let Some(content) = block.content {
        read_content(content, field, &mut parts)?;
    }
    let source: Option<Text<'_>> =
        block.source.map(|source| read_value(source, field, SOURCE)).transpose()?;
    let texts = [block.title.as_deref(), source.as_deref()].into_iter().flatten();
    let body = joined_text(&parts);
    let text = join(texts.chain([&*body])).unwrap_or_default().into_owned();
    Ok(Part::Text(text.into()))
}

fn read_image<'a>(
    source: Option<&'a RawValue>,
    field: &'static str,
) -> Result<Part<'a>, ConvertError> {
    const EXPECTED: &str = "messages whose images have a source of type base64 or url";
    let invalid = ConvertError::Invalid { field, expected: EXPECTED };
    let source: Source<'_> = read_value(source.ok_or(invalid)?, field, EXPECTED)?;
    let image = match (&*source.kind, source.data, source.url) {
        ("base64", Some(base64), _) => {
            image::of_declared(source.media_type.as_deref().unwrap_or_default(), base64)
        }
        ("url", _, Some(url)) => ImageSource::Address(url),
        _ => return Err(invalid),
    };
    Ok(Part::Image(image.into()))
}

/// Reads a document: text, or a file that only Anthropic's platform can read.
/// Its title and its context are text before it, since other APIs have no members for them.
fn read_document<'a>(block: &InputBlock<'a>) -> Result<Part<'a>, ConvertError> {
    let reason = "of documents, only those of plain text are";
    let unsupported = ConvertError::Unsupported { field: "messages", reason };
    let source: Source<'_> =
        read_value(block.source.ok_or(unsupported)?, "messages", "documents with a source")?;
    match (&*source.kind, source.data) {
        ("text", Some(text)) => {
            let about = [block.title.as_deref(), block.context.as_deref()].into_iter().flatten();
            let mut about = about.filter(|text| !text.is_empty()).peekable();
            if about.peek().is_none() {
                return Ok(Part::Text(text));
            }
            let whole = join(about.chain([&*text])).unwrap_or_default().into_owned();
            Ok(Part::Text(whole.into()))
        }
        _ => Err(unsupported),
    }
}
