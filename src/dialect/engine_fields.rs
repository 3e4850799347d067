//! Which fields beside OpenAI's own an engine understands in a chat or completion request. A new
//! engine with extensions is a row here.

use crate::config::Engine;

/// What an engine's `/v1/chat/completions` understands beside OpenAI's own fields.
#[derive(Debug)]
pub(super) struct EngineFields {
    /// Sampling options: llama.cpp's name, and the engine's.
    sampling: &'static [(&'static str, &'static str)],
    /// Whether it takes any further sampling option, and ignores those it does not know.
    takes_unknown_options: bool,
    /// The member of an assistant message that carries what the model thought.
    pub(super) thinking_member: Option<&'static str>,
    /// Whether `chat_template_kwargs.enable_thinking` turns thinking on and off.
    pub(super) takes_template_arguments: bool,
    /// Whether `ttl` says how many seconds the model stays loaded.
    pub(super) takes_ttl: bool,
    /// Whether reasoning models want `max_completion_tokens` in place of `max_tokens`.
    pub(super) has_completion_limit: bool,
}

/// Sampling options of OpenAI's own API.
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

/// The engines that understand more than the fields that all do.
const KNOWN: &[(Engine, EngineFields)] = &[
    (Engine::LlamaCpp, LLAMA_CPP),
    (Engine::Vllm, VLLM),
    (Engine::Sglang, VLLM),
    (Engine::Ollama, OLLAMA),
    (Engine::OpenAi, OPENAI),
    (Engine::LmStudio, LM_STUDIO),
];

impl EngineFields {
    /// The fields that `engine` understands.
    pub(super) fn of(engine: Engine) -> &'static Self {
        let known = KNOWN.iter().find(|(known, _)| *known == engine);
        known.map_or(&STRICT, |(_, fields)| fields)
    }

    /// The engine's name for a sampling option; `None` if it has none and the option is dropped.
    pub(super) fn sampling_name<'n>(&self, option: &'n str) -> Option<&'n str> {
        if OPENAI_SAMPLING.contains(&option) || self.takes_unknown_options {
            return Some(option);
        }
        self.sampling.iter().find(|(common, _)| *common == option).map(|(_, own)| *own)
    }
}
