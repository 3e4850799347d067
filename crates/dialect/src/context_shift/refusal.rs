//! The refusal of a prompt that is too long for an engine's context: as fields, or in prose.

use penstock_api::ContextOverflow;
use penstock_api::units::TokenCount;
use serde::Deserialize;

use crate::error_body::text_of;

/// An engine's refusal of a prompt that is longer than its context. Numbers are in the engine's own
/// tokens.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct ContextRefusal {
    /// The tokens of the prompt; `None` if the engine does not report them.
    pub prompt: Option<u32>,
    /// The tokens of the context; `None` if the engine does not report them.
    pub limit: Option<u32>,
    /// The tokens that are reserved for the response.
    pub output: u32,
}

impl ContextRefusal {
    /// Returns the numbers if they show that there is no room.
    fn overflow(&self) -> Option<ContextOverflow> {
        let context = self.limit?;
        let prompt = match self.prompt {
            Some(prompt) => prompt,
            // Without a count only this is known: the prompt alone exceeds the context.
            None if self.output == 0 => context.saturating_add(1),
            None => return None,
        };
        let has_no_room = prompt.saturating_add(self.output) > context;
        has_no_room.then(|| ContextOverflow {
            prompt: TokenCount(prompt),
            is_least: self.prompt.is_none(),
            output: TokenCount(self.output),
            context: TokenCount(context),
        })
    }
}

/// The phrase by which clients recognize the error.
const TOO_LONG: &str = "prompt is too long";

/// Returns the phrase by which clients of other APIs recognize a prompt that is too long, if an
/// engine's error reports one in other words. It is empty if `message` has the phrase already.
/// Returns `None` for other errors.
pub(crate) fn recognized_words(message: &str, body: &[u8]) -> Option<String> {
    let overflow = read_refusal(body)?.overflow();
    let words = overflow.map_or_else(|| TOO_LONG.to_owned(), |overflow| overflow.to_string());
    let is_said = words.split(';').next().is_some_and(|first| message.contains(first));
    Some(if is_said { String::new() } else { words })
}

/// llama.cpp's fields.
#[derive(Deserialize, Default)]
#[serde(default)]
struct LlamaCppFields {
    n_prompt_tokens: Option<u32>,
    n_ctx: Option<u32>,
}

#[derive(Deserialize)]
struct Body {
    error: LlamaCppFields,
}

/// The phrases that identify a refusal, in lower case: first codes and types, then the texts of
/// engines and hosted APIs.
const MARKS: &[&str] = &[
    "exceed_context_size_error",
    "context_length_exceeded",
    "model_context_window_exceeded",
    "available context size",
    "maximum context length",
    "exceeds the context length",
    "model's context length",
    "maximum model length",
    "maximum prompt length",
    "exceeds the context window",
    "exceed context limit",
    "prompt is too long",
    "maximum number of tokens allowed",
    "when context the overflows",
    "tokens exceed the configured limit",
    "`inputs` tokens + `max_new_tokens` must be <= ",
    " tokens. given: ",
    "exceed max_num_tokens (",
    "exceed max_seq_len (",
    "exceeds maximum input length (",
    "input is too long for requested model",
    "too many input tokens. max input tokens: ",
    "too many tokens: size limit exceeded",
    "tokens in the prompt cannot exceed ",
];

/// The number that a form contains.
#[derive(Clone, Copy)]
enum Number {
    Prompt,
    Limit,
    Output,
}

/// The lower-case text around a number: before it, after it.
struct NumberForm(Number, &'static str, &'static str);

/// The texts of engines. The forms are independent of each other, so a sentence that an engine adds
/// or drops does not hide the others.
const FORMS: &[NumberForm] = &[
    // llama.cpp
    NumberForm(Number::Prompt, "request (", " tokens) exceeds"),
    NumberForm(Number::Limit, "available context size (", " tokens"),
    // vLLM and OpenAI
    NumberForm(Number::Limit, "maximum context length is ", " tokens"),
    NumberForm(Number::Limit, "context length is only ", " tokens"),
    NumberForm(Number::Limit, "maximum model length of ", ""),
    NumberForm(Number::Limit, "configured limit of ", " tokens"),
    NumberForm(Number::Prompt, "tokens (", " in the messages"),
    NumberForm(Number::Prompt, "resulted in ", " tokens"),
    NumberForm(Number::Prompt, "request has ", " input tokens"),
    NumberForm(Number::Prompt, "contains at least ", " input tokens"),
    NumberForm(Number::Prompt, "you passed ", " input tokens"),
    NumberForm(Number::Prompt, "prompt (length ", ")"),
    NumberForm(Number::Output, "in the messages, ", " in the completion"),
    NumberForm(Number::Output, "requested ", " output tokens"),
    NumberForm(Number::Output, "is too large: ", ". this model's"),
    // SGLang
    NumberForm(Number::Limit, "context length (", " tokens"),
    NumberForm(Number::Limit, "maximum context length of ", " tokens"),
    NumberForm(Number::Prompt, "the input (", " tokens) is longer"),
    NumberForm(Number::Prompt, "tokens: ", " tokens from the input"),
    NumberForm(Number::Output, "messages and ", " tokens for the completion"),
    // Anthropic
    NumberForm(Number::Prompt, "prompt is too long: ", " tokens"),
    NumberForm(Number::Limit, " tokens > ", " maximum"),
    NumberForm(Number::Prompt, "context limit: ", " + "),
    NumberForm(Number::Output, " + ", " > "),
    NumberForm(Number::Limit, " > ", ", decrease"),
    // LM Studio, Mistral, Gemini, xAI
    NumberForm(Number::Limit, "context length of only ", " tokens"),
    NumberForm(Number::Prompt, "keep the first ", " tokens"),
    NumberForm(Number::Limit, "model with ", " maximum context"),
    NumberForm(Number::Prompt, "prompt contains ", " tokens"),
    NumberForm(Number::Limit, "tokens allowed (", ")"),
    NumberForm(Number::Prompt, "token count (", ")"),
    NumberForm(Number::Limit, "maximum prompt length is ", " but"),
    NumberForm(Number::Prompt, "request contains ", " tokens"),
    // TGI, and TEI
    NumberForm(Number::Limit, "`max_new_tokens` must be <= ", ""),
    NumberForm(Number::Prompt, "given: ", " `inputs` tokens"),
    NumberForm(Number::Output, "`inputs` tokens and ", " `max_new_tokens`"),
    NumberForm(Number::Limit, "`inputs` must have less than ", " tokens"),
    NumberForm(Number::Prompt, " tokens. given: ", ""),
    // TensorRT-LLM, where the length may have a fraction
    NumberForm(Number::Prompt, "prompt length (", ""),
    NumberForm(Number::Output, " max_tokens (", ")"),
    NumberForm(Number::Limit, "exceed max_num_tokens (", ")"),
    NumberForm(Number::Limit, "exceed max_seq_len (", ")"),
    NumberForm(Number::Limit, "maximum input length (", ")"),
    // Bedrock and Cohere
    NumberForm(Number::Limit, "max input tokens: ", ""),
    NumberForm(Number::Prompt, "input token count: ", ""),
    NumberForm(Number::Limit, "in the prompt cannot exceed ", ""),
    NumberForm(Number::Prompt, " - received ", ""),
];

/// Reads the body of an engine's error; returns `None` if it is about something else.
pub fn read_refusal(body: &[u8]) -> Option<ContextRefusal> {
    let fields = || serde_json::from_slice::<Body>(body).map(|body| body.error).unwrap_or_default();
    refusal_of(&text_of(body), fields)
}

/// Reads all words of an engine's error, and its numbers from `fields` if it has them.
fn refusal_of(words: &str, fields: impl FnOnce() -> LlamaCppFields) -> Option<ContextRefusal> {
    let text = words.to_lowercase();
    let is_marked = MARKS.iter().any(|mark| text.contains(mark));
    if !is_marked {
        return None;
    }
    let fields = fields();
    let mut refusal =
        ContextRefusal { prompt: fields.n_prompt_tokens, limit: fields.n_ctx, output: 0 };
    for NumberForm(number, before, after) in FORMS {
        // Fields come before prose, and an earlier form before later ones.
        let Some(value) = number_between(&text, before, after) else { continue };
        match number {
            Number::Prompt => refusal.prompt = refusal.prompt.or(Some(value)),
            Number::Limit => refusal.limit = refusal.limit.or(Some(value)),
            Number::Output => refusal.output = refusal.output.max(value),
        }
    }
    // Zero stands for a number that the engine does not know: no such prompt is too long.
    refusal.prompt = refusal.prompt.filter(|prompt| *prompt > 0);
    refusal.limit = refusal.limit.filter(|limit| *limit > 0);
    Some(refusal)
}

/// Returns the number between two pieces of text.
fn number_between(text: &str, before: &str, after: &str) -> Option<u32> {
    // The words may occur before, without a number behind them.
    text.match_indices(before).find_map(|(at, _)| {
        let rest = text.get(at + before.len()..)?;
        let end = rest.find(|letter: char| !letter.is_ascii_digit()).unwrap_or(rest.len());
        let (digits, rest) = rest.split_at(end);
        rest.starts_with(after).then(|| digits.parse().ok()).flatten()
    })
}

#[cfg(test)]
mod tests;
