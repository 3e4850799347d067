//! The dialect-independent content of a request, and the reasons for which an engine refuses it.

use penstock_api::{BodyFormat, Capabilities, Operation};
use serde_json::{Map, Value};

use super::{WholeResponse, hash, refusal};
use crate::spec::{EngineModel, MockSpec};

/// A request that an engine can serve.
#[derive(Debug)]
pub(super) struct ParsedRequest<'a> {
    pub(super) spec: &'a MockSpec,
    /// The model's name in the request.
    pub(super) model: &'a EngineModel,
    /// The body; of a form, only its model.
    pub(super) body: Value,
    /// The request id; equal for equal requests.
    pub(super) id: String,
    pub(super) prompt_tokens: u32,
    pub(super) has_image: bool,
    pub(super) wants: Wants,
}

/// The kind of content that a request wants.
#[derive(Debug, Clone, PartialEq)]
pub(super) enum Wants {
    Text,
    /// A call of this function.
    Tool {
        name: String,
        parameters: Value,
    },
    /// JSON that fits this schema, if there is one.
    Json {
        schema: Option<Value>,
    },
}

impl<'a> ParsedRequest<'a> {
    pub(super) fn read(
        spec: &'a MockSpec,
        operation: Operation,
        content_type: &str,
        body: &[u8],
    ) -> Result<Self, WholeResponse> {
        let refuse = |status, code, message: &str| {
            Err(refusal(Some(operation), status, code, &format!("{}: {message}", spec.name)))
        };
        let id = format!("{:016x}", hash(body.iter().copied()));
        let body = match operation.row().body {
            BodyFormat::Json => match serde_json::from_slice(body) {
                Ok(Value::Object(fields)) => Value::Object(fields),
                Ok(_) | Err(_) => {
                    return refuse(400, "invalid_json", "the body is not a JSON object");
                }
            },
            BodyFormat::Multipart => form_fields(content_type, body),
        };
        // The API of this operation may omit the model; OpenAI's own choice is the first one here.
        let own_choice = spec.models.first().filter(|_| operation.row().model_is_optional);
        let own_choice = own_choice.map(|model| model.id.as_str());
        let Some(name) = body.get("model").and_then(Value::as_str).or(own_choice) else {
            return refuse(400, "missing_model", "no model is named");
        };
        let Some(model) = spec.model(name) else {
            let message = format!("the model `{name}` does not exist");
            return refuse(404, "model_not_found", &message);
        };
        let prompt_tokens = prompt_tokens(&body);
        let longest = longest_prompt(&body);
        if longest > model.context_length {
            let message = format!(
                "the prompt has {longest} tokens, the context of `{name}` is {}",
                model.context_length
            );
            return refuse(400, "context_length_exceeded", &message);
        }
        let has_image = has_image(&body);
        let wants = Wants::of(&body);
        let missing = needs(has_image, &wants).without(model.capabilities);
        if !missing.is_empty() {
            let message = format!("`{name}` does not support {missing}");
            return refuse(400, "not_supported", &message);
        }
        Ok(Self { spec, model, body, id, prompt_tokens, has_image, wants })
    }

    /// Returns the output limit of the request, if it sets one.
    pub(super) fn max_tokens(&self) -> Option<u32> {
        ["/max_completion_tokens", "/max_tokens", "/max_output_tokens", "/options/num_predict"]
            .iter()
            .find_map(|at| self.body.pointer(at)?.as_u64())
            .map(|most| u32::try_from(most).unwrap_or(u32::MAX))
    }
}

impl Wants {
    fn of(body: &Value) -> Self {
        if let Some(tool) = wanted_tool(body) {
            return tool;
        }
        // Chat and completions use the first field, Responses the second, Ollama's API `format`.
        let format = body.get("response_format").or_else(|| body.pointer("/text/format"));
        match body.get("format") {
            Some(Value::String(format)) if format == "json" => return Self::Json { schema: None },
            Some(schema @ Value::Object(_)) => {
                return Self::Json { schema: Some(schema.clone()) };
            }
            Some(_) | None => {}
        }
        let kind = format.and_then(|format| format.get("type")).and_then(Value::as_str);
        match kind {
            Some("json_object") => Self::Json { schema: None },
            Some("json_schema") => {
                let schema = format.and_then(|format| {
                    format.pointer("/json_schema/schema").or_else(|| format.get("schema"))
                });
                Self::Json { schema: schema.cloned() }
            }
            Some(_) | None => Self::Text,
        }
    }
}

fn needs(has_image: bool, wants: &Wants) -> Capabilities {
    let sees = if has_image { Capabilities::VISION } else { Capabilities::NONE };
    sees.union(match wants {
        Wants::Text => Capabilities::NONE,
        Wants::Tool { .. } => Capabilities::TOOLS,
        Wants::Json { .. } => Capabilities::JSON_MODE,
    })
}

fn wanted_tool(body: &Value) -> Option<Wants> {
    let choice = body.get("tool_choice");
    let says_none =
        |choice: &Value| choice == "none" || choice.get("type").is_some_and(|kind| kind == "none");
    // With the result of a call at hand an engine writes text; clients would loop otherwise.
    if choice.is_some_and(says_none) || ends_with_tool_result(body) {
        return None;
    }
    let chosen = choice.filter(|choice| choice.is_object()).map(function_of);
    let tools = body.get("tools")?.as_array()?;
    let mut functions = tools.iter().map(function_of);
    let tool = match chosen.filter(|chosen| chosen.get("name").is_some()) {
        Some(chosen) => functions.find(|function| name_of(function) == name_of(&chosen)),
        None => functions.next(),
    }?;
    let parameters = tool.get("parameters").or_else(|| tool.get("input_schema"));
    Some(Wants::Tool {
        name: name_of(&tool),
        parameters: parameters.cloned().unwrap_or(Value::Null),
    })
}

/// Returns the function of a tool: Chat wraps it; Responses and Messages do not.
fn function_of(tool: &Value) -> Value {
    tool.get("function").unwrap_or(tool).clone()
}

fn name_of(function: &Value) -> String {
    function.get("name").and_then(Value::as_str).unwrap_or("function").to_owned()
}

fn has_type(value: &Value, kind: &str) -> bool {
    value.get("type").is_some_and(|given| given == kind)
}

/// Returns whether the last turn is a tool result; the response to it is text.
fn ends_with_tool_result(body: &Value) -> bool {
    let turns = body.get("messages").or_else(|| body.get("input")).and_then(Value::as_array);
    let Some(last) = turns.and_then(|turns| turns.last()) else { return false };
    let parts = last.get("content").and_then(Value::as_array);
    last.get("role").is_some_and(|role| role == "tool")
        || has_type(last, "function_call_output")
        || parts.is_some_and(|parts| parts.iter().any(|part| has_type(part, "tool_result")))
}

fn prompt_of(body: &Value) -> impl Iterator<Item = &Value> {
    [
        "messages",
        "prompt",
        "input",
        "system",
        "instructions",
        "query",
        "documents",
        "content",
        "input_prefix",
    ]
    .iter()
    .filter_map(|field| body.get(field))
}

fn prompt_tokens(body: &Value) -> u32 {
    to_tokens(prompt_of(body).map(characters).sum())
}

/// Returns the tokens of the longest prompt: each text of a list has a context to itself.
fn longest_prompt(body: &Value) -> u32 {
    let is_prompt = |item: &Value| item.is_string() || item.is_array();
    let longest = |value: &Value| match value {
        Value::Array(items) if items.iter().all(is_prompt) => {
            items.iter().map(characters).max().unwrap_or(0)
        }
        value => characters(value),
    };
    to_tokens(prompt_of(body).map(longest).sum())
}

/// Four characters per token, the usual rule of thumb for English.
fn to_tokens(characters: usize) -> u32 {
    u32::try_from(characters / 4).unwrap_or(u32::MAX).max(1)
}

/// Returns the number of characters of the texts in `value`, without images.
fn characters(value: &Value) -> usize {
    match value {
        Value::Null | Value::Bool(_) => 0,
        // A number is one token of a tokenized prompt, which is four characters.
        Value::Number(_) => 4,
        Value::String(text) => text.chars().count(),
        Value::Array(items) => items.iter().map(characters).sum(),
        Value::Object(fields) => fields
            .iter()
            .filter(|(name, _)| matches!(name.as_str(), "content" | "text" | "input"))
            .map(|(_, value)| characters(value))
            .sum(),
    }
}

fn has_image(body: &Value) -> bool {
    fn is_image(part: &Value) -> bool {
        let kind = part.get("type").and_then(Value::as_str);
        matches!(kind, Some("image_url" | "input_image" | "image"))
    }
    fn has_images(value: &Value) -> bool {
        value.get("images").and_then(Value::as_array).is_some_and(|images| !images.is_empty())
    }
    let turns = ["messages", "input"].iter().filter_map(|field| body.get(field)?.as_array());
    let mut turns = turns.flatten();
    let sees = |turn: &Value| {
        let parts = turn.get("content").and_then(Value::as_array);
        has_images(turn) || parts.is_some_and(|parts| parts.iter().any(is_image))
    };
    has_images(body) || turns.any(sees)
}

/// Returns the text fields of a form.
fn form_fields(content_type: &str, body: &[u8]) -> Value {
    let text = String::from_utf8_lossy(body);
    let boundary = content_type.split_once("boundary=").map_or("", |(_, boundary)| boundary);
    let boundary = boundary.split(';').next().unwrap_or(boundary).trim_matches('"');
    let mut fields = Map::new();
    if boundary.is_empty() {
        return Value::Object(fields);
    }
    for part in text.split(&format!("--{boundary}")) {
        let Some((head, value)) = part.split_once("\r\n\r\n") else { continue };
        let Some((_, name)) = head.split_once("; name=\"") else { continue };
        let Some((name, rest)) = name.split_once('"') else { continue };
        if !rest.contains("filename") {
            let value = value.strip_suffix("\r\n").unwrap_or(value);
            fields.insert(name.to_owned(), Value::from(value));
        }
    }
    Value::Object(fields)
}
