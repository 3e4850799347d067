//! The words by which clients recognize a prompt that is too long. Only with these words and the
//! numbers do agents compact their conversation, and gateways go to a model with a longer context.

use std::fmt;

use crate::units::TokenCount;

/// A request that does not fit a context.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ContextOverflow {
    /// The length of the prompt.
    pub prompt: TokenCount,
    /// True if the prompt may have more tokens than `prompt`.
    pub is_least: bool,
    /// The tokens reserved for the response.
    pub output: TokenCount,
    /// The context that it exceeds.
    pub context: TokenCount,
}

impl fmt::Display for ContextOverflow {
    // Claude Code reads the first part; LiteLLM, opencode, pi and Cline read the second one, too.
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (prompt, output, context) = (self.prompt.0, self.output.0, self.context.0);
        if prompt > context {
            let least = if self.is_least { "at least " } else { "" };
            write!(out, "prompt is too long: {least}{prompt} tokens > {context} maximum")?;
        } else {
            // A shorter response would fit: a client that compacts its prompt would lose it for
            // nothing.
            write!(
                out,
                "input length and `max_tokens` exceed context limit: {prompt} + {output} > {context}"
            )?;
        }
        write!(out, "; this model's maximum context length is {context} tokens")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn text(prompt: u32, is_least: bool, output: u32) -> String {
        let [prompt, output, context] = [prompt, output, 8192].map(TokenCount);
        ContextOverflow { prompt, is_least, output, context }.to_string()
    }

    #[test]
    fn clients_find_the_words_and_numbers_they_look_for() {
        let end = "; this model's maximum context length is 8192 tokens";
        for (text, start) in [
            (text(75_000, false, 0), "prompt is too long: 75000 tokens > 8192 maximum"),
            (text(75_000, false, 9), "prompt is too long: 75000 tokens > 8192 maximum"),
            (text(8193, true, 0), "prompt is too long: at least 8193 tokens > 8192 maximum"),
            (
                text(100, false, 8150),
                "input length and `max_tokens` exceed context limit: 100 + 8150 > 8192",
            ),
        ] {
            assert_eq!(text, format!("{start}{end}"));
        }
    }
}
