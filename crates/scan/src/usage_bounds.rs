//! Upper bounds of the tokens that a request can have used. An engine's counts become debts, prices
//! and predictions: an engine that overflows or is not trusted must not lock a client out or
//! corrupt the ledger. A token is at least one byte of text, so bytes bound tokens.

use penstock_api::units::TokenCount;

use super::prompt_limit::PromptLimit;
use super::usage::CutCounts;
use super::{RequestProfile, Usage};

/// The context length assumed for a model whose context is unknown.
const ASSUMED_CONTEXT: u32 = 131_072;
/// The tokens that a whole response may have had without showing them, if its model's context is
/// unknown.
const HIDDEN: u32 = 32_768;
/// The most tokens of the system prompt and the template that a model brings along.
const MAX_OWN_PROMPT: u32 = 4096;

/// The bounds of one request.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct UsageBounds {
    /// The tokens of the prompt.
    prompt: PromptLimit,
    /// The tokens of the response, if the request limits them.
    output: Option<TokenCount>,
    /// The number of responses.
    choices: u32,
    /// The context of the model that responded, if known.
    context: Option<TokenCount>,
}

/// The part of a response that has passed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Passed {
    /// The bytes of its payload.
    pub bytes: u64,
    /// True if it is a stream, which shows all its tokens but those of reasoning.
    pub is_stream: bool,
}

impl UsageBounds {
    /// Returns the bounds of a request on a model with the given context.
    pub fn of(request: &RequestProfile, context: Option<TokenCount>) -> Self {
        let RequestProfile { prompt_limit, output_limit, choices, .. } = *request;
        Self { prompt: prompt_limit, output: output_limit, choices, context }
    }

    /// Returns the bounds on an engine whose models may bring a system prompt along.
    #[must_use]
    pub fn with_own_prompt(mut self) -> Self {
        let TokenCount(tokens) = self.prompt.tokens;
        self.prompt.tokens = TokenCount(tokens.saturating_add(MAX_OWN_PROMPT));
        self
    }

    /// Returns the counts of an engine, each cut to its bound.
    #[must_use]
    pub fn apply(&self, usage: Usage, passed: Passed) -> Usage {
        let context = self.context.map(|context| context.0);
        let outside = match self.prompt.refers_outside {
            true => context.unwrap_or(ASSUMED_CONTEXT),
            false => 0,
        };
        let prompt = self.prompt.tokens.0.max(outside);
        let hidden = usage.reasoning_tokens.unwrap_or(0);
        let most = || passed.most(hidden, context, self.choices);
        let output = self.output.map_or_else(most, |output| output.0);
        let prompt_tokens = usage.prompt_tokens.map(|count| count.min(prompt));
        // What a cache had is a part of the prompt.
        let cached = prompt_tokens.unwrap_or(prompt);
        let is_above = |count: Option<u32>, most| count.is_some_and(|count| count > most);
        Usage {
            prompt_tokens,
            completion_tokens: usage.completion_tokens.map(|count| count.min(output)),
            cached_tokens: usage.cached_tokens.map(|count| count.min(cached)),
            reasoning_tokens: usage.reasoning_tokens.map(|count| count.min(output)),
            cut: CutCounts {
                prompt: is_above(usage.prompt_tokens, prompt),
                completion: is_above(usage.completion_tokens, output),
                cached: is_above(usage.cached_tokens, cached),
            },
        }
    }
}

impl Passed {
    /// Returns the upper bound of a response's tokens if the request sets no limit. `hidden`: the
    /// tokens that the engine counts as reasoning, which a stream need not show.
    fn most(self, hidden: u32, context: Option<u32>, choices: u32) -> u32 {
        let shown = u32::try_from(self.bytes).unwrap_or(u32::MAX);
        let context = context.map(|context| context.saturating_mul(choices.max(1)));
        let whole = context.unwrap_or_else(|| shown.max(HIDDEN));
        if self.is_stream { whole.min(shown.saturating_add(hidden)) } else { whole }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::{ScanOptions, scan};
    use penstock_api::Operation;

    const MAX: u32 = u32::MAX;

    fn bounded(body: &str, context: Option<u32>, passed: Passed) -> (u32, u32) {
        let request = scan(Operation::Chat, None, body.as_bytes(), ScanOptions::default()).unwrap();
        let absurd = Usage {
            prompt_tokens: Some(MAX),
            completion_tokens: Some(MAX),
            cached_tokens: Some(MAX),
            ..Usage::default()
        };
        let usage = UsageBounds::of(&request, context.map(TokenCount)).apply(absurd, passed);
        assert_eq!(usage.cached_tokens, usage.prompt_tokens);
        assert_eq!(usage.cut, CutCounts { prompt: true, completion: true, cached: true });
        (usage.prompt_tokens.unwrap(), usage.completion_tokens.unwrap())
    }

    fn body(rest: &str) -> String {
        format!(r#"{{"model":"m","messages":[{{"role":"user","content":"hi"}}]{rest}}}"#)
    }

    #[test]
    fn implausible_token_counts_are_capped() {
        let whole = Passed { bytes: 300, is_stream: false };
        let stream = Passed { bytes: 900, is_stream: true };
        let bytes = |rest: &str| u32::try_from(body(rest).len()).unwrap() + 640;
        for (rest, context, passed, prompt, output) in [
            (r#","max_tokens":50"#, None, whole, Some(0), 50),
            (r#","max_tokens":50,"n":3"#, None, whole, Some(0), 150),
            (r#","max_completion_tokens":5,"max_tokens":50"#, None, whole, Some(0), 50),
            (r#","n":3"#, Some(8192), whole, Some(0), 3 * 8192),
            (r#","max_tokens":0"#, None, stream, Some(0), 900),
            ("", None, whole, Some(0), HIDDEN),
            ("", Some(8192), whole, Some(0), 8192),
            ("", None, stream, Some(0), 900),
            ("", Some(500), stream, Some(0), 500),
            (r#","max_tokens":5,"previous_response_id":"r""#, None, whole, None, 5),
            (r#","max_tokens":5,"conversation":"c""#, Some(4096), whole, None, 5),
        ] {
            let wanted = prompt.map_or(context.unwrap_or(ASSUMED_CONTEXT), |_: u32| bytes(rest));
            assert_eq!(bounded(&body(rest), context, passed), (wanted, output), "{rest}");
        }
        let picture = r#"{"model":"m","messages":[{"role":"user","content":[{"type":"image_url","image_url":{"url":"http://x"}}]}]}"#;
        assert_eq!(bounded(picture, Some(4096), whole).0, 4096);
    }

    #[test]
    fn cached_tokens_are_a_part_of_the_prompt() {
        let request =
            scan(Operation::Chat, None, body("").as_bytes(), ScanOptions::default()).unwrap();
        let whole = Passed { bytes: 300, is_stream: false };
        for (prompt, cached, expected, is_cut) in [
            (Some(10), 5000, 10, true),
            (Some(10), 10, 10, false),
            (Some(10), 4, 4, false),
            (None, 400, 400, false),
        ] {
            let usage =
                Usage { prompt_tokens: prompt, cached_tokens: Some(cached), ..Usage::default() };
            let usage = UsageBounds::of(&request, None).apply(usage, whole);
            assert_eq!((usage.cached_tokens, usage.cut.cached), (Some(expected), is_cut));
        }
    }

    #[test]
    fn reasoning_of_a_stream_may_be_hidden() {
        let request =
            scan(Operation::Chat, None, body("").as_bytes(), ScanOptions::default()).unwrap();
        let stream = Passed { bytes: 482, is_stream: true };
        let counted = |reasoning, context: Option<u32>| {
            let usage = Usage {
                completion_tokens: Some(5000),
                reasoning_tokens: reasoning,
                ..Usage::default()
            };
            UsageBounds::of(&request, context.map(TokenCount)).apply(usage, stream)
        };
        for (reasoning, context, expected) in [
            (Some(4990), None, 5000),
            (Some(4990), Some(32_768), 5000),
            (Some(4990), Some(4096), 4096),
            (Some(1), None, 483),
            (Some(1), Some(32_768), 483),
            (Some(5000), Some(300), 300),
            (Some(0), None, 482),
            (None, None, 482),
        ] {
            let usage = counted(reasoning, context);
            assert_eq!(usage.completion_tokens, Some(expected), "{reasoning:?} of {context:?}");
        }
    }

    #[test]
    fn what_an_engine_adds_may_fill_the_context() {
        let whole = Passed { bytes: 300, is_stream: false };
        let prompt_of = |body: &str, operation| {
            let request = scan(operation, None, body.as_bytes(), ScanOptions::default()).unwrap();
            let absurd = Usage { prompt_tokens: Some(MAX), ..Usage::default() };
            UsageBounds::of(&request, Some(TokenCount(50_000))).apply(absurd, whole).prompt_tokens
        };
        let stored = r#"{"model":"m","prompt":{"id":"pmpt_1"}}"#;
        assert_eq!(prompt_of(stored, Operation::Responses), Some(50_000));
        let schema = r#""parameters":{"type":"object","properties":{"type":{"type":"string"}}}"#;
        for (rest, refers) in [
            (r#","mcp_servers":[{"type":"url","url":"https://x","name":"a"}]"#, true),
            (r#","mcp_servers":[]"#, false),
            (r#","container":"container_1""#, true),
            (r#","container":{"skills":[{"type":"anthropic","skill_id":"pptx"}]}"#, true),
            (r#","container":null"#, false),
            (r#","web_search_options":{}"#, true),
            (r#","enable_search":true"#, true),
            (r#","enable_search":false"#, false),
            (r#","tools":[{"type":"computer_20250124","name":"computer"}]"#, true),
            (r#","tools":[{"name":"bash","type":"bash_20250124"}]"#, true),
            (r#","tools":[{"type":"text_editor_20250728","name":"edit"}]"#, true),
            (r#","tools":[{"type":"web_fetch_20250910","name":"web_fetch"}]"#, true),
            (r#","tools":[{"type":"code_interpreter","container":{"type":"auto"}}]"#, true),
            (r#","tools":[{"type":"mcp","server_label":"a"}]"#, true),
            (r#","tools":[{"google_search":{}}]"#, true),
            (r#","tools":[{"type":"function","function":{"name":"web_search"}}]"#, true),
            (
                &format!(r#","tools":[{{"type":"function","function":{{"name":"f",{schema}}}}}]"#),
                false,
            ),
            (&format!(r#","tools":[{{"name":"f","type":"custom",{schema}}}]"#), false),
            (&format!(r#","tools":[{{"name":"f",{schema}}},{{"type":"shell"}}]"#), true),
            (&format!(r#","tools":[{{"name":"computer",{schema}}}]"#), false),
            (r#","tools":[]"#, false),
        ] {
            let prompt = prompt_of(&body(rest), Operation::Messages);
            assert_eq!(prompt == Some(50_000), refers, "{rest}: {prompt:?}");
        }
    }

    #[test]
    fn model_may_bring_a_system_prompt_along() {
        let whole = Passed { bytes: 300, is_stream: false };
        let body = body("");
        let request =
            scan(Operation::OllamaChat, None, body.as_bytes(), ScanOptions::default()).unwrap();
        let bounds = UsageBounds::of(&request, None);
        let absurd = Usage { prompt_tokens: Some(MAX), ..Usage::default() };
        let prompt = |bounds: UsageBounds| bounds.apply(absurd, whole).prompt_tokens.unwrap();
        assert_eq!(prompt(bounds.with_own_prompt()), prompt(bounds) + MAX_OWN_PROMPT);
    }

    proptest! {
        #[test]
        fn honest_counts_pass(text in "\\PC{0,200}", turns in 1_usize..20, output in 0_u32..2000) {
            let message = serde_json::json!({"role": "user", "content": text});
            let body = serde_json::json!({"model": "m", "messages": vec![message; turns]}).to_string();
            let request =
                scan(Operation::Chat, None, body.as_bytes(), ScanOptions::default()).unwrap();
            // One token for each byte, and a large template.
            let prompt = u32::try_from(turns * (text.len() + 30) + 30).unwrap();
            let usage = Usage {
                prompt_tokens: Some(prompt),
                completion_tokens: Some(output),
                ..Usage::default()
            };
            for passed in [
                Passed { bytes: u64::from(output) + 100, is_stream: true },
                Passed { bytes: u64::from(output), is_stream: false },
            ] {
                prop_assert_eq!(UsageBounds::of(&request, None).apply(usage, passed), usage);
            }
        }
    }
}
