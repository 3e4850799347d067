//! Requests with the structure of eight coding agents' and generated text, and their token counts
//! by real tokenizers.
//!
//! Each body was put into a chat template (ChatML with the definitions of tools as lines of JSON in
//! the system message, as Qwen's) and counted once with the vocabularies of [`VOCABULARIES`], from
//! the packages gpt-tokenizer 4.0.0, @lenml/tokenizers 3.7.2 and @anthropic-ai/tokenizer 0.0.4. The
//! counts are kept as numbers, so that no test needs a vocabulary.

use penstock_api::Operation;

use super::super::{RequestProfile, TokenEstimate};
use super::{scan_as, tokens};

const PUBLISHED: &str = include_str!("../../../../docs/routing/how-it-works.md");

const VOCABULARIES: [&str; 6] =
    ["o200k_base", "Qwen 3", "Llama 3.1", "DeepSeek V3", "Gemma 3", "Claude 2"];

struct Agent {
    name: &'static str,
    operation: Operation,
    body: &'static str,
    /// The token counts by each of the [`VOCABULARIES`].
    counts: [u32; VOCABULARIES.len()],
}

const AGENTS: [Agent; 8] = [
    Agent {
        name: "claude-code",
        operation: Operation::Messages,
        body: include_str!("agents/claude-code.json"),
        counts: [5826, 6002, 5823, 5973, 6439, 6111],
    },
    Agent {
        name: "codex",
        operation: Operation::Responses,
        body: include_str!("agents/codex.json"),
        counts: [4351, 4444, 4348, 4448, 4848, 4616],
    },
    Agent {
        name: "opencode",
        operation: Operation::Chat,
        body: include_str!("agents/opencode.json"),
        counts: [4152, 4264, 4156, 4241, 4542, 4343],
    },
    Agent {
        name: "qwen-code",
        operation: Operation::Chat,
        body: include_str!("agents/qwen-code.json"),
        counts: [5673, 5538, 5714, 5541, 5959, 6292],
    },
    Agent {
        name: "aider",
        operation: Operation::Chat,
        body: include_str!("agents/aider.json"),
        counts: [1199, 1211, 1190, 1240, 1384, 1342],
    },
    Agent {
        name: "continue-cn",
        operation: Operation::Chat,
        body: include_str!("agents/continue-cn.json"),
        counts: [2080, 2083, 2081, 2103, 2171, 2172],
    },
    Agent {
        name: "pi",
        operation: Operation::Chat,
        body: include_str!("agents/pi.json"),
        counts: [2597, 2672, 2589, 2648, 2961, 2783],
    },
    Agent {
        name: "gemini-cli",
        operation: Operation::Chat,
        body: include_str!("agents/gemini-cli.json"),
        counts: [4121, 4239, 4123, 4226, 4498, 4376],
    },
];

impl Agent {
    fn profile(&self) -> RequestProfile {
        scan_as(self.operation, self.body).unwrap()
    }

    /// Returns the errors of an estimate against each count, in percent.
    fn errors(&self, estimated: u32) -> [f64; VOCABULARIES.len()] {
        self.counts.map(|count| f64::from(estimated) * 100.0 / f64::from(count) - 100.0)
    }
}

#[test]
fn prompts_of_agents_are_within_a_quarter_of_every_count() {
    for agent in &AGENTS {
        let errors = agent.errors(agent.profile().prompt_tokens.0);
        for (vocabulary, error) in VOCABULARIES.iter().zip(errors) {
            assert!(error.abs() <= 25.0, "{} by {vocabulary}: {error:+.0} %", agent.name);
        }
    }
}

#[test]
fn layout_of_the_json_does_not_change_the_estimate() {
    for agent in &AGENTS {
        let value: serde_json::Value = serde_json::from_str(agent.body).unwrap();
        let spaced = serde_json::to_string_pretty(&value).unwrap();
        let escaped: String = spaced
            .chars()
            .map(|one| match one {
                '\0'..='\x7f' => one.to_string(),
                _ => one
                    .encode_utf16(&mut [0; 2])
                    .iter()
                    .map(|unit| format!("\\u{unit:04x}"))
                    .collect(),
            })
            .collect();
        let plain = agent.profile();
        for body in [spaced, escaped] {
            let other = scan_as(agent.operation, &body).unwrap();
            // Escapes move the parts of a long text that are measured.
            let (other, plain) = (other.prompt_tokens.0, plain.prompt_tokens.0);
            assert!(other.abs_diff(plain) * 20 <= plain, "{}: {other}, {plain}", agent.name);
        }
    }
}

#[test]
fn published_figures_of_agents_are_those_measured() {
    let mut missing = Vec::new();
    for agent in &AGENTS {
        let profile = agent.profile();
        let errors = agent.errors(profile.prompt_tokens.0);
        let least = errors.iter().copied().fold(f64::INFINITY, f64::min);
        let most = errors.iter().copied().fold(f64::NEG_INFINITY, f64::max);
        let (counted, estimated) =
            (agent.counts[0], tokens(agent.operation, TokenEstimate::Auto, agent.body));
        let line = format!(
            "| {} | {} | {estimated} | {} | {counted} | {least:+.0}..{most:+.0} % |",
            agent.name,
            agent.operation.name(),
            profile.prompt_tokens.0
        );
        missing.extend((!PUBLISHED.contains(&line)).then_some(line));
    }
    assert!(missing.is_empty(), "how-it-works.md lacks these rows:\n{}", missing.join("\n"));
}
