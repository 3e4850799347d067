//! The fields beyond OpenAI's own that an engine understands in a chat or completion request. A new
//! engine with extensions is a row here.

use penstock_api::Engine;

/// The fields beyond OpenAI's own that an engine's `/v1/chat/completions` understands.
#[derive(Debug)]
pub(super) struct EngineFields {
    /// The sampling options: llama.cpp's name and the engine's.
    sampling: &'static [(&'static str, &'static str)],
    /// If set, the engine takes any further sampling option and ignores unknown ones.
    takes_unknown_options: bool,
    /// The member of an assistant message that carries the model's thinking.
    pub(super) thinking_member: Option<&'static str>,
    /// If set, `chat_template_kwargs.enable_thinking` turns thinking on and off.
    pub(super) takes_template_arguments: bool,
    /// If set, `ttl` is the number of seconds that the model stays loaded.
    pub(super) takes_ttl: bool,
    /// If set, reasoning models need `max_completion_tokens` in place of `max_tokens`.
    pub(super) has_completion_limit: bool,
}

/// The sampling options of OpenAI's API.
const OPENAI_SAMPLING: &[&str] =
    &["temperature", "top_p", "seed", "presence_penalty", "frequency_penalty", "logit_bias"];

const STRICT: EngineFields = EngineFields {
    sampling: &[],
    takes_unknown_options: false,
    thinking_member: None,
    takes_template_arguments: false,
    takes_ttl: false,
    has_completion_limit: false,
};
const OPENAI: EngineFields = EngineFields { has_completion_limit: true, ..STRICT };
const LLAMA_CPP: EngineFields = EngineFields {
    sampling: &[],
    takes_unknown_options: true,
    thinking_member: Some("reasoning_content"),
    takes_template_arguments: true,
    ..STRICT
};
const VLLM: EngineFields = EngineFields {
    sampling: &[("top_k", "top_k"), ("min_p", "min_p"), ("repeat_penalty", "repetition_penalty")],
    thinking_member: Some("reasoning_content"),
    takes_template_arguments: true,
    ..STRICT
};
const OLLAMA: EngineFields = EngineFields { thinking_member: Some("reasoning"), ..STRICT };
const LM_STUDIO: EngineFields = EngineFields {
    sampling: &[("top_k", "top_k"), ("repeat_penalty", "repeat_penalty")],
    takes_ttl: true,
    ..STRICT
};

/// The engines that understand more than the common fields.
const KNOWN: &[(Engine, EngineFields)] = &[
    (Engine::LlamaCpp, LLAMA_CPP),
    (Engine::Vllm, VLLM),
    (Engine::Sglang, VLLM),
    (Engine::Ollama, OLLAMA),
    (Engine::OpenAi, OPENAI),
    (Engine::LmStudio, LM_STUDIO),
];

impl EngineFields {
    /// Returns the fields that `engine` understands.
    pub(super) fn of(engine: Engine) -> &'static Self {
        let known = KNOWN.iter().find(|(known, _)| *known == engine);
        known.map_or(&STRICT, |(_, fields)| fields)
    }

    /// Returns the engine's name for a sampling option; `None` if it has none, so that the option
    /// is dropped.
    pub(super) fn sampling_name<'n>(&self, option: &'n str) -> Option<&'n str> {
        if OPENAI_SAMPLING.contains(&option) || self.takes_unknown_options {
            return Some(option);
        }
        self.sampling.iter().find(|(common, _)| *common == option).map(|(_, own)| *own)
    }
}
