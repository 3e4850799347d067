//! Profiles by name.

use super::normalize;
use super::spec::ScorerSpec;

/// A profile by name.
#[derive(Debug)]
pub struct Preset {
    /// The name it is configured by.
    pub name: &'static str,
    pub about: &'static str,
    /// Its scorers with their weights.
    pub scorers: &'static [(&'static str, f64)],
    /// The warning that configuring it causes.
    pub warning: Option<&'static str>,
}

/// The scorers of the strategy `slo` with their weights. The predicted time of one request does not
/// see that its prompt evicts other prompts from a cache, nor that a full KV cache preempts
/// streams. Found in simulation: without the other two, 4 points fewer requests of agents whose
/// caches are full are in time, and 1.3 fewer beside long prompts; on unequal engines the same,
/// within a point.
pub const SLO_SCORERS: &[(&str, f64)] =
    &[("slo-headroom", 3.0), ("prefix-affinity", 1.0), ("kv-utilization", 1.0)];

pub const PRESETS: &[Preset] = &[
    Preset {
        name: "llm-d",
        about: "prefix, queue and KV cache at 3 : 2 : 2, as BLIS and llm-d by default",
        scorers: &[("prefix-affinity", 3.0), ("queue-depth", 2.0), ("kv-utilization", 2.0)],
        warning: None,
    },
    Preset {
        name: "balanced",
        about: "uncached tokens x batch, prefix, KV cache and predicted time at 3 : 2 : 4 : 8: what \
                docs/performance/simulation.md found best",
        scorers: &[
            ("new-prefill-batch", 3.0),
            ("prefix-affinity", 2.0),
            ("kv-utilization", 4.0),
            ("slo-headroom", 8.0),
        ],
        warning: None,
    },
    Preset {
        name: "sglang",
        about: "the best prefix while loads are even, else the shortest queue, as SGLang's router",
        scorers: &[("cache-aware", 1.0)],
        warning: None,
    },
    Preset {
        name: "lmetric",
        about: "least of uncached tokens x batch: nothing to tune",
        scorers: &[("new-prefill-batch", 1.0)],
        warning: None,
    },
    Preset {
        name: "sticky",
        about: "the backend with the prompt until it is far behind, else the fewest tokens to compute, as llm-d \
                since June 2026",
        scorers: &[("sticky", 1.0)],
        warning: None,
    },
    Preset {
        name: "least-loaded",
        about: "least of waiting + running + dispatched since",
        scorers: &[("load-balance", 1.0)],
        warning: None,
    },
    Preset {
        name: "prefix-affinity",
        about: "the most cached blocks, whatever the load",
        scorers: &[("prefix-affinity", 1.0)],
        warning: Some("it knows no load: one popular prefix fills one backend"),
    },
    Preset {
        name: "bounded-hash",
        about: "the same prefix to the same backend unless that has 1.25 times the average load; \
                keeps no index and selects the same backend on every replica",
        scorers: &[("bounded-hash", 1.0)],
        warning: None,
    },
    Preset {
        name: "resident",
        about: "a free slot before a model in memory before few requests: the strategy deployment as \
                scores, to be mixed with others",
        scorers: &[("free-slot", 4.0), ("resident", 2.0), ("active-requests", 1.0)],
        warning: None,
    },
    Preset {
        name: "always-busiest",
        about: "the most loaded backend",
        scorers: &[("busiest", 1.0)],
        warning: Some("it picks the worst backend on purpose and is for tests only"),
    },
];

impl Preset {
    /// The preset of a name; `-` and `_` are alike.
    pub fn find(name: &str) -> Option<&'static Self> {
        let name = normalize(name);
        PRESETS.iter().find(|preset| preset.name == name)
    }

    /// The preset with the same scorers and weight ratios; the parameters do not matter, nor the
    /// weight of a single scorer.
    pub fn like(specs: &[ScorerSpec]) -> Option<&'static Self> {
        PRESETS.iter().find(|preset| preset.is_like(specs))
    }

    fn is_like(&self, specs: &[ScorerSpec]) -> bool {
        let mut pairs = self.scorers.iter().zip(specs);
        self.scorers.len() == specs.len()
            && pairs.all(|((name, weight), spec)| {
                spec.is(name) && (specs.len() == 1 || *weight == spec.weight)
            })
    }

    pub fn specs(&self) -> Vec<ScorerSpec> {
        self.scorers.iter().map(|(name, weight)| ScorerSpec::new(name, *weight)).collect()
    }
}
