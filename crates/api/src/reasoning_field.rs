//! The field of a chat response that has what the model thinks: APIs disagree on its name.

use crate::choice;

choice! {
    /// The field that has what the model thinks, in converted chat responses.
    pub enum ReasoningField {
        /// `reasoning_content` and `reasoning`.
        Both = "both",
        /// The field of llama.cpp, vLLM and DeepSeek.
        ReasoningContent = "reasoning_content",
        /// The field of Ollama and OpenRouter.
        Reasoning = "reasoning",
        /// The thinking is left out.
        None = "none",
    }
}

#[expect(clippy::derivable_impls, reason = "`choice!` takes no attributes on its values")]
impl Default for ReasoningField {
    fn default() -> Self {
        Self::Both
    }
}
