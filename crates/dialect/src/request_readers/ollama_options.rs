//! The common fields of `/api/chat` and `/api/generate`: options, format, thinking, and the time
//! that the model stays loaded.

use std::time::Duration;

use serde::Deserialize;
use serde_json::value::RawValue;

use super::openai_fields;
use crate::conversation::{
    Conversation, Effort, Format, Logprobs, ModelKeepAlive, Sampling, Thinking,
};
use crate::error::ConvertError;
use crate::json::{Fields, read_value};

/// Options that control the runner in Ollama, and options that newer versions ignore.
const RUNNER_OPTIONS: &[&str] = &[
    "num_ctx",
    "num_batch",
    "num_gpu",
    "main_gpu",
    "use_mmap",
    "use_mlock",
    "num_thread",
    "numa",
    "low_vram",
    "f16_kv",
    "vocab_only",
    "logits_all",
    "embedding_only",
    "mirostat",
    "mirostat_eta",
    "mirostat_tau",
    "tfs_z",
    "penalize_newline",
    "draft_num_predict",
];

/// The top-level fields that only Ollama understands.
const OLLAMA_ONLY: &[&str] = &["truncate", "shift", "_debug_render_only"];

/// Fills the common fields of both requests.
pub(super) fn fill<'a>(
    conversation: &mut Conversation<'a>,
    fields: &mut Fields<'a>,
) -> Result<(), ConvertError> {
    fields.discard(&["model"]);
    fields.discard(OLLAMA_ONLY);
    // Ollama streams unless a request switches that off.
    conversation.stream = fields.take_as("stream", "true or false")?.unwrap_or(true);
    conversation.format = fields.take("format").map(read_format).transpose()?.flatten();
    conversation.thinking = fields.take("think").map(read_think).transpose()?.unwrap_or_default();
    conversation.keep_alive = fields.take("keep_alive").map(read_keep_alive).transpose()?;
    let top = fields.take_whole("top_logprobs", "a number from 0 to 20")?;
    let enabled = fields.take_as("logprobs", "true or false")?.unwrap_or(false);
    conversation.logprobs = Logprobs { enabled, top };
    if let Some(options) = fields.take_as::<Fields<'_>>("options", "an object")? {
        read_options(conversation, options)?;
    }
    Ok(())
}

fn read_options<'a>(
    conversation: &mut Conversation<'a>,
    mut options: Fields<'a>,
) -> Result<(), ConvertError> {
    options.discard(RUNNER_OPTIONS);
    let limit: Option<i64> = options.take_whole("num_predict", "a whole number")?;
    // -1 and -2 are Ollama's "no limit" and "until the context is full".
    conversation.max_tokens = limit.and_then(|limit| u64::try_from(limit).ok());
    conversation.stop =
        options.take("stop").map(openai_fields::read_stop).transpose()?.unwrap_or_default();
    let mut sampling = Sampling::default();
    for (name, value) in options.iter().filter(|(_, value)| value.get() != "null") {
        // Sampling options have llama.cpp's names, and only this one differs.
        let name = if name == "num_keep" { "n_keep" } else { name };
        sampling.push(name.to_owned(), value);
    }
    conversation.sampling = sampling;
    Ok(())
}

fn read_format(raw: &RawValue) -> Result<Option<Format<'_>>, ConvertError> {
    match raw.get() {
        "\"\"" => Ok(None),
        "\"json\"" => Ok(Some(Format::Json)),
        schema if schema.starts_with('{') => {
            Ok(Some(Format::Schema { schema: raw, name: None, description: None, strict: None }))
        }
        _ => Err(ConvertError::Invalid { field: "format", expected: "\"json\" or a JSON schema" }),
    }
}

fn read_think(raw: &RawValue) -> Result<Thinking, ConvertError> {
    match raw.get() {
        "true" => Ok(Thinking { enabled: Some(true), ..Thinking::default() }),
        "false" => Ok(Thinking { enabled: Some(false), ..Thinking::default() }),
        "\"\"" => Ok(Thinking::default()),
        _ => {
            let effort: Effort =
                read_value(raw, "think", "true, false, or a level from low to max")?;
            Ok(Thinking { enabled: Some(true), effort: Some(effort), budget: None })
        }
    }
}

const KEEP_ALIVE: &str = "a number of seconds, or a duration such as 5m";

/// Reads a number of seconds, or a duration in Go's notation; a negative one means forever.
pub(crate) fn read_keep_alive(raw: &RawValue) -> Result<ModelKeepAlive, ConvertError> {
    #[derive(Deserialize)]
    #[serde(untagged)]
    enum KeepAliveValue {
        Number(f64),
        Text(String),
    }
    let invalid = ConvertError::Invalid { field: "keep_alive", expected: KEEP_ALIVE };
    let seconds = match read_value(raw, "keep_alive", KEEP_ALIVE)? {
        KeepAliveValue::Number(seconds) => seconds,
        KeepAliveValue::Text(text) => go_duration(&text).ok_or(invalid)?,
    };
    if seconds < 0.0 {
        return Ok(ModelKeepAlive::Forever);
    }
    let duration = Duration::try_from_secs_f64(seconds).map_err(|_error| invalid)?;
    // Round up: a fraction of a second is not 0, which would unload the model.
    let seconds = duration.as_secs() + u64::from(duration.subsec_nanos() > 0);
    Ok(ModelKeepAlive::Seconds(seconds))
}

/// Returns the seconds of a duration in Go's notation, such as `1h30m` or `-1s`; or of a bare
/// number.
fn go_duration(text: &str) -> Option<f64> {
    if let Ok(seconds) = text.parse::<f64>() {
        return Some(seconds);
    }
    let (sign, mut rest) = match text.strip_prefix('-') {
        Some(rest) => (-1.0, rest),
        None => (1.0, text.strip_prefix('+').unwrap_or(text)),
    };
    let mut seconds = 0.0;
    while !rest.is_empty() {
        let number_end = rest.find(|c: char| !c.is_ascii_digit() && c != '.')?;
        let (number, behind) = rest.split_at_checked(number_end)?;
        let unit_end = behind.find(|c: char| c.is_ascii_digit()).unwrap_or(behind.len());
        let (unit, behind) = behind.split_at_checked(unit_end)?;
        seconds += number.parse::<f64>().ok()? * seconds_of(unit)?;
        rest = behind;
    }
    (!text.is_empty()).then_some(sign * seconds)
}

fn seconds_of(unit: &str) -> Option<f64> {
    match unit {
        "ns" => Some(1e-9),
        "us" | "µs" => Some(1e-6),
        "ms" => Some(1e-3),
        "s" => Some(1.0),
        "m" => Some(60.0),
        "h" => Some(3600.0),
        _ => None,
    }
}
