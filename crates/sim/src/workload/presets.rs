//! Named workloads with the figures that other benchmarks in this field use.

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct WorkloadPreset {
    /// The name of the preset.
    pub name: &'static str,
    /// A description of the preset and the source of its figures.
    pub about: &'static str,
    pub yaml: &'static str,
}

pub fn presets() -> &'static [WorkloadPreset] {
    PRESETS
}

const PRESETS: &[WorkloadPreset] = &[
    WorkloadPreset {
        name: "chatbot",
        about: "short prompts, short responses (BLIS: 256 ± 100 in and out)",
        yaml: include_str!("presets/chatbot.yaml"),
    },
    WorkloadPreset {
        name: "contentgen",
        about: "1,024 tokens in and out (BLIS)",
        yaml: include_str!("presets/contentgen.yaml"),
    },
    WorkloadPreset {
        name: "summarization",
        about: "long prompts, short responses (BLIS: 4,096 ± 500 in, 512 out)",
        yaml: include_str!("presets/summarization.yaml"),
    },
    WorkloadPreset {
        name: "multidoc",
        about: "very long prompts (BLIS: 10,240 in, 1,536 out)",
        yaml: include_str!("presets/multidoc.yaml"),
    },
    WorkloadPreset {
        name: "shared-prefix",
        about: "150 system prompts of 6,000 tokens, 5 users each (llm-d's benchmark C)",
        yaml: include_str!("presets/shared-prefix.yaml"),
    },
    WorkloadPreset {
        name: "conversation",
        about: "sessions of 2 to 10 turns over six system prompts",
        yaml: include_str!("presets/conversation.yaml"),
    },
    WorkloadPreset {
        name: "agentic",
        about: "agents: a plan, several calls at once, and so on (code generation of inference-perf)",
        yaml: include_str!("presets/agentic.yaml"),
    },
    WorkloadPreset {
        name: "reasoning",
        about: "short prompts, 8,000 tokens out (inference-perf)",
        yaml: include_str!("presets/reasoning.yaml"),
    },
    WorkloadPreset {
        name: "bursty",
        about: "chat in bursts: gaps with a coefficient of variation of 3",
        yaml: include_str!("presets/bursty.yaml"),
    },
    WorkloadPreset {
        name: "overload",
        about: "people, and batches of priority -1 that send 70 % of the requests; for --load above 1",
        yaml: include_str!("presets/overload.yaml"),
    },
];

#[cfg(test)]
mod tests {
    use super::super::spec::WorkloadSpec;
    use super::*;

    #[test]
    fn presets_are_workloads() {
        for preset in presets() {
            let spec = WorkloadSpec::parse(preset.yaml);
            let spec = spec.unwrap_or_else(|error| panic!("{}: {error}", preset.name));
            let workload = super::super::generate(&spec, 1);
            assert_eq!(workload.requests.len(), spec.limit(), "{}", preset.name);
        }
    }
}
