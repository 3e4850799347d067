//! Writes `/api/chat` and `/api/generate`, for backends that have only Ollama's own API.

use super::chat::write_tool_list;
use crate::RequestTerms;
use crate::conversation::{
    Conversation, Effort, Format, ImageSource, Message, Part, Role, ToolChoice, join, joined_text,
};
use crate::error::ConvertError;
use crate::json::{Fields, ListWriter, ObjectWriter};

/// The values that Ollama's own `/v1` uses if a request sets none; otherwise the model's file
/// decides.
const DEFAULTS: &[(&str, &str)] = &[("temperature", "1.0"), ("top_p", "1.0")];

/// Sampling options that Ollama knows.
const OPTIONS: &[&str] = &[
    "temperature",
    "top_p",
    "seed",
    "presence_penalty",
    "frequency_penalty",
    "top_k",
    "min_p",
    "typical_p",
    "repeat_penalty",
    "repeat_last_n",
];

/// Writes the body of `/api/chat`.
pub(crate) fn write_chat(
    conversation: &Conversation<'_>,
    terms: &RequestTerms<'_>,
    out: &mut Vec<u8>,
) -> Result<(), ConvertError> {
    if conversation.raw.is_some() {
        let reason = "its chat has no form for a prompt without a template";
        return Err(ConvertError::Unsupported { field: "prompt", reason });
    }
    let mut body = ObjectWriter::new(out);
    body.text("model", terms.model);
    {
        let mut list = body.list("messages");
        for message in &conversation.messages {
            write_message(message, &mut list)?;
        }
    }
    match conversation.tools.choice {
        None | Some(ToolChoice::Auto) => write_tool_list(&conversation.tools.list, &mut body),
        // Without tools, the model cannot call any.
        Some(ToolChoice::None) => {}
        Some(ToolChoice::Required | ToolChoice::Named(_)) => {
            let reason = "Ollama's own API cannot make a model call a tool";
            return Err(ConvertError::Unsupported { field: "tool_choice", reason });
        }
    }
    write_format_and_thinking(conversation, &mut body);
    write_generation(conversation, terms, &mut body)
}

/// Writes the body of `/api/generate`.
pub(crate) fn write_generate(
    conversation: &Conversation<'_>,
    terms: &RequestTerms<'_>,
    out: &mut Vec<u8>,
) -> Result<(), ConvertError> {
    let Some(raw) = &conversation.raw else {
        let reason = "only prompts can be generated from, not conversations";
        return Err(ConvertError::Unsupported { field: "messages", reason });
    };
    let mut body = ObjectWriter::new(out);
    body.text("model", terms.model);
    body.text("prompt", &raw.prompt);
    match &raw.suffix {
        // The model's template has the markers around the gap.
        Some(suffix) => body.text("suffix", suffix),
        None => body.flag("raw", true),
    }
    write_generation(conversation, terms, &mut body)
}

fn write_message(message: &Message<'_>, list: &mut ListWriter<'_>) -> Result<(), ConvertError> {
    let role = match message.role {
        Role::System => "system",
        Role::Assistant => "assistant",
        Role::User | Role::Tool => {
            for result in message.results() {
                let mut object = list.object();
                object.text("role", "tool");
                object.text("content", &joined_text(&result.parts));
                object.text("tool_name", &result.name);
                object.text("tool_call_id", &result.call);
            }
            "user"
        }
    };
    let parts = message.beside_results();
    if parts.is_empty() && !message.parts.is_empty() {
        return Ok(());
    }
    let mut object = list.object();
    object.text("role", role);
    let texts = parts.iter().filter_map(|part| match part {
        Part::Text(text) => Some(&**text),
        Part::Image(_) | Part::Thinking { .. } | Part::Call(_) | Part::Result(_) => None,
    });
    object.text("content", &join(texts).unwrap_or_default());
    object.text_if("thinking", message.thinking().as_deref());
    write_images(&parts, &mut object)?;
    if message.calls().next().is_some() {
        let mut list = object.list("tool_calls");
        for call in message.calls() {
            let mut object = list.object();
            object.text("id", &call.id);
            let mut function = object.object("function");
            function.text("name", &call.name);
            function.raw("arguments", &call.object());
        }
    }
    Ok(())
}

fn write_images(parts: &[&Part<'_>], message: &mut ObjectWriter<'_>) -> Result<(), ConvertError> {
    let mut images = parts.iter().filter_map(|part| match part {
        Part::Image(image) => Some(image),
        Part::Text(_) | Part::Thinking { .. } | Part::Call(_) | Part::Result(_) => None,
    });
    let Some(first) = images.next() else { return Ok(()) };
    let mut list = message.list("images");
    for image in std::iter::once(first).chain(images) {
        match &image.source {
            ImageSource::Inline { base64, .. } => list.text(base64),
            ImageSource::Address(_) => {
                let reason = "it takes images in base64, not addresses";
                return Err(ConvertError::Unsupported { field: "image_url", reason });
            }
        }
    }
    Ok(())
}

fn write_format_and_thinking(conversation: &Conversation<'_>, body: &mut ObjectWriter<'_>) {
    match &conversation.format {
        None => {}
        Some(Format::Json) => body.text("format", "json"),
        Some(Format::Schema { schema, .. }) => body.raw("format", schema.get()),
    }
    match (conversation.thinking.effort, conversation.thinking.enabled) {
        (Some(Effort::None), _) | (None, Some(false)) => body.flag("think", false),
        (Some(Effort::Minimal | Effort::Low), _) => body.text("think", "low"),
        (Some(Effort::Medium), _) => body.text("think", "medium"),
        (Some(Effort::High), _) => body.text("think", "high"),
        (Some(Effort::XHigh | Effort::Max), _) => body.text("think", "max"),
        (None, Some(true)) => body.flag("think", true),
        (None, None) => {}
    }
}

fn write_generation(
    conversation: &Conversation<'_>,
    terms: &RequestTerms<'_>,
    body: &mut ObjectWriter<'_>,
) -> Result<(), ConvertError> {
    let mut extra = conversation.extra.clone();
    // Clients that know the backend behind `/v1` set Ollama's own options there, such as `num_ctx`.
    let own: Fields<'_> = extra.take_as("options", "an object")?.unwrap_or_default();
    write_options(conversation, &own, terms, &mut body.object("options"));
    body.flag("stream", conversation.stream);
    if conversation.logprobs.enabled {
        body.flag("logprobs", true);
        if let Some(top) = conversation.logprobs.top {
            body.number("top_logprobs", top);
        }
    }
    for (name, value) in extra.iter() {
        if !is_written(conversation, name) {
            body.raw(name, value.get());
        }
    }
    Ok(())
}

fn write_options(
    conversation: &Conversation<'_>,
    own: &Fields<'_>,
    terms: &RequestTerms<'_>,
    options: &mut ObjectWriter<'_>,
) {
    // First: the options that the client writes itself win over translated ones.
    for (name, value) in own.iter() {
        options.raw(name, value.get());
    }
    let is_free = |name: &str| own.iter().all(|(known, _)| known != name);
    for (name, value) in conversation.sampling.iter() {
        if OPTIONS.contains(&name) && is_free(name) {
            options.raw(name, value.get());
        }
    }
    for (name, value) in DEFAULTS {
        if is_free(name) && !conversation.sampling.has(name) {
            options.raw(name, value);
        }
    }
    if let Some(length) = terms.num_ctx.filter(|_| is_free("num_ctx")) {
        options.number("num_ctx", length.into());
    }
    if let Some(limit) = conversation.max_tokens.filter(|_| is_free("num_predict")) {
        options.number("num_predict", limit);
    }
    if !conversation.stop.is_empty() && is_free("stop") {
        let mut list = options.list("stop");
        conversation.stop.iter().for_each(|stop| list.text(stop));
    }
}

fn is_written(conversation: &Conversation<'_>, name: &str) -> bool {
    match name {
        "model" | "messages" | "prompt" | "raw" | "suffix" | "stream" | "tools" | "options" => true,
        "format" => conversation.format.is_some(),
        "think" => {
            conversation.thinking.effort.is_some() || conversation.thinking.enabled.is_some()
        }
        "logprobs" | "top_logprobs" => conversation.logprobs.enabled,
        _ => false,
    }
}
