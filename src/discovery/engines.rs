//! The pages and metrics of each engine, as one table. A new engine needs two changes: its name and
//! row in [`penstock_api::ENGINES`], and a row here. A test checks that every name has its row.

use std::time::Duration;

use penstock_api::Engine;

#[derive(Debug, Clone, Copy)]
pub(super) struct EngineFacts {
    pub(super) engine: Engine,
    /// The start of `owned_by` in its model list, by which `engine: auto` detects it.
    pub(super) owned_by: Option<&'static str>,
    /// The page by which `engine: auto` detects it if its model list names no owner.
    pub(super) own_page: Option<OwnPage>,
    /// A path that responds 200 when the engine can take requests.
    pub(super) health_path: &'static str,
    pub(super) model_list: ModelList,
    pub(super) loaded: LoadedSource,
    /// The path that reports the version, and the JSON pointer to it.
    pub(super) version: Option<(&'static str, &'static str)>,
    /// The paths that may have its metrics, the likeliest first.
    pub(super) metrics_paths: &'static [&'static str],
    /// llama.cpp's list of slots, read if there are no metrics.
    pub(super) slots_path: Option<&'static str>,
    /// llama.cpp's page with the number of tokens that its slots hold.
    pub(super) props_path: Option<&'static str>,
    pub(super) scrape_pace: ScrapePace,
    /// True if a scrape keeps it from noticing that a client has disconnected.
    pub(super) is_disturbed_by_scrapes: bool,
    /// Its metric families; if a page has several names for one fact, the first in this list
    /// counts.
    pub(super) families: &'static [Family],
    /// The facts of its load that it always reports: `doctor` misses them otherwise.
    pub(super) reported: &'static [Fact],
    /// The change that makes the engine report them.
    pub(super) metrics_remedy: &'static str,
}

/// LM Studio's own list of models, with their states and contexts.
pub(super) const LM_STUDIO_LIST: &str = "/api/v0/models";

/// A page that only one engine has.
#[derive(Debug, Clone, Copy)]
pub(super) struct OwnPage {
    pub(super) path: &'static str,
    pub(super) pointer: &'static str,
    /// The values at the pointer that identify the engine.
    pub(super) values: &'static [&'static str],
}

/// The way in which an engine lists its models.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum ModelList {
    /// `/v1/models`.
    OpenAi,
    /// `/v1/models`, with context length and modalities in `/props`.
    OpenAiWithProps,
    /// `/api/tags` and `/api/show`.
    Ollama,
    /// `/v1/models`, with context lengths in [`LM_STUDIO_LIST`].
    LmStudio,
}

/// The way in which an engine reports its models in memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum LoadedSource {
    /// All listed models are in memory.
    Always,
    /// `/api/ps`.
    OllamaPs,
    /// LM Studio's own list, at [`LM_STUDIO_LIST`].
    LmStudio,
    /// A status in `/v1/models`, or `/props` if there is one model.
    LlamaCpp,
    /// `/is_sleeping`, if it is served.
    SleepPage,
}

/// The pace at which an engine may be scraped.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum ScrapePace {
    /// As configured: `telemetry.interval` while it is busy, else `telemetry.idle_interval`.
    Configured,
    /// The same, but at least this long apart.
    AtLeast(Duration),
    /// Always `telemetry.idle_interval`, and at least this long apart.
    Idle(Duration),
}

/// A fact that a metric family reports.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) enum Fact {
    Waiting,
    Running,
    /// The share of the KV cache in use.
    KvUtilization,
    /// Tokens per block of the KV cache.
    BlockSize,
    /// Blocks in the KV cache.
    Blocks,
    /// Both of them, in the labels `size` and `count`; the label `caching` says whether prompts are
    /// kept for those with the same beginning.
    CacheInfo {
        size: &'static str,
        count: &'static str,
        caching: Option<&'static str>,
    },
    /// LoRA adapters, in labels; the newest value counts.
    Adapters,
    /// The start time of the process, in seconds since 1970.
    StartedAt,
    /// Tokens found in the prefix cache.
    PrefixHits,
    /// Tokens looked up in the prefix cache.
    PrefixQueries,
    /// Work done since the engine started: a drop shows a restart.
    Work,
    /// The fact that the value of the label selects.
    ByLabel(&'static str, &'static [(&'static str, Self)]),
}

/// A metric family and the fact that it reports.
#[derive(Debug, Clone, Copy)]
pub(super) struct Family {
    pub(super) fact: Fact,
    pub(super) name: &'static str,
}

const fn family(fact: Fact, name: &'static str) -> Family {
    Family { fact, name }
}

/// llama.cpp notices a disconnected client only after a second without any request to it.
const LLAMACPP_PAUSE: Duration = Duration::from_millis(1400);
const LOAD: &[Fact] = &[Fact::Running, Fact::Waiting, Fact::KvUtilization];

/// An engine without further known facts: it speaks OpenAI's dialect and may have metrics.
const fn openai_like(engine: Engine) -> EngineFacts {
    EngineFacts {
        engine,
        owned_by: None,
        own_page: None,
        // Every engine we know lists its models, and the list needs the key that requests need.
        health_path: "/v1/models",
        model_list: ModelList::OpenAi,
        loaded: LoadedSource::Always,
        version: None,
        metrics_paths: &["/metrics"],
        slots_path: None,
        props_path: None,
        scrape_pace: ScrapePace::Configured,
        is_disturbed_by_scrapes: false,
        families: &[],
        reported: &[],
        metrics_remedy: "",
    }
}

/// Triton's TensorRT-LLM backend reports several facts as one family.
const TRITON_REQUESTS: Fact =
    Fact::ByLabel("request_type", &[("waiting", Fact::Waiting), ("scheduled", Fact::Running)]);
const TRITON_CACHE: Fact = Fact::ByLabel(
    "kv_cache_block_type",
    &[("fraction", Fact::KvUtilization), ("tokens_per", Fact::BlockSize), ("max", Fact::Blocks)],
);

const ENGINES: &[EngineFacts] = &[
    EngineFacts {
        slots_path: Some("/slots"),
        // It may be llama.cpp.
        scrape_pace: ScrapePace::Idle(LLAMACPP_PAUSE),
        ..openai_like(Engine::Auto)
    },
    EngineFacts {
        owned_by: Some("vllm"),
        health_path: "/health",
        version: Some(("/version", "/version")),
        loaded: LoadedSource::SleepPage,
        families: &[
            family(Fact::Waiting, "vllm:num_requests_waiting"),
            family(Fact::Running, "vllm:num_requests_running"),
            // Older versions of vLLM have the names with `gpu_`.
            family(Fact::KvUtilization, "vllm:kv_cache_usage_perc"),
            family(Fact::KvUtilization, "vllm:gpu_cache_usage_perc"),
            family(
                Fact::CacheInfo {
                    size: "block_size",
                    count: "num_gpu_blocks",
                    caching: Some("enable_prefix_caching"),
                },
                "vllm:cache_config_info",
            ),
            family(Fact::Adapters, "vllm:lora_requests_info"),
            family(Fact::PrefixHits, "vllm:prefix_cache_hits_total"),
            family(Fact::PrefixHits, "vllm:gpu_prefix_cache_hits_total"),
            family(Fact::PrefixQueries, "vllm:prefix_cache_queries_total"),
            family(Fact::PrefixQueries, "vllm:gpu_prefix_cache_queries_total"),
            family(Fact::Work, "vllm:generation_tokens_total"),
        ],
        reported: LOAD,
        metrics_remedy: "start vLLM without --disable-log-stats",
        ..openai_like(Engine::Vllm)
    },
    EngineFacts {
        owned_by: Some("sglang"),
        health_path: "/health",
        version: Some(("/get_server_info", "/version")),
        families: &[
            family(Fact::Waiting, "sglang:num_queue_reqs"),
            family(Fact::Running, "sglang:num_running_reqs"),
            family(Fact::KvUtilization, "sglang:token_usage"),
            family(
                Fact::CacheInfo { size: "page_size", count: "num_pages", caching: None },
                "sglang:cache_config_info",
            ),
            family(Fact::PrefixHits, "sglang:cached_tokens_total"),
            family(Fact::PrefixQueries, "sglang:prompt_tokens_total"),
            family(Fact::Work, "sglang:generation_tokens_total"),
        ],
        reported: LOAD,
        metrics_remedy: "start SGLang with --enable-metrics",
        ..openai_like(Engine::Sglang)
    },
    EngineFacts {
        owned_by: Some("llamacpp"),
        health_path: "/health",
        model_list: ModelList::OpenAiWithProps,
        loaded: LoadedSource::LlamaCpp,
        version: Some(("/props", "/build_info")),
        slots_path: Some("/slots"),
        props_path: Some("/props"),
        scrape_pace: ScrapePace::AtLeast(LLAMACPP_PAUSE),
        is_disturbed_by_scrapes: true,
        families: &[
            family(Fact::Waiting, "llamacpp:requests_deferred"),
            family(Fact::Running, "llamacpp:requests_processing"),
            family(Fact::KvUtilization, "llamacpp:kv_cache_usage_ratio"),
            family(Fact::Work, "llamacpp:tokens_predicted_total"),
        ],
        reported: &[Fact::Running, Fact::Waiting],
        metrics_remedy: "start llama-server with --metrics",
        ..openai_like(Engine::LlamaCpp)
    },
    EngineFacts {
        // Ollama has the namespace of a model there; its library is the usual one.
        owned_by: Some("library"),
        health_path: "/api/version",
        model_list: ModelList::Ollama,
        loaded: LoadedSource::OllamaPs,
        version: Some(("/api/version", "/version")),
        metrics_paths: &[],
        ..openai_like(Engine::Ollama)
    },
    EngineFacts {
        own_page: Some(OwnPage {
            path: LM_STUDIO_LIST,
            pointer: "/data/0/state",
            values: &["loaded", "not-loaded"],
        }),
        model_list: ModelList::LmStudio,
        loaded: LoadedSource::LmStudio,
        metrics_paths: &[],
        ..openai_like(Engine::LmStudio)
    },
    EngineFacts { metrics_paths: &[], ..openai_like(Engine::OpenAi) },
    EngineFacts { metrics_paths: &[], ..openai_like(Engine::Anthropic) },
    EngineFacts {
        health_path: "/health",
        families: &[
            family(Fact::Waiting, "tgi_queue_size"),
            family(Fact::Running, "tgi_batch_current_size"),
            family(Fact::Work, "tgi_request_count"),
        ],
        ..openai_like(Engine::Tgi)
    },
    EngineFacts {
        health_path: "/health",
        // `trtllm-serve` has JSON at /metrics, and Triton has its metrics there, on another port.
        metrics_paths: &["/prometheus/metrics", "/metrics"],
        families: &[
            family(Fact::Waiting, "trtllm_num_requests_waiting"),
            family(Fact::Running, "trtllm_num_requests_running"),
            family(Fact::KvUtilization, "trtllm_kv_cache_utilization"),
            family(Fact::BlockSize, "trtllm_kv_cache_tokens_per_block"),
            family(Fact::Blocks, "trtllm_kv_cache_max_blocks"),
            family(TRITON_REQUESTS, "nv_trt_llm_request_metrics"),
            family(TRITON_CACHE, "nv_trt_llm_kv_cache_block_metrics"),
        ],
        ..openai_like(Engine::TrtLlm)
    },
    EngineFacts { scrape_pace: ScrapePace::Idle(LLAMACPP_PAUSE), ..openai_like(Engine::Other) },
];

/// Families that identify no engine.
const COMMON: &[Family] = &[family(Fact::StartedAt, "process_start_time_seconds")];

const UNKNOWN: &EngineFacts = &openai_like(Engine::Other);

/// Returns the facts about an engine.
pub(super) fn facts(engine: Engine) -> &'static EngineFacts {
    let row = ENGINES.iter().find(|row| row.engine == engine);
    debug_assert!(row.is_some(), "{engine:?} has no row");
    row.unwrap_or(UNKNOWN)
}

/// Returns the engine whose model list has this `owned_by`.
pub(super) fn detect(owned_by: &str) -> Option<Engine> {
    ENGINES.iter().find(|row| row.owns(owned_by)).map(|row| row.engine)
}

/// Returns the pages by which engines are detected, with their engines.
pub(super) fn own_pages() -> impl Iterator<Item = (Engine, OwnPage)> {
    ENGINES.iter().filter_map(|row| Some((row.engine, row.own_page?)))
}

/// Returns every metric family that is read, with the engine that it identifies.
pub(super) fn families() -> impl Iterator<Item = (Option<Engine>, Family)> {
    let rows = ENGINES
        .iter()
        .flat_map(|row| row.families.iter().map(|family| (Some(row.engine), *family)));
    rows.chain(COMMON.iter().map(|family| (None, *family)))
}

impl EngineFacts {
    /// Returns the names of the metrics that the engine must report, fact by fact, the newest
    /// first.
    pub(super) fn reported_families(&self) -> Vec<Vec<&'static str>> {
        self.reported.iter().map(|fact| self.names_of(*fact)).collect()
    }

    fn names_of(&self, fact: Fact) -> Vec<&'static str> {
        let families = self.families.iter().filter(|family| family.fact == fact);
        families.map(|family| family.name).collect()
    }

    /// Returns whether the engine's model list has this `owned_by`.
    fn owns(&self, owned_by: &str) -> bool {
        self.owned_by.is_some_and(|own| owned_by.starts_with(own))
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn every_configurable_engine_has_exactly_one_row() {
        let rows: Vec<Engine> = ENGINES.iter().map(|row| row.engine).collect();
        assert_eq!(rows, Engine::ALL, "one row per name, in the order of the configuration");
    }

    #[test]
    fn metric_families_and_owners_identify_one_engine() {
        let names: Vec<&str> = families().map(|(_, family)| family.name).collect();
        let unique: BTreeSet<&str> = names.iter().copied().collect();
        assert_eq!(names.len(), unique.len(), "{names:?}");
        for row in ENGINES {
            assert!(row.owned_by.is_none_or(|own| detect(own) == Some(row.engine)), "{row:?}");
            for fact in row.reported {
                let has = row.families.iter().any(|family| family.fact == *fact);
                assert!(has, "{:?} reports {fact:?} by no family", row.engine);
            }
        }
        assert_eq!(detect("someone else"), None);
    }
}
