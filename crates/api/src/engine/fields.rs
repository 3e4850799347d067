//! The fields beyond OpenAI's own that an engine understands in a chat or completion request.

/// The fields beyond OpenAI's own that an engine's `/v1/chat/completions` understands.
#[derive(Debug, Clone, Copy)]
pub struct EngineFields {
    /// The further sampling options: llama.cpp's name and the engine's.
    pub sampling: &'static [(&'static str, &'static str)],
    /// If set, the engine takes any further sampling option and ignores unknown ones.
    pub takes_unknown_options: bool,
    /// The member of an assistant message that carries the model's thinking.
    pub thinking_member: Option<&'static str>,
    /// If set, `chat_template_kwargs.enable_thinking` turns thinking on and off.
    pub takes_template_arguments: bool,
    /// If set, `ttl` is the number of seconds that the model stays loaded.
    pub takes_ttl: bool,
    /// If set, reasoning models need `max_completion_tokens` in place of `max_tokens`.
    pub has_completion_limit: bool,
}

/// The sampling options of OpenAI's API.
const OPENAI_SAMPLING: &[&str] =
    &["temperature", "top_p", "seed", "presence_penalty", "frequency_penalty", "logit_bias"];

impl EngineFields {
    /// The fields of an engine without extensions.
    pub(super) const STRICT: Self = Self {
        sampling: &[],
        takes_unknown_options: false,
        thinking_member: None,
        takes_template_arguments: false,
        takes_ttl: false,
        has_completion_limit: false,
    };

    /// Returns the engine's name for a sampling option; `None` if it has none, so that the option
    /// is dropped.
    pub fn sampling_name<'n>(&self, option: &'n str) -> Option<&'n str> {
        // Options have llama.cpp's names here, and no other engine takes unknown ones.
        if OPENAI_SAMPLING.contains(&option) || self.takes_unknown_options {
            return Some(option);
        }
        self.sampling.iter().find(|(common, _)| *common == option).map(|(_, own)| *own)
    }
}
