//! Reads `/api/generate`. The prompt goes through the model's chat template unless the request is
//! raw or has a gap to fill.

use super::ollama_options;
use crate::conversation::{Conversation, Message, Part, RawPrompt, Role};
use crate::error::ConvertError;
use crate::image;
use crate::json::{Fields, Text};

/// Reads the body.
pub(crate) fn read(body: &[u8]) -> Result<Conversation<'_>, ConvertError> {
    let mut fields = Fields::of_body(body)?;
    let mut conversation = Conversation::default();
    ollama_options::fill(&mut conversation, &mut fields)?;
    for field in ["template", "context"] {
        let value = fields.take(field).map_or("", |value| value.get());
        if !matches!(value, "" | "\"\"" | "[]") {
            let reason = "only Ollama itself can use it";
            return Err(ConvertError::Unsupported { field, reason });
        }
    }
    let is_raw = fields.take_as("raw", "true or false")?.unwrap_or(false);
    let system = take_text(&mut fields, "system")?;
    let suffix = take_text(&mut fields, "suffix")?;
    let images: Vec<Text<'_>> = fields.take_list("images", "an image in base64")?;
    let prompt = take_text(&mut fields, "prompt")?;
    let prompt = prompt.ok_or(ConvertError::Empty { field: "prompt" })?;
    conversation.extra = fields;
    if !is_raw && suffix.is_none() {
        let system =
            system.map(|text| Message { role: Role::System, parts: vec![Part::Text(text)] });
        let mut parts = vec![Part::Text(prompt)];
        for one in images {
            parts.push(Part::Image(image::of_base64(one)?.into()));
        }
        conversation.messages.extend(system);
        conversation.messages.push(Message { role: Role::User, parts });
        return Ok(conversation);
    }
    if system.is_some() {
        let reason = "a raw prompt has no template to put it into";
        return Err(ConvertError::Unsupported { field: "system", reason });
    }
    if !images.is_empty() {
        let reason = "a raw prompt is text";
        return Err(ConvertError::Unsupported { field: "images", reason });
    }
    conversation.raw = Some(RawPrompt { prompt, suffix });
    Ok(conversation)
}

/// Takes a text that is not empty.
fn take_text<'a>(
    fields: &mut Fields<'a>,
    name: &'static str,
) -> Result<Option<Text<'a>>, ConvertError> {
    let text: Option<Text<'_>> = fields.take_as(name, "a string")?;
    Ok(text.filter(|text| !text.is_empty()))
}
