//! Writes Anthropic's `/v1/messages`.

use serde_json::value::RawValue;

use crate::RequestTerms;
use crate::conversation::{
    CallResult, Conversation, Effort, Format, Image, ImageSource, Message, Part, Role, Thinking,
    ToolChoice, Tools, join,
};
use crate::error::ConvertError;
use crate::json::{ListWriter, ObjectWriter, read_value};

/// The limit of a request without one: the API requires a limit, and every Claude model supports
/// this one.
const DEFAULT_MAX_TOKENS: u64 = 4096;

/// The text of a user's turn without any: the API refuses an empty one, and without the turn the
/// model would continue the message before it.
const EMPTY_TURN: &str = "(empty)";

/// Sampling options that Anthropic's API has.
const SAMPLING: &[&str] = &["temperature", "top_p", "top_k"];

/// Writes the body.
pub(crate) fn write(
    conversation: &Conversation<'_>,
    terms: &RequestTerms<'_>,
    out: &mut Vec<u8>,
) -> Result<(), ConvertError> {
    check(conversation)?;
    let mut body = ObjectWriter::new(out);
    body.text("model", terms.model);
    body.number("max_tokens", conversation.max_tokens.unwrap_or(DEFAULT_MAX_TOKENS));
    write_messages(&conversation.messages, &mut body);
    write_tools(&conversation.tools, &mut body);
    // The API refuses to think before a call that it must make; the call is what the client needs.
    let thinks = conversation.thinking.enabled.filter(|on| !on || !is_call_forced(conversation));
    write_thinking_and_format(conversation, thinks, &mut body);
    for (name, value) in conversation.sampling.iter().filter(|(name, _)| SAMPLING.contains(name)) {
        if thinks != Some(true) || fits_thinking(name, value) {
            body.raw(name, value.get());
        }
    }
    if !conversation.stop.is_empty() {
        let mut list = body.list("stop_sequences");
        conversation.stop.iter().for_each(|stop| list.text(stop));
    }
    body.flag("stream", conversation.stream);
    write_extra(conversation, &mut body)
}

/// Returns whether the model must call a tool.
fn is_call_forced(conversation: &Conversation<'_>) -> bool {
    let tools = &conversation.tools;
    let is_forced = matches!(tools.choice, Some(ToolChoice::Required | ToolChoice::Named(_)));
    is_forced && !tools.list.is_empty()
}

/// Returns whether the API takes a sampling option while the model thinks: `top_p` from 0.95 to 1,
/// no `top_k`, and no `temperature` but 1, which is the default. Source: Anthropic's documentation
/// of extended thinking.
fn fits_thinking(name: &str, value: &RawValue) -> bool {
    name == "top_p" && value.get().parse().is_ok_and(|share: f64| (0.95..=1.0).contains(&share))
}

/// Refuses fields that the API has no form for and the client would miss.
fn check(conversation: &Conversation<'_>) -> Result<(), ConvertError> {
    let unsupported = |field, reason| Err(ConvertError::Unsupported { field, reason });
    if conversation.raw.is_some() {
        return unsupported("prompt", "Anthropic's API has no prompts without a template");
    }
    if conversation.logprobs.enabled {
        return unsupported("logprobs", "Anthropic's API has none");
    }
    if matches!(conversation.format, Some(Format::Json)) {
        return unsupported("format", "Anthropic's API takes a schema, not any JSON");
    }
    Ok(())
}

fn write_messages(messages: &[Message<'_>], body: &mut ObjectWriter<'_>) {
    let is_system = |message: &&Message<'_>| message.role == Role::System;
    // The API requires a message: instructions alone become one of the user.
    let has_others = !messages.iter().all(|message| is_system(&message));
    if has_others {
        let systems: Vec<_> = messages.iter().filter(is_system).map(Message::text).collect();
        let systems = systems.iter().map(|text| &**text).filter(|text| is_visible(text));
        body.text_if("system", join(systems).as_deref());
    }
    let mut list = body.list("messages");
    // Without an empty message of the assistant, the turns of the user around it are one.
    let is_empty = |one: &Message<'_>| one.role == Role::Assistant && !has_sayable(&one.parts);
    let is_left = |one: &&Message<'_>| (!has_others || !is_system(one)) && !is_empty(one);
    let mut rest = messages.iter().filter(is_left).peekable();
    while let Some(first) = rest.next() {
        let is_assistant = first.role == Role::Assistant;
        let mut turn = vec![first];
        // User and assistant alternate: successive messages of one author become one.
        while let Some(next) = rest.next_if(|next| (next.role == Role::Assistant) == is_assistant) {
            turn.push(next);
        }
        write_turn(&turn, is_assistant, &mut list);
    }
}

fn write_turn(turn: &[&Message<'_>], is_assistant: bool, list: &mut ListWriter<'_>) {
    let parts = || turn.iter().flat_map(|message| &message.parts);
    let is_result = |part: &&Part<'_>| matches!(part, Part::Result(_));
    let mut message = list.object();
    message.text("role", if is_assistant { "assistant" } else { "user" });
    if !has_sayable(parts()) {
        message.text("content", EMPTY_TURN);
        return;
    }
    let mut content = message.list("content");
    // The API requires results before anything else.
    for part in parts().filter(is_result).chain(parts().filter(|part| !is_result(part))) {
        if is_sayable(part) {
            write_part(part, &mut content);
        }
    }
}

/// Returns whether the API takes a part: no text of whitespace alone, no thinking that it cannot
/// verify.
fn is_sayable(part: &Part<'_>) -> bool {
    match part {
        Part::Text(text) => is_visible(text),
        Part::Thinking { signature, .. } => signature.as_ref().is_some_and(|one| !one.is_empty()),
        Part::Image(_) | Part::Call(_) | Part::Result(_) => true,
    }
}

fn has_sayable<'m>(parts: impl IntoIterator<Item = &'m Part<'m>>) -> bool {
    parts.into_iter().any(is_sayable)
}

/// Returns whether a text has more than whitespace; the API refuses any other.
fn is_visible(text: &str) -> bool {
    !text.trim().is_empty()
}

fn write_part(part: &Part<'_>, content: &mut ListWriter<'_>) {
    let mut block = content.object();
    match part {
        Part::Text(text) => {
            block.text("type", "text");
            block.text("text", text);
        }
        Part::Image(image) => write_image(image, block),
        Part::Thinking { text, signature } => {
            block.text("type", "thinking");
            block.text("thinking", text);
            block.text_if("signature", signature.as_deref());
        }
        Part::Call(call) => {
            block.text("type", "tool_use");
            block.text("id", &call.id);
            block.text("name", &call.name);
            block.raw("input", &call.object());
        }
        Part::Result(result) => write_result(result, block),
    }
}

fn write_image(image: &Image<'_>, mut block: ObjectWriter<'_>) {
    block.text("type", "image");
    let mut source = block.object("source");
    match &image.source {
        ImageSource::Inline { media, base64 } => {
            source.text("type", "base64");
            source.text("media_type", media);
            source.text("data", base64);
        }
        ImageSource::Address(url) => {
            source.text("type", "url");
            source.text("url", url);
        }
    }
}

fn write_result(result: &CallResult<'_>, mut block: ObjectWriter<'_>) {
    block.text("type", "tool_result");
    block.text("tool_use_id", &result.call);
    if result.is_error {
        block.flag("is_error", true);
    }
    let mut content = block.list("content");
    for part in result.parts.iter().filter(|part| is_sayable(part)) {
        write_part(part, &mut content);
    }
}

fn write_tools(tools: &Tools<'_>, body: &mut ObjectWriter<'_>) {
    if tools.list.is_empty() {
        return;
    }
    {
        let mut list = body.list("tools");
        for tool in &tools.list {
            let mut object = list.object();
            object.text("name", &tool.name);
            object.text_if("description", tool.description.as_deref());
            let any = r#"{"type":"object","properties":{}}"#;
            object.raw("input_schema", tool.schema.map_or(any, |schema| schema.get()));
            object.raw_if("strict", tool.strict);
        }
    }
    let (kind, name) = match &tools.choice {
        None if tools.parallel.is_none() => return,
        None | Some(ToolChoice::Auto) => ("auto", None),
        Some(ToolChoice::None) => ("none", None),
        Some(ToolChoice::Required) => ("any", None),
        Some(ToolChoice::Named(name)) => ("tool", Some(&**name)),
    };
    let mut choice = body.object("tool_choice");
    choice.text("type", kind);
    choice.text_if("name", name);
    // `none` has no such flag.
    if let Some(parallel) = tools.parallel.filter(|_| kind != "none") {
        // The API has the negation of OpenAI's flag.
        choice.flag("disable_parallel_tool_use", !parallel);
    }
}

fn write_thinking_and_format(
    conversation: &Conversation<'_>,
    thinks: Option<bool>,
    body: &mut ObjectWriter<'_>,
) {
    let Thinking { effort, .. } = conversation.thinking;
    match thinks {
        Some(true) => body.object("thinking").text("type", "adaptive"),
        Some(false) => body.object("thinking").text("type", "disabled"),
        None => {}
    }
    let effort = match effort {
        None | Some(Effort::None) => None,
        Some(Effort::Minimal | Effort::Low) => Some("low"),
        Some(Effort::Medium) => Some("medium"),
        Some(Effort::High) => Some("high"),
        Some(Effort::XHigh) => Some("xhigh"),
        Some(Effort::Max) => Some("max"),
    };
    let schema = match &conversation.format {
        Some(Format::Schema { schema, .. }) => Some(*schema),
        None | Some(Format::Json) => None,
    };
    if effort.is_none() && schema.is_none() {
        return;
    }
    let mut output = body.object("output_config");
    output.text_if("effort", effort);
    if let Some(schema) = schema {
        let mut format = output.object("format");
        format.text("type", "json_schema");
        format.raw("schema", schema.get());
    }
}

fn write_extra(
    conversation: &Conversation<'_>,
    body: &mut ObjectWriter<'_>,
) -> Result<(), ConvertError> {
    let mut extra = conversation.extra.clone();
    // OpenAI's name for the end user.
    if let Some(user) = extra.take("user") {
        let user: String = read_value(user, "user", "a string")?;
        body.object("metadata").text("user_id", &user);
    }
    extra.discard(&["model", "max_tokens", "messages", "system", "stream", "metadata"]);
    extra.discard(&["tools", "tool_choice", "thinking", "output_config", "stop_sequences"]);
    for (name, value) in extra.iter().filter(|(name, _)| !SAMPLING.contains(name)) {
        body.raw(name, value.get());
    }
    Ok(())
}
