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
    /// True if it is a stream, which shows all its tokens.
    pub is_stream: bool,
}

impl UsageBounds {
    /// Returns the bounds of a request on a model with the given context.
    pub fn of(request: &RequestProfile, context: Option<TokenCount>) -> Self {
        let RequestProfile { prompt_limit, output_limit, choices, .. } = *request;
        Self { prompt: prompt_limit, output: output_limit, choices, context }
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
        let output =
            self.output.map_or_else(|| passed.most(context, self.choices), |output| output.0);
        let is_above = |count: Option<u32>, most| count.is_some_and(|count| count > most);
        Usage {
            prompt_tokens: usage.prompt_tokens.map(|count| count.min(prompt)),
            completion_tokens: usage.completion_tokens.map(|count| count.min(output)),
            cached_tokens: usage.cached_tokens.map(|count| count.min(prompt)),
            reasoning_tokens: usage.reasoning_tokens.map(|count| count.min(output)),
            cut: CutCounts {
                prompt: is_above(usage.prompt_tokens, prompt),
                completion: is_above(usage.completion_tokens, output),
                cached: is_above(usage.cached_tokens, prompt),
            },
        }
    }
}

impl Passed {
    /// Returns the upper bound of a response's tokens if the request sets no limit.
    fn most(self, context: Option<u32>, choices: u32) -> u32 {
        let shown = u32::try_from(self.bytes).unwrap_or(u32::MAX);
        let context = context.map(|context| context.saturating_mul(choices.max(1)));
        match (self.is_stream, context) {
            (true, context) => shown.min(context.unwrap_or(u32::MAX)),
            (false, Some(context)) => context,
            (false, None) => shown.max(HIDDEN),
        }
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
        let bytes = |rest: &str| u32::try_from(body(rest).len()).unwrap() + 128;
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
