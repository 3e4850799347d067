//! Writes `/v1/chat/completions`, with the extension fields that the backend's engine understands.

use penstock_api::EngineFields;

use crate::RequestTerms;
use crate::conversation::{
    Call, CallResult, Conversation, Effort, Format, Image, ImageSource, Message, ModelKeepAlive,
    Part, Role, Thinking, Tool, ToolChoice, Tools, joined_text,
};
use crate::error::ConvertError;
use crate::json::{ListWriter, ObjectWriter};

/// Writes the body.
pub(crate) fn write(
    conversation: &Conversation<'_>,
    terms: &RequestTerms<'_>,
    out: &mut Vec<u8>,
) -> Result<(), ConvertError> {
    let engine = &terms.engine.row().fields;
    let mut body = ObjectWriter::new(out);
    body.text("model", terms.model);
    {
        let mut list = body.list("messages");
        for message in &conversation.messages {
            write_message(message, engine, &mut list);
        }
    }
    write_tools(&conversation.tools, &mut body);
    write_format(conversation.format.as_ref(), &mut body);
    body.text_if("verbosity", conversation.verbosity.as_deref());
    write_thinking(conversation, engine, &mut body);
    write_generation(conversation, terms, engine, &mut body);
    if conversation.logprobs.enabled {
        body.flag("logprobs", true);
        if let Some(top) = conversation.logprobs.top {
            body.number("top_logprobs", top);
        }
    }
    write_extra(conversation, is_written, &mut body);
    Ok(())
}

/// Writes the fields that no reader knew, except those that have been written already.
pub(super) fn write_extra(
    conversation: &Conversation<'_>,
    is_written: fn(&Conversation<'_>, &str) -> bool,
    body: &mut ObjectWriter<'_>,
) {
    let sampling = conversation.sampling.names();
    for (name, value) in conversation.extra.iter() {
        // Fields of an engine's extensions pass as they came, unless they are written already.
        if !is_written(conversation, name) && !sampling.contains(name) {
            body.raw(name, value.get());
        }
    }
}

/// Returns whether a field has been written already, so that an unknown one does not write it
/// twice.
fn is_written(conversation: &Conversation<'_>, name: &str) -> bool {
    match name {
        "model" | "messages" | "stream" | "stream_options" => true,
        "tools" => !conversation.tools.list.is_empty(),
        "tool_choice" => conversation.tools.choice.is_some(),
        "parallel_tool_calls" => conversation.tools.parallel.is_some(),
        "response_format" => conversation.format.is_some(),
        "verbosity" => conversation.verbosity.is_some(),
        "reasoning_effort" => conversation.thinking.effort.is_some(),
        "max_tokens" | "max_completion_tokens" => conversation.max_tokens.is_some(),
        "stop" => !conversation.stop.is_empty(),
        "logprobs" | "top_logprobs" => conversation.logprobs.enabled,
        _ => false,
    }
}

fn write_message(message: &Message<'_>, engine: &EngineFields, list: &mut ListWriter<'_>) {
    match message.role {
        Role::System => {
            let mut object = list.object();
            object.text("role", "system");
            object.text("content", &message.text());
        }
        Role::Assistant => write_assistant(message, engine, list),
        Role::User | Role::Tool => {
            // Before the text of the same turn: engines refuse calls that are not followed by
            // results.
            for result in message.results() {
                write_result(result, list);
            }
            let parts = message.beside_results();
            if !parts.is_empty() || message.parts.is_empty() {
                write_user(&parts, list);
            }
        }
    }
}

fn write_user(parts: &[&Part<'_>], list: &mut ListWriter<'_>) {
    let mut message = list.object();
    message.text("role", "user");
    match parts {
        [] => message.text("content", ""),
        // A string, not a list of one part, which some chat templates do not take.
        [Part::Text(text)] => message.text("content", text),
        _ => {
            let mut content = message.list("content");
            for part in parts {
                match part {
                    Part::Text(text) => {
                        let mut part = content.object();
                        part.text("type", "text");
                        part.text("text", text);
                    }
                    Part::Image(image) => write_image(image, &mut content),
                    Part::Thinking { .. } | Part::Call(_) | Part::Result(_) => {}
                }
            }
        }
    }
}

fn write_image(image: &Image<'_>, content: &mut ListWriter<'_>) {
    let mut part = content.object();
    part.text("type", "image_url");
    let mut object = part.object("image_url");
    match &image.source {
        ImageSource::Address(url) => object.text("url", url),
        ImageSource::Inline { media, base64 } => {
            object.text_pieces("url", &["data:", media, ";base64,", base64]);
        }
    }
    object.text_if("detail", image.detail.as_deref());
}

fn write_assistant(message: &Message<'_>, engine: &EngineFields, list: &mut ListWriter<'_>) {
    let mut object = list.object();
    object.text("role", "assistant");
    let (text, has_calls) = (message.text(), message.calls().next().is_some());
    // OpenAI's form of a message that only calls tools.
    if text.is_empty() && has_calls {
        object.raw("content", "null");
    } else {
        object.text("content", &text);
    }
    if let Some(member) = engine.thinking_member {
        object.text_if(member, message.thinking().as_deref());
    }
    if has_calls {
        let mut list = object.list("tool_calls");
        message.calls().for_each(|call| write_call(call, &mut list));
    }
}

fn write_call(call: &Call<'_>, list: &mut ListWriter<'_>) {
    let mut object = list.object();
    object.text("id", &call.id);
    object.text("type", "function");
    let mut function = object.object("function");
    function.text("name", &call.name);
    function.text("arguments", &call.arguments);
}

fn write_result(result: &CallResult<'_>, list: &mut ListWriter<'_>) {
    let mut message = list.object();
    message.text("role", "tool");
    message.text("tool_call_id", &result.call);
    if !result.name.is_empty() {
        message.text("name", &result.name);
    }
    message.text("content", &joined_text(&result.parts));
}

/// Writes `tools` in the form of OpenAI's and Ollama's chat.
pub(super) fn write_tool_list(tools: &[Tool<'_>], body: &mut ObjectWriter<'_>) {
    if tools.is_empty() {
        return;
    }
    let mut list = body.list("tools");
    for tool in tools {
        let mut object = list.object();
        object.text("type", "function");
        let mut function = object.object("function");
        function.text("name", &tool.name);
        function.text_if("description", tool.description.as_deref());
        function.raw_if("parameters", tool.schema);
        function.raw_if("strict", tool.strict);
    }
}

fn write_tools(tools: &Tools<'_>, body: &mut ObjectWriter<'_>) {
    write_tool_list(&tools.list, body);
    match &tools.choice {
        None => {}
        Some(ToolChoice::Auto) => body.text("tool_choice", "auto"),
        Some(ToolChoice::None) => body.text("tool_choice", "none"),
        Some(ToolChoice::Required) => body.text("tool_choice", "required"),
        Some(ToolChoice::Named(name)) => {
            let mut choice = body.object("tool_choice");
            choice.text("type", "function");
            choice.object("function").text("name", name);
        }
    }
    if let Some(parallel) = tools.parallel {
        body.flag("parallel_tool_calls", parallel);
    }
}

fn write_format(format: Option<&Format<'_>>, body: &mut ObjectWriter<'_>) {
    match format {
        None => {}
        Some(Format::Json) => body.object("response_format").text("type", "json_object"),
        Some(Format::Schema { schema, name, description, strict }) => {
            let mut format = body.object("response_format");
            format.text("type", "json_schema");
            let mut object = format.object("json_schema");
            // OpenAI's API requires a name.
            object.text("name", name.as_deref().unwrap_or("response"));
            object.text_if("description", description.as_deref());
            object.raw("schema", schema.get());
            object.raw_if("strict", *strict);
        }
    }
}

fn write_thinking(
    conversation: &Conversation<'_>,
    engine: &EngineFields,
    body: &mut ObjectWriter<'_>,
) {
    let Thinking { enabled, effort, budget: _ } = conversation.thinking;
    if let Some(effort) = effort {
        // `max` becomes `high`, the highest level that OpenAI's API has for every reasoning model.
        let effort = if effort == Effort::Max { Effort::High } else { effort };
        body.text("reasoning_effort", effort.name());
        return;
    }
    let has_own = conversation.extra.iter().any(|(name, _)| name == "chat_template_kwargs");
    if let Some(enabled) = enabled
        && engine.takes_template_arguments
        && !has_own
    {
        body.object("chat_template_kwargs").flag("enable_thinking", enabled);
    }
}

/// Writes the fields that control generation: the same in chat and completions.
pub(super) fn write_generation(
    conversation: &Conversation<'_>,
    terms: &RequestTerms<'_>,
    engine: &EngineFields,
    body: &mut ObjectWriter<'_>,
) {
    for (name, value) in conversation.sampling.iter() {
        if let Some(name) = engine.sampling_name(name) {
            body.raw(name, value.get());
        }
    }
    if let Some(limit) = conversation.max_tokens {
        let is_reasoning = engine.has_completion_limit && is_reasoning_model(terms.model);
        body.number(if is_reasoning { "max_completion_tokens" } else { "max_tokens" }, limit);
    }
    if !conversation.stop.is_empty() {
        let mut list = body.list("stop");
        conversation.stop.iter().for_each(|stop| list.text(stop));
    }
    body.flag("stream", conversation.stream);
    if conversation.stream {
        // The counts in every other dialect come from the usage chunk.
        body.object("stream_options").flag("include_usage", true);
    }
    if let Some(ModelKeepAlive::Seconds(seconds)) = conversation.keep_alive
        && engine.takes_ttl
    {
        body.number("ttl", seconds);
    }
}

/// Returns whether OpenAI refuses `max_tokens` for this model.
fn is_reasoning_model(model: &str) -> bool {
    ["o1", "o3", "o4", "gpt-5"].iter().any(|family| model.starts_with(family))
}
