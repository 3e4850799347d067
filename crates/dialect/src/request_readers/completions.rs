//! Reads `/v1/completions`.

use super::openai_fields;
use crate::conversation::{Conversation, Logprobs, RawPrompt};
use crate::error::ConvertError;
use crate::json::{Fields, Text, is_string, read_value};

/// Reads the body.
pub(crate) fn read(body: &[u8]) -> Result<Conversation<'_>, ConvertError> {
    let mut fields = Fields::of_body(body)?;
    let mut conversation = Conversation::default();
    openai_fields::fill_generation(&mut conversation, &mut fields)?;
    conversation.max_tokens = fields.take_whole("max_tokens", "a whole number")?;
    let top: Option<u64> = fields.take_whole("logprobs", "a number of alternatives")?;
    conversation.logprobs = Logprobs { enabled: top.is_some(), top };
    if fields.take_as("echo", "true or false")?.unwrap_or(false) {
        let reason = "its API does not return the prompt";
        return Err(ConvertError::Unsupported { field: "echo", reason });
    }
    let candidates: Option<u64> = fields.take_whole("best_of", "a whole number")?;
    if candidates.is_some_and(|candidates| candidates > 1) {
        let reason = "its API generates one choice";
        return Err(ConvertError::Unsupported { field: "best_of", reason });
    }
    let suffix: Option<Text<'_>> = fields.take_as("suffix", "a string")?;
    let suffix = suffix.filter(|suffix| !suffix.is_empty());
    conversation.raw = Some(RawPrompt { prompt: read_prompt(&mut fields)?, suffix });
    conversation.extra = fields;
    Ok(conversation)
}

/// Reads one prompt: several, or token ids, have no form elsewhere.
fn read_prompt<'a>(fields: &mut Fields<'a>) -> Result<Text<'a>, ConvertError> {
    const FIELD: &str = "prompt";
    const EXPECTED: &str = "a string";
    let Some(raw) = fields.take(FIELD) else { return Ok(Text::default()) };
    if is_string(raw) {
        return read_value(raw, FIELD, EXPECTED);
    }
    let reason = "its API takes one prompt, as text";
    let unsupported = ConvertError::Unsupported { field: FIELD, reason };
    let prompts: Vec<Text<'_>> = serde_json::from_str(raw.get()).map_err(|_error| unsupported)?;
    let [prompt] = <[Text<'_>; 1]>::try_from(prompts).map_err(|_several| unsupported)?;
    Ok(prompt)
}
