//! `ensembles:` several drafts and their critiques become one response.

use std::time::Duration;

use super::prompt::{Critique, Final, Prompt, PromptFile};
use crate::syntax::checked_text::{Checked, TextRule, is_one_word};
use crate::syntax::setting::section;
use crate::syntax::values::{AtLeastOne, Positive};

section! {
    /// Ensembles: requests for a model with a prefix get one response that is made of three drafts.
    pub struct EnsemblesConfig {
        /// Makes names with the prefix ensembles.
        pub enabled: bool = false,
        /// The start of an ensemble's name, before the name of its model.
        pub prefix: String ["prefix" as Checked<Prefix>] = "moe-".to_owned(),
        /// The maximum number of ensembles at one time; further ones get 429.
        pub in_flight: usize ["in_flight" as AtLeastOne<usize>] = 16,
        /// Time for the drafts, and the same again for the critiques. What takes longer is left
        /// out.
        pub stage_timeout: Duration ["stage_timeout" as Positive] = Duration::from_secs(120),
        /// The maximum number of tokens of a critique.
        pub critique_tokens: u32 ["critique_tokens" as AtLeastOne<u32>] = 1024,
        /// A file with the prompt of a critique; it contains {query}, {response} and optionally
        /// {number}. Default: `conf/prompts/critique.txt`, which is built in.
        pub critique_prompt: Prompt ["critique_prompt" as PromptFile<Critique>] = Prompt::critique(),
        /// A file with the prompt of the final call; it contains {query} and {candidates}. Default:
        /// `conf/prompts/final.txt`, which is built in.
        pub final_prompt: Prompt ["final_prompt" as PromptFile<Final>] = Prompt::last(),
    }
}

/// The start of a name: not empty, or every model would be an ensemble.
struct Prefix;

impl TextRule for Prefix {
    const EXPECTED: &'static str = "the start of model names, without spaces";

    fn accepts(text: &str) -> bool {
        is_one_word(text)
    }
}
