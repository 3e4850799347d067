//! The text that a mock engine generates: its name, then words up to the length; or JSON that fits
//! a schema.

use std::time::Duration;

use serde_json::{Map, Value, json};

use super::request::{ParsedRequest, Wants};
use crate::spec::Pace;

const WORDS: [&str; 16] = [
    "water", "finds", "its", "way", "to", "the", "wheel,", "and", "the", "gate", "decides", "how",
    "much", "of", "it", "may",
];

/// The number of JSON characters per token.
const JSON_TOKEN: usize = 6;

/// The maximum depth to which a generated value follows its schema.
const MAX_DEPTH: usize = 8;

/// The content of one response, the same for every dialect.
#[derive(Debug)]
pub(super) struct ReplyContent {
    /// The response id; equal for equal requests.
    pub(super) id: String,
    /// The model's name in the request.
    pub(super) model: String,
    pub(super) pace: Pace,
    pub(super) prompt_tokens: u32,
    /// If set, the stream ends with its usage.
    pub(super) includes_usage: bool,
    /// True if `max_tokens` cut the text.
    pub(super) is_cut: bool,
    /// The function call that replaces the text.
    pub(super) tool: Option<String>,
    tokens: GeneratedTokens,
}

#[derive(Debug)]
enum GeneratedTokens {
    Words { introduction: String, count: u32 },
    Exact(Vec<String>),
}

impl ReplyContent {
    pub(super) fn to(request: &ParsedRequest<'_>) -> Self {
        let engine = &request.spec.name;
        let (tool, tokens) = match &request.wants {
            Wants::Text => (None, words(request)),
            Wants::Tool { name, parameters } => {
                (Some(name.clone()), split(&sample(parameters, engine, 0)))
            }
            Wants::Json { schema: Some(schema) } => (None, split(&sample(schema, engine, 0))),
            Wants::Json { schema: None } => {
                (None, split(&json!({"engine": engine, "model": request.model.id})))
            }
        };
        let is_words = matches!(tokens, GeneratedTokens::Words { .. });
        let most = request.max_tokens().unwrap_or(u32::MAX);
        let usage = request.body.pointer("/stream_options/include_usage");
        Self {
            id: request.id.clone(),
            model: request.model.id.clone(),
            pace: request.spec.pace,
            prompt_tokens: request.prompt_tokens,
            includes_usage: usage.and_then(Value::as_bool).unwrap_or(false),
            // JSON is not cut: a half of it would fail the client's parser, which tests do not
            // mean.
            is_cut: is_words && most < request.spec.pace.tokens,
            tool,
            tokens,
        }
    }

    /// Returns the number of tokens in the response.
    pub(super) fn count(&self) -> u32 {
        match &self.tokens {
            GeneratedTokens::Words { count, .. } => *count,
            GeneratedTokens::Exact(pieces) => u32::try_from(pieces.len()).unwrap_or(u32::MAX),
        }
    }

    /// Returns the work and the text of token `index`.
    pub(super) fn token(&self, index: u32) -> (Duration, String) {
        let at = usize::try_from(index).unwrap_or(usize::MAX);
        let text = match &self.tokens {
            GeneratedTokens::Words { introduction, .. } if index == 0 => introduction.clone(),
            GeneratedTokens::Words { .. } => {
                format!(" {}", WORDS.get((at - 1) % WORDS.len()).unwrap_or(&""))
            }
            GeneratedTokens::Exact(pieces) => {
                debug_assert!(at < pieces.len(), "token {at} of {}", pieces.len());
                pieces.get(at).cloned().unwrap_or_default()
            }
        };
        (self.pace.before(index), text)
    }

    /// Returns the complete text, or the arguments of the call.
    pub(super) fn text(&self) -> String {
        (0..self.count()).map(|index| self.token(index).1).collect()
    }
}

fn words(request: &ParsedRequest<'_>) -> GeneratedTokens {
    let image = if request.has_image { " sees an image and says" } else { "" };
    let introduction = format!("{} serving {}{image}:", request.spec.name, request.model.id);
    let most = request.max_tokens().unwrap_or(u32::MAX);
    GeneratedTokens::Words { introduction, count: request.spec.pace.tokens.min(most).max(1) }
}

fn split(value: &Value) -> GeneratedTokens {
    let characters: Vec<char> = value.to_string().chars().collect();
    GeneratedTokens::Exact(
        characters.chunks(JSON_TOKEN).map(|piece| piece.iter().collect()).collect(),
    )
}

/// Returns a value that fits common kinds of schema; its strings name the engine.
fn sample(schema: &Value, engine: &str, depth: usize) -> Value {
    let fixed = schema.get("const").or_else(|| schema.pointer("/enum/0"));
    if let Some(fixed) = fixed {
        return fixed.clone();
    }
    let kind = match schema.get("type") {
        // `["string", "null"]` is how OpenAI's strict schemas write an optional value.
        Some(Value::Array(kinds)) => kinds.first().and_then(Value::as_str),
        Some(kind) => kind.as_str(),
        None => None,
    };
    let properties = schema.get("properties").and_then(Value::as_object);
    match kind {
        Some("string") => json!(engine),
        Some("integer") => json!(1),
        Some("number") => json!(0.5),
        Some("boolean") => json!(true),
        Some("null") => Value::Null,
        Some("array") => match schema.get("items") {
            // A schema may refer to itself.
            Some(items) if depth < MAX_DEPTH => json!([sample(items, engine, depth + 1)]),
            Some(_) | None => json!([]),
        },
        Some(_) | None => {
            let fields = properties.filter(|_| depth < MAX_DEPTH).into_iter().flatten();
            let fields: Map<String, Value> = fields
                .map(|(name, schema)| (name.clone(), sample(schema, engine, depth + 1)))
                .collect();
            Value::Object(fields)
        }
    }
}
