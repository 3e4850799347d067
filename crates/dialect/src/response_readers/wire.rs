//! The common parts of several engines' responses: counts, times, errors.

use std::fmt;
use std::time::Duration;

use serde::de::{Deserialize, Deserializer, Error, Visitor};
use serde_json::value::RawValue;

use super::EventSink;
use crate::error::{BadResponse, Done};
use crate::error_body;
use crate::event::{Event, Timings, TokenUsage};

/// A count. Some engines write whole numbers as `12.0`, gateways as strings.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Count(pub(crate) u64);

impl<'de> Deserialize<'de> for Count {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct CountVisitor;

        impl Visitor<'_> for CountVisitor {
            type Value = Count;

            fn expecting(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
                formatter.write_str("a count")
            }

            fn visit_u64<E: Error>(self, count: u64) -> Result<Count, E> {
                Ok(Count(count))
            }

            fn visit_i64<E: Error>(self, count: i64) -> Result<Count, E> {
                Ok(Count(u64::try_from(count).unwrap_or(0)))
            }

            fn visit_f64<E: Error>(self, count: f64) -> Result<Count, E> {
                // Going through seconds of a duration is a checked conversion from a float to an
                // integer.
                Ok(Count(Duration::try_from_secs_f64(count).map_or(0, |whole| whole.as_secs())))
            }

            fn visit_str<E: Error>(self, count: &str) -> Result<Count, E> {
                let whole = count.trim().parse().map(Count);
                whole.or_else(|_error| self.visit_f64(count.trim().parse().unwrap_or(0.0)))
            }
        }

        deserializer.deserialize_any(CountVisitor)
    }
}

/// OpenAI's `usage`.
#[derive(Default, Debug, serde::Deserialize)]
#[serde(default)]
pub(crate) struct OpenAiUsage {
    prompt_tokens: Option<Count>,
    completion_tokens: Option<Count>,
    prompt_tokens_details: Option<PromptDetails>,
    completion_tokens_details: Option<OutputDetails>,
}

#[derive(Default, Debug, serde::Deserialize)]
#[serde(default)]
struct PromptDetails {
    cached_tokens: Option<Count>,
}

#[derive(Default, Debug, serde::Deserialize)]
#[serde(default)]
struct OutputDetails {
    reasoning_tokens: Option<Count>,
}

impl From<OpenAiUsage> for TokenUsage {
    fn from(usage: OpenAiUsage) -> Self {
        let count = |count: Option<Count>| count.map(|Count(count)| count);
        Self {
            prompt: count(usage.prompt_tokens),
            cached: count(usage.prompt_tokens_details.and_then(|one| one.cached_tokens)),
            output: count(usage.completion_tokens),
            thinking: count(usage.completion_tokens_details.and_then(|one| one.reasoning_tokens)),
        }
    }
}

/// llama.cpp's `timings`.
#[derive(Default, Debug, serde::Deserialize)]
#[serde(default)]
pub(super) struct LlamaTimings {
    cache_n: Option<Count>,
    prompt_n: Option<Count>,
    prompt_ms: Option<f64>,
    predicted_n: Option<Count>,
    predicted_ms: Option<f64>,
}

impl LlamaTimings {
    /// Returns the engine's working times.
    pub(super) fn timings(&self) -> Timings {
        let duration = |ms: Option<f64>| Duration::try_from_secs_f64(ms? / 1000.0).ok();
        Timings {
            load: None,
            prompt: duration(self.prompt_ms),
            output: duration(self.predicted_ms),
        }
    }

    /// Returns the counts, for a response without `usage`.
    pub(super) fn usage(&self) -> TokenUsage {
        let count = |count: Option<Count>| count.map(|Count(count)| count);
        let cached = count(self.cache_n);
        // `prompt_n` counts only the tokens that were computed.
        let prompt = count(self.prompt_n).map(|read| read + cached.unwrap_or(0));
        TokenUsage { prompt, cached, output: count(self.predicted_n), thinking: None }
    }
}

/// A chunk of a stream with choices of type `C`, or a complete response.
#[derive(serde::Deserialize)]
#[serde(bound(deserialize = "C: Deserialize<'de>"))]
struct Chunk<'a, C> {
    #[serde(default = "Option::default")]
    choices: Option<Vec<C>>,
    #[serde(default)]
    usage: Option<OpenAiUsage>,
    #[serde(default)]
    timings: Option<LlamaTimings>,
    #[serde(default, borrow)]
    error: Option<&'a RawValue>,
}

/// Returns whether the data of an event ends a stream of OpenAI's APIs.
pub(super) fn is_end(data: &[u8]) -> bool {
    data.trim_ascii() == b"[DONE]"
}

/// Reads a chunk or a complete response, called `expected`, and by `read` its first choice.
pub(super) fn read_chunk<'d, C: Deserialize<'d>>(
    data: &'d str,
    expected: &'static str,
    sink: &mut EventSink<'_>,
    index_of: fn(&C) -> Option<Count>,
    mut read: impl FnMut(C, &mut EventSink<'_>) -> Done,
) -> Done {
    let chunk: Chunk<'_, C> =
        serde_json::from_str(data).map_err(|_error| BadResponse::Malformed { expected })?;
    if let Some(error) = chunk.error {
        return sink(Event::Error(&error_body::message_of(error)));
    }
    // No conversion requests the other choices of `n`.
    let is_first = |choice: &C| index_of(choice).is_none_or(|Count(index)| index == 0);
    for choice in chunk.choices.into_iter().flatten().filter(is_first) {
        read(choice, sink)?;
    }
    if let Some(timings) = chunk.timings {
        sink(Event::Timings(timings.timings()))?;
        sink(Event::Usage(timings.usage()))?;
    }
    // Last: these counts replace those of the timings.
    chunk.usage.map_or(Ok(()), |usage| sink(Event::Usage(usage.into())))
}
