//! Which metrics tell what of which engine: each by the names it has had. Adding a name is a row
//! here. Of several names for one fact, the first that is on a page counts.

use crate::config::Engine;

/// What a family tells.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) enum Fact {
    /// Requests that wait.
    Waiting,
    /// Requests that run.
    Running,
    /// The share of the KV cache in use.
    KvUtilization,
    /// Tokens per block of the KV cache.
    BlockSize,
    /// Blocks in the KV cache.
    Blocks,
    /// Both of them, in the labels of these names.
    CacheInfo { size: &'static str, count: &'static str },
    /// LoRA adapters, in labels; the newest value counts.
    Adapters,
    /// When the process started, in seconds since 1970.
    StartedAt,
    /// Tokens found in the prefix cache.
    PrefixHits,
    /// Tokens looked up there.
    PrefixQueries,
    /// Work done since the engine started: falls when it starts anew.
    Work,
    /// What the value of the label decides.
    ByLabel(&'static str, &'static [(&'static str, Self)]),
}

/// One row of the table.
#[derive(Debug)]
pub(super) struct Family {
    /// Whose it is; [`Engine::Auto`] for those that say nothing about that.
    pub(super) engine: Engine,
    pub(super) fact: Fact,
    pub(super) name: &'static str,
}

const fn vllm(fact: Fact, name: &'static str) -> Family {
    Family { engine: Engine::Vllm, fact, name }
}

const fn sglang(fact: Fact, name: &'static str) -> Family {
    Family { engine: Engine::Sglang, fact, name }
}

const fn trtllm(fact: Fact, name: &'static str) -> Family {
    Family { engine: Engine::TrtLlm, fact, name }
}

const fn tgi(fact: Fact, name: &'static str) -> Family {
    Family { engine: Engine::Tgi, fact, name }
}

const fn llamacpp(fact: Fact, name: &'static str) -> Family {
    Family { engine: Engine::LlamaCpp, fact, name }
}

/// Triton's TensorRT-LLM backend shows several facts as one family.
const TRITON_REQUESTS: Fact =
    Fact::ByLabel("request_type", &[("waiting", Fact::Waiting), ("scheduled", Fact::Running)]);
const TRITON_CACHE: Fact = Fact::ByLabel(
    "kv_cache_block_type",
    &[("fraction", Fact::KvUtilization), ("tokens_per", Fact::BlockSize), ("max", Fact::Blocks)],
);

/// Every family that is read.
pub(super) const FAMILIES: [Family; 33] = [
    vllm(Fact::Waiting, "vllm:num_requests_waiting"),
    vllm(Fact::Running, "vllm:num_requests_running"),
    vllm(Fact::KvUtilization, "vllm:kv_cache_usage_perc"),
    vllm(Fact::KvUtilization, "vllm:gpu_cache_usage_perc"),
    vllm(Fact::CacheInfo { size: "block_size", count: "num_gpu_blocks" }, "vllm:cache_config_info"),
    vllm(Fact::Adapters, "vllm:lora_requests_info"),
    vllm(Fact::PrefixHits, "vllm:prefix_cache_hits_total"),
    vllm(Fact::PrefixHits, "vllm:gpu_prefix_cache_hits_total"),
    vllm(Fact::PrefixQueries, "vllm:prefix_cache_queries_total"),
    vllm(Fact::PrefixQueries, "vllm:gpu_prefix_cache_queries_total"),
    vllm(Fact::Work, "vllm:generation_tokens_total"),
    sglang(Fact::Waiting, "sglang:num_queue_reqs"),
    sglang(Fact::Running, "sglang:num_running_reqs"),
    sglang(Fact::KvUtilization, "sglang:token_usage"),
    sglang(Fact::CacheInfo { size: "page_size", count: "num_pages" }, "sglang:cache_config_info"),
    sglang(Fact::PrefixHits, "sglang:cached_tokens_total"),
    sglang(Fact::PrefixQueries, "sglang:prompt_tokens_total"),
    sglang(Fact::Work, "sglang:generation_tokens_total"),
    trtllm(Fact::Waiting, "trtllm_num_requests_waiting"),
    trtllm(Fact::Running, "trtllm_num_requests_running"),
    trtllm(Fact::KvUtilization, "trtllm_kv_cache_utilization"),
    trtllm(Fact::BlockSize, "trtllm_kv_cache_tokens_per_block"),
    trtllm(Fact::Blocks, "trtllm_kv_cache_max_blocks"),
    trtllm(TRITON_REQUESTS, "nv_trt_llm_request_metrics"),
    trtllm(TRITON_CACHE, "nv_trt_llm_kv_cache_block_metrics"),
    tgi(Fact::Waiting, "tgi_queue_size"),
    tgi(Fact::Running, "tgi_batch_current_size"),
    tgi(Fact::Work, "tgi_request_count"),
    llamacpp(Fact::Waiting, "llamacpp:requests_deferred"),
    llamacpp(Fact::Running, "llamacpp:requests_processing"),
    llamacpp(Fact::KvUtilization, "llamacpp:kv_cache_usage_ratio"),
    llamacpp(Fact::Work, "llamacpp:tokens_predicted_total"),
    Family { engine: Engine::Auto, fact: Fact::StartedAt, name: "process_start_time_seconds" },
];

/// The names one fact of an engine has had, the newest first.
pub(super) fn names(engine: Engine, fact: Fact) -> impl Iterator<Item = &'static str> {
    let rows = FAMILIES.iter().filter(move |row| row.engine == engine && row.fact == fact);
    rows.map(|row| row.name)
}
