//! Reads the parts of a prompt outside the conversation: definitions of tools, documents, values
//! of templates, and the format that a response must have.

use penstock_api::Operation;
use penstock_api::slices::between;

use super::content::{content, part};
use super::cursor::{Cursor, Members, Parsed, Syntax};
use super::ollama::is_empty;
use super::prompt::PromptContents;

/// A member of the body that an engine reads in addition to the conversation.
#[derive(Debug, Clone, Copy)]
pub(super) enum Definition {
    Tools,
    Functions,
    Format,
    TextFormat,
    Documents,
    /// Values for the template that makes a prompt of a chat, such as documents.
    TemplateValues,
    /// A stored prompt, with values for its variables.
    StoredPrompt,
    /// Something that the engine adds to the prompt by itself: searches, the tools of a server.
    Addition,
}

impl Definition {
    /// The definition with this name that counts only by its length.
    pub(super) fn of(operation: Operation, name: &[u8]) -> Option<Self> {
        Some(match (operation, name) {
            (Operation::Messages, b"output_format" | b"output_config") => Self::Format,
            (Operation::Chat, b"documents") => Self::Documents,
            (Operation::Chat, b"chat_template_kwargs") => Self::TemplateValues,
            (Operation::Responses, b"prompt") => Self::StoredPrompt,
            _ if is_addition(name) => Self::Addition,
            _ => return None,
        })
    }
}

/// Returns whether a member names something that an engine adds to the prompt by itself. Anthropic
/// has the first two, OpenAI the next one, and Azure, xAI, Qwen, OpenRouter, Cohere and Gemini one
/// each.
fn is_addition(name: &[u8]) -> bool {
    matches!(
        name,
        b"mcp_servers"
            | b"container"
            | b"web_search_options"
            | b"data_sources"
            | b"search_parameters"
            | b"enable_search"
            | b"plugins"
            | b"connectors"
            | b"extra_body"
    )
}

/// The lengths of the definitions, in the unit of the token estimate. A repeated member replaces
/// the earlier one.
#[derive(Debug, Default)]
pub(super) struct Definitions {
    lengths: [u64; 8],
    /// True if a variable of a stored prompt is an image.
    pub(super) has_image: bool,
    /// True if the engine adds to the prompt: a stored prompt, a search, a tool that it runs.
    pub(super) refers: bool,
}

impl Definitions {
    /// Consumes a definition.
    #[inline(never)]
    pub(super) fn read(
        &mut self,
        definition: Definition,
        cursor: &mut Cursor<'_>,
        kind: u8,
    ) -> Parsed {
        let length = match definition {
            Definition::TemplateValues => read_values(cursor, kind)?,
            Definition::StoredPrompt => {
                let variables = read_stored_prompt(cursor, kind)?;
                self.has_image = variables.has_image;
                self.refers |= kind == b'{';
                variables.length()
            }
            Definition::Addition => {
                let start = cursor.at;
                cursor.skip(kind)?;
                let value = between(cursor.bytes, start, cursor.at);
                // An empty object is a search with its defaults.
                self.refers |= kind == b'{' || !matches!(kind, b'n' | b'f') && !is_empty(value);
                0
            }
            Definition::Tools if kind == b'[' => {
                self.refers |= cursor.skip_tools()?;
                cursor.weight.as_json()
            }
            Definition::Tools
            | Definition::Functions
            | Definition::Format
            | Definition::TextFormat
            | Definition::Documents => cursor.weighed(kind)?.as_json(),
        };
        self.set(definition, length);
        Ok(())
    }

    pub(super) fn set(&mut self, definition: Definition, length: u64) {
        if let Some(slot) = self.lengths.get_mut(definition as usize) {
            *slot = length;
        }
    }

    pub(super) fn sum(&self) -> u64 {
        self.lengths.iter().sum()
    }
}

/// Consumes an object of values that a template inserts into the prompt. Their names are not in it,
/// and most flags only choose between its parts.
fn read_values(cursor: &mut Cursor<'_>, kind: u8) -> Result<u64, Syntax> {
    let mut length = 0;
    if kind != b'{' {
        cursor.skip(kind)?;
        return Ok(length);
    }
    cursor.members(Members::named(|_| ()), |cursor, (), kind| {
        if kind == b'"' {
            let text = cursor.text()?;
            length += cursor.measure(text);
            return Ok(());
        }
        cursor.skip(kind)?;
        if matches!(kind, b'[' | b'{') {
            length += cursor.weight.as_json();
        }
        Ok(())
    })?;
    Ok(length)
}

/// Consumes the member `prompt` of the Responses API. A variable is a text, or a part of a content.
fn read_stored_prompt(cursor: &mut Cursor<'_>, kind: u8) -> Result<PromptContents, Syntax> {
    let mut variables = PromptContents::default();
    if kind != b'{' {
        cursor.skip(kind)?;
        return Ok(variables);
    }
    cursor.members(Members::named(|name| name == b"variables"), |cursor, is_list, kind| {
        if !is_list || kind != b'{' {
            return cursor.skip(kind);
        }
        variables = PromptContents::default();
        cursor.members(Members::named(|_| ()), |cursor, (), kind| match kind {
            b'{' => part(cursor, 0, &mut variables),
            _ => content(cursor, kind, 0, &mut variables),
        })
    })?;
    Ok(variables)
}

/// The format of a response.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct FormatDefinition {
    /// True if it has the form `{"type": "json_…"}`.
    pub(super) is_json: bool,
    /// The length of its schema, in the unit of the token estimate.
    pub(super) schema: u64,
}

/// Consumes a format.
pub(super) fn read_format(cursor: &mut Cursor<'_>, kind: u8) -> Result<FormatDefinition, Syntax> {
    let mut format = FormatDefinition::default();
    if kind != b'{' {
        cursor.skip(kind)?;
        return Ok(format);
    }
    cursor.members(Members::named(|name| name == b"type"), |cursor, is_type, kind| {
        if !is_type {
            format.schema += cursor.weighed(kind)?.as_json();
            return Ok(());
        }
        format.is_json = false;
        if kind != b'"' {
            return cursor.skip(kind);
        }
        let kind = cursor.string()?;
        format.is_json =
            cursor.decoded(kind, |kind| matches!(kind, b"json_object" | b"json_schema"));
        Ok(())
    })?;
    Ok(format)
}

/// Consumes the member `text` of the Responses API, which contains a format.
pub(super) fn read_text_format(
    cursor: &mut Cursor<'_>,
    kind: u8,
) -> Result<FormatDefinition, Syntax> {
    let mut format = FormatDefinition::default();
    if kind != b'{' {
        cursor.skip(kind)?;
        return Ok(format);
    }
    cursor.members(Members::named(|name| name == b"format"), |cursor, is_format, kind| {
        if is_format {
            format = read_format(cursor, kind)?;
            return Ok(());
        }
        cursor.skip(kind)
    })?;
    Ok(format)
}
