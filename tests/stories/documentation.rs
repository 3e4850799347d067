//! A new user copies from the README, and everything in it works: commands, configurations,
//! options, and the tables of errors, metrics and endpoints.

use std::collections::BTreeSet;
use std::path::Path;

use penstock::api::ERROR_CODES;
use penstock::config::{json_schema, known_variables};
use penstock::observe::metrics::metric_rows;
use penstock::scoring::SCORERS;
use serde_json::Value;

use crate::support::collect_keys;
use crate::support::command::{file, run, run_with};
use crate::support::markdown::{Block, anchors, blocks, calls, spans};
use crate::support::penstock::Penstock;

crate::trials![
    quick_start_is_exactly_two_commands,
    error_table_is_the_table_of_codes,
    metrics_table_is_the_table_of_metrics,
    endpoints_table_is_what_the_admin_port_lists,
    scorers_table_says_what_the_scorers_say,
    every_command_line_is_understood,
    every_configuration_passes_check,
    every_option_and_name_exists,
    explain_prints_what_the_readme_shows,
    explained_lines_have_the_documented_keys,
    scored_lines_are_what_the_readme_shows,
    service_starts_what_the_readme_installs,
    links_lead_somewhere,
    backends_get_the_authorization_the_table_says,
];

fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

fn readme() -> String {
    std::fs::read_to_string(root().join("README.md")).unwrap()
}

/// The one block in `language` whose text starts like this.
fn block(language: &str, start: &str) -> String {
    let all = blocks(&readme());
    let mut fitting =
        all.iter().filter(|one| one.language == language && one.text.starts_with(start));
    let found = fitting.next().unwrap_or_else(|| panic!("no {language} block starts {start}"));
    assert!(fitting.next().is_none(), "several {language} blocks start {start}");
    found.text.clone()
}

/// The text outside of code blocks.
fn prose() -> String {
    readme().split("\n```").step_by(2).collect()
}

fn between(markers: &str) -> String {
    let text = readme();
    let (_, behind) = text.split_once(&format!("<!-- {markers}:begin -->\n")).unwrap();
    let (found, _) = behind.split_once(&format!("<!-- {markers}:end -->")).unwrap();
    found.to_owned()
}

fn assert_table(markers: &str, expected: &str) {
    let found = between(markers);
    assert!(
        found == expected,
        "the README's table `{markers}` is out of date. It must be:\n\n{expected}\n"
    );
}

fn succeed(arguments: &[&str], input: &str) -> String {
    let ran = run_with(arguments, input.as_bytes(), &[]);
    assert_eq!(ran.code, Some(0), "{arguments:?}: {}", ran.stderr);
    ran.stdout
}

fn quick_start_is_exactly_two_commands() {
    let text = readme();
    let (_, section) = text.split_once("## Quick start\n").unwrap();
    let (section, _) = section.split_once("\n## ").unwrap();
    let commands: Vec<String> = blocks(section).into_iter().map(|block| block.text).collect();
    assert_eq!(commands, ["cargo run --release -- demo\ncargo test\n"]);
    let first = blocks(&text).into_iter().find(|block| block.language == "sh").unwrap();
    assert_eq!(first.text, commands[0], "the first commands of the README are the quick start");
}

fn error_table_is_the_table_of_codes() {
    let mut rows: Vec<_> = ERROR_CODES.iter().collect();
    rows.sort_by_key(|row| row.status);
    let mut expected = "| status | code | when |\n|---|---|---|\n".to_owned();
    for row in rows {
        expected.push_str(&format!("| {} | `{}` | {} |\n", row.status, row.name, row.when));
    }
    assert_table("errors", &expected);
}

fn metrics_table_is_the_table_of_metrics() {
    let mut expected = "| metric | kind | labels | what |\n|---|---|---|---|\n".to_owned();
    for row in metric_rows() {
        let labels: Vec<String> = row.labels.iter().map(|label| format!("`{label}`")).collect();
        let (name, kind, labels) = (row.name, row.kind.name(), labels.join(", "));
        expected.push_str(&format!("| `{name}` | {kind} | {labels} | {} |\n", row.meaning));
    }
    assert_table("metrics", &expected);
}

fn endpoints_table_is_what_the_admin_port_lists() {
    let penstock = Penstock::start("backends: []");
    let list = penstock.admin("/").text();
    let mut expected = "| endpoint | what |\n|---|---|\n".to_owned();
    for line in list.lines().filter(|line| line.starts_with("GET") || line.starts_with("POST")) {
        let mut words = line.splitn(2, ' ');
        let (verb, rest) = (words.next().unwrap(), words.next().unwrap().trim_start());
        let (path, about) = rest.split_once(' ').unwrap();
        expected.push_str(&format!("| {verb} `{path}` | {} |\n", about.trim_start()));
    }
    assert_table("endpoints", &expected);
}

fn scorers_table_says_what_the_scorers_say() {
    let text = readme();
    let (_, table) = text.split_once("| scorer | score | what is not known |").unwrap();
    let (table, _) = table.split_once("\n\n").unwrap();
    let lines: Vec<Vec<&str>> =
        table.lines().skip(2).map(|line| line.split('|').map(str::trim).collect()).collect();
    assert_eq!(lines.len(), SCORERS.len(), "{lines:?}");
    for row in SCORERS {
        let named = format!("`{}`", row.name);
        let line = lines.iter().find(|line| line[1] == named).unwrap_or_else(|| panic!("{named}"));
        assert_eq!((line[3], line[5]), (row.unknown, row.source), "{named}");
        for name in row.params {
            assert!(line[4].contains(&format!("`{name}` (")), "{named} has `{name}`: {line:?}");
        }
        assert_eq!(row.params.is_empty(), line[4].is_empty(), "{line:?}");
    }
}

fn every_command_line_is_understood() {
    let text = readme();
    let code = blocks(&text).into_iter().filter(|block| block.language == "sh");
    let in_code = code.flat_map(|block| block.text.lines().flat_map(calls).collect::<Vec<_>>());
    let prose = prose();
    let in_prose = spans(&prose).into_iter().flat_map(calls);
    let all: Vec<Vec<String>> = in_code.chain(in_prose).collect();
    assert!(all.len() > 12, "{all:?}");
    for call in all {
        // Help is printed only when everything before it was understood.
        let arguments: Vec<&str> =
            call.iter().map(String::as_str).chain(std::iter::once("--help")).collect();
        succeed(&arguments, "");
    }
    assert_eq!(run(["serve", "--nonsense", "--help"]).code, Some(2));
    let schema: Value = serde_json::from_str(&succeed(&["config", "schema"], "")).unwrap();
    assert_eq!(schema, json_schema());
    assert!(succeed(&["completions", "bash"], "").contains("penstock"));
}

fn every_configuration_passes_check() {
    let text = readme();
    let yaml: Vec<Block> =
        blocks(&text).into_iter().filter(|block| block.language == "yaml").collect();
    assert!(yaml[0].text.lines().count() <= 4, "the first configuration is the smallest");
    for block in &yaml {
        let path = file("readme.yaml", &block.text);
        let ran = run(["check", "--config", path.to_str().unwrap()]);
        assert_eq!(ran.code, Some(0), "{}\n{}", ran.stderr, block.text);
        assert_eq!(ran.stderr, "", "no warning either:\n{}", block.text);
    }
    for example in ["conf/penstock.yaml", "conf/examples/mixed-fleet-vision.yaml"] {
        succeed(&["check", "--config", example], "");
    }
}

/// Every path of an option in the schema, as `backends[].models[].id`, and every single key.
fn collect_options(schema: &Value, path: &str, found: &mut BTreeSet<String>) {
    for one in schema["anyOf"].as_array().into_iter().flatten() {
        collect_options(one, path, found);
    }
    for (key, inner) in schema["properties"].as_object().into_iter().flatten() {
        let path = if path.is_empty() { key.clone() } else { format!("{path}.{key}") };
        collect_options(inner, &path, found);
        found.insert(path);
        found.insert(key.clone());
    }
    if schema["items"].is_object() {
        collect_options(&schema["items"], &format!("{path}[]"), found);
    }
    if schema["additionalProperties"].is_object() {
        collect_options(&schema["additionalProperties"], &format!("{path}.*"), found);
    }
}

/// Names of requests, responses and dumps, which no table of ours lists.
const WIRE_NAMES: &[&str] = &[
    "answer_ms",
    "begun_s_ago",
    "expected_tokens",
    "hit_rate",
    "index_bytes",
    "lag_ms",
    "not_sampled",
    "prompt_tokens",
    "bytes_in",
    "bytes_out",
    "duration_ms",
    "model_asked",
    "tokens_cached",
    "tokens_estimated",
    "tokens_in",
    "tokens_out",
    "ttft_ms",
    "body_b64",
    "checked_s_ago",
    "seconds_ago",
    "empty_in_s",
    "adapters_running",
    "adapters_waiting",
    "age_s",
    "block_size",
    "kv_utilization",
    "max_adapters",
    "prefix_hits",
    "prefix_queries",
    "estimated_tokens",
    "first_token_ms",
    "gen_ai_",
    "in_flight",
    "latency_ms",
    "max_tokens",
    "needs_json_mode",
    "needs_tools",
    "needs_vision",
    "prefers_streaming",
    "request_filter",
    "requests_total",
    "cooldown_remaining_s",
    "resting_status",
    "upstream_model",
    "matched_blocks",
    "prompt_blocks",
    "telemetry_age_ms",
    // Captured decisions.
    "at_us",
    "block_tokens",
    "captures_for_s",
    "first_block",
    "first_due",
    "in_panic",
    "last_block",
    "left_out",
    "prefill_tokens",
    "request_id",
    "cooldown_remaining_ms",
    "tokens_in_flight",
    "tokens_to_fit",
    // Reasons why a candidate is left out, and states of a breaker.
    "breaker_open",
    "half_open",
];

fn every_option_and_name_exists() {
    let mut known: BTreeSet<String> = BTreeSet::new();
    collect_options(&json_schema(), "", &mut known);
    let sections: BTreeSet<String> =
        known.iter().filter_map(|path| path.split(['.', '[']).next().map(str::to_owned)).collect();
    let prose = prose();
    let mut options = 0;
    for span in spans(&prose) {
        let name = span.split(": ").next().unwrap();
        let is_path = name.contains('.')
            && name.chars().all(|c| c.is_ascii_lowercase() || "._[]".contains(c))
            && sections.contains(name.split(['.', '[']).next().unwrap());
        if is_path {
            options += 1;
            assert!(known.contains(name), "the README names the option `{name}`");
        }
    }
    assert!(options > 60, "the README names {options} options");
    known.extend(ERROR_CODES.iter().map(|row| row.name.to_owned()));
    known.extend(metric_rows().map(|row| row.name.to_owned()));
    known.extend(metric_rows().flat_map(|row| row.labels).map(|label| (*label).to_owned()));
    known.extend(["round_robin", "priority_only"].map(str::to_owned));
    known.extend(WIRE_NAMES.iter().map(|name| (*name).to_owned()));
    for span in spans(&prose) {
        let is_name =
            span.contains('_') && span.chars().all(|c| c.is_ascii_lowercase() || c == '_');
        assert!(!is_name || known.contains(span), "the README names `{span}`");
    }
    let variables: BTreeSet<String> =
        known_variables().into_iter().chain(["PENSTOCK_CONFIG".to_owned()]).collect();
    for span in spans(&prose).into_iter().filter(|span| span.starts_with("PENSTOCK_")) {
        assert!(variables.contains(span) || span == "PENSTOCK_A_B", "the README names `{span}`");
    }
}

const EXAMPLE: &str = "conf/examples/mixed-fleet-vision.yaml";

fn explain_prints_what_the_readme_shows() {
    let request = file("request.json", block("json", "{\"model\""));
    let printed = succeed(&["explain", request.to_str().unwrap(), "--config", EXAMPLE], "");
    assert_eq!(printed, block("text", "model       "));
}

fn explained_lines_have_the_documented_keys() {
    let requests = block("json", "{\"path\"");
    let fleet = file("fleet.json", block("json", "{\"backends\""));
    let fleet = fleet.to_str().unwrap();
    let arguments =
        ["explain", "--requests", "-", "--config", EXAMPLE, "--fleet", fleet, "--seed", "7"];
    let printed = succeed(&arguments, &requests);
    let responses: Vec<Value> =
        printed.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    assert_eq!(responses.len(), requests.lines().count(), "{printed}");
    assert_eq!(responses[0]["decision"]["backend"], "old-gpu", "its fleet says so: {printed}");
    assert_eq!(responses[1]["error"]["code"], "model_not_found", "{printed}");
    let prose = prose();
    let documented: BTreeSet<&str> = spans(&prose).into_iter().collect();
    for response in &responses {
        let mut keys = BTreeSet::new();
        collect_keys(response, &mut keys);
        for key in keys {
            assert!(documented.contains(key.as_str()), "the README does not explain `{key}`");
        }
    }
    let penstock =
        Penstock::start("backends: [{ name: one, url: http://127.0.0.1:9, models: [] }]");
    for key in penstock.backend("one").as_object().unwrap().keys() {
        assert!(documented.contains(key.as_str()), "the README does not explain `{key}` of /fleet");
    }
}

fn scored_lines_are_what_the_readme_shows() {
    let printed = succeed(&["score"], &block("json", "{\"scorers\""));
    let shown: Value = serde_json::from_str(&block("json", "{\"scores\"")).unwrap();
    assert_eq!(serde_json::from_str::<Value>(&printed).unwrap(), shown);
}

fn service_starts_what_the_readme_installs() {
    let unit = std::fs::read_to_string(root().join("systemd/penstock.service")).unwrap();
    let install = block("sh", "cargo build --profile dist");
    let mut starts = 0;
    let commands = unit.lines().filter_map(|line| line.strip_prefix("ExecStart"));
    for command in commands {
        let (_, command) = command.split_once('=').unwrap();
        for call in calls(command) {
            starts += 1;
            let arguments: Vec<&str> =
                call.iter().map(String::as_str).chain(std::iter::once("--help")).collect();
            succeed(&arguments, "");
        }
        for path in command.split_whitespace().filter(|word| word.starts_with('/')) {
            assert!(install.contains(path), "the README does not install {path}");
        }
    }
    assert_eq!(starts, 2, "it checks, then serves");
    for line in install.lines() {
        let words: Vec<&str> = line.split_whitespace().collect();
        let source = words.iter().rev().nth(1).copied().unwrap_or_default();
        if source.starts_with("systemd/") {
            assert!(root().join(source).is_file(), "{source}");
        }
    }
}

fn links_lead_somewhere() {
    for name in ["README.md", "CHANGELOG.md", "SECURITY.md", "docs/which-strategy.md"] {
        let page = root().join(name);
        let text = std::fs::read_to_string(&page).unwrap();
        let targets: Vec<&str> = text
            .split("](")
            .skip(1)
            .filter_map(|rest| rest.split_once(')').map(|(to, _)| to))
            .collect();
        assert!(!targets.is_empty(), "{name}");
        for target in targets.into_iter().filter(|target| !target.contains("://")) {
            let (path, anchor) =
                target.split_once('#').map_or((target, None), |(p, a)| (p, Some(a)));
            let file =
                if path.is_empty() { page.clone() } else { page.parent().unwrap().join(path) };
            assert!(file.exists(), "{name}: no file {target}");
            if let Some(anchor) = anchor {
                let other = std::fs::read_to_string(file).unwrap();
                assert!(anchors(&other).contains(anchor), "{name}: no heading for {target}");
            }
        }
    }
}

fn backends_get_the_authorization_the_table_says() {
    let keys = "auth: { keys: [{ name: a, key: sk-a }] }\n";
    let backend = "backends: [{ url: http://127.0.0.1:9";
    for (yaml, expected) in [
        (format!("{backend}, api_key: sk-b }}]"), "replace"),
        (format!("{keys}{backend}, api_key: sk-b }}]"), "replace"),
        (format!("{keys}{backend} }}]"), "strip"),
        (format!("{backend} }}]"), "pass"),
    ] {
        let path = file("authorization.yaml", &yaml);
        let dump = succeed(&["config", "dump", "--config", path.to_str().unwrap()], "");
        assert!(dump.contains(&format!("authorization: {expected}")), "{yaml}:\n{dump}");
    }
}
