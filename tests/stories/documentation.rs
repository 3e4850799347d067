//! Everything that the documentation shows works, and everything that it lists exists: commands,
//! configurations, options, links, and the reference tables, which are generated from the code's
//! own tables.

mod layers;
mod pages;
mod performance;
mod reference;
mod simulation;
mod steps;

use std::collections::BTreeSet;

use penstock::observe::metrics::metric_rows;
use penstock_api::ERROR_CODES;
use penstock_config::{Strategy, json_schema, known_variables};
use penstock_scoring::SCORERS;
use serde_json::Value;

use crate::support::collect_keys;
use crate::support::command::{file, run, run_with};
use crate::support::markdown::{anchors, blocks, calls, links, spans};
use crate::support::penstock::Penstock;
use pages::{Page, block, page, pages, root};

fn succeed(arguments: &[&str], input: &str) -> String {
    let ran = run_with(arguments, input.as_bytes(), &[]);
    assert_eq!(ran.code, Some(0), "{arguments:?}: {}", ran.stderr);
    ran.stdout
}

/// Everything in backticks on any page.
fn documented() -> BTreeSet<String> {
    let found = |page: &Page| spans(&page.prose()).into_iter().map(str::to_owned).collect();
    pages().iter().flat_map(|page| -> Vec<String> { found(page) }).collect()
}

#[test]
fn readme_fits_one_screen() {
    let lines = page("README.md").text.lines().count();
    assert!(lines <= 150, "README.md has {lines} lines");
}

#[test]
fn quick_start_is_exactly_two_commands() {
    let text = page("README.md").text;
    let (_, section) = text.split_once("## Quick start\n").unwrap();
    let (section, _) = section.split_once("\n## ").unwrap();
    let commands: Vec<String> = blocks(section).into_iter().map(|block| block.text).collect();
    assert_eq!(commands, ["cargo run --release -- demo\ncargo test\n"]);
    let first = blocks(&text).into_iter().find(|block| block.language == "sh").unwrap();
    assert_eq!(first.text, commands[0], "the first commands of the README are the quick start");
}

#[test]
fn reference_tables_match_the_code() {
    let mut generated = BTreeSet::new();
    let mut outdated = Vec::new();
    for page in pages() {
        let (current, names) = reference::fill(&page.text);
        generated.extend(names);
        if current == page.text {
            continue;
        }
        if std::env::var_os("PENSTOCK_BLESS").is_some() {
            std::fs::write(root().join(&page.name), current).unwrap();
        } else {
            outdated.push(page.name);
        }
    }
    let expected: BTreeSet<String> =
        reference::TABLES.iter().map(|table| table.0.to_owned()).collect();
    assert_eq!(generated, expected, "each table has a place on some page");
    assert!(
        outdated.is_empty(),
        "{outdated:?} out of date. Run: PENSTOCK_BLESS=1 cargo test --test stories -- documentation"
    );
}

#[test]
fn architecture_diagram_matches_the_import_table() {
    layers::hold();
}

#[test]
fn strategies_and_scorer_parameters_are_documented() {
    let text = page("docs/routing/strategies.md").text;
    for strategy in Strategy::ALL {
        let row = format!("| `{}`", strategy.name());
        assert!(text.contains(&row), "strategies.md has no row for {}", strategy.name());
    }
    let prose = page("docs/routing/weighted.md").prose();
    let (_, parameters) = prose.split_once("| parameter | default |").unwrap();
    let described: BTreeSet<&str> = spans(parameters).into_iter().collect();
    for name in SCORERS.iter().flat_map(|row| row.params) {
        assert!(described.contains(name), "weighted.md gives no default for `{name}`");
    }
}

#[test]
fn every_command_line_is_understood() {
    let mut found = 0;
    for page in pages() {
        let code = blocks(&page.text).into_iter().filter(|block| block.language == "sh");
        let in_code = code.flat_map(|block| block.text.lines().flat_map(calls).collect::<Vec<_>>());
        let prose = page.prose();
        let in_prose = spans(&prose).into_iter().flat_map(calls);
        for call in in_code.chain(in_prose).filter(|call| !call.contains(&"…".to_owned())) {
            found += 1;
            // Help is printed only when everything before it was understood.
            let arguments: Vec<&str> =
                call.iter().map(String::as_str).chain(std::iter::once("--help")).collect();
            let ran = run(&arguments);
            assert_eq!(ran.code, Some(0), "{}: {arguments:?}: {}", page.name, ran.stderr);
        }
    }
    assert!(found > 30, "{found} command lines");
    assert_eq!(run(["serve", "--nonsense", "--help"]).code, Some(2));
    let schema: Value = serde_json::from_str(&succeed(&["config", "schema"], "")).unwrap();
    assert_eq!(schema, json_schema());
    assert!(succeed(&["completions", "bash"], "").contains("penstock"));
}

/// Endpoints, files and benches in shell blocks. Other programs are not ours to run.
#[test]
fn every_shell_block_uses_what_exists() {
    let penstock = Penstock::start("backends: [{ name: fast, url: http://127.0.0.1:9 }]");
    let endpoints = penstock.admin("/").text();
    let serves = |path: &str| {
        let path = path.split('?').next().unwrap().replace("/fast/", "/{name}/");
        let path = path.replace("/key_…", "/{name}").replace("/4f1c…", "/{name}");
        endpoints.lines().filter_map(|line| line.split_whitespace().nth(1)).any(|one| one == path)
    };
    let manifest = page("Cargo.toml").text;
    let mut found = 0;
    for page in pages() {
        let code = blocks(&page.text).into_iter().filter(|block| block.language == "sh");
        for line in code.flat_map(|block| block.text.lines().map(str::to_owned).collect::<Vec<_>>())
        {
            let words: Vec<&str> = line.split_whitespace().map(|w| w.trim_matches('\'')).collect();
            for (index, word) in words.iter().enumerate() {
                let admin_path = word.strip_prefix("http://127.0.0.1:9090").unwrap_or_default();
                let is_path = ["packaging/", "systemd/", "tests/", "benches/", "conf/"]
                    .iter()
                    .any(|folder| word.starts_with(folder));
                let is_bench = index > 0 && words[index - 1] == "--bench";
                found += usize::from(!admin_path.is_empty() || is_path || is_bench);
                let exists = (admin_path.is_empty() || serves(admin_path))
                    && (!is_path || root().join(word).exists())
                    && (!is_bench || manifest.contains(&format!("name = \"{word}\"")));
                assert!(exists, "{}: {word} in: {line}", page.name);
            }
        }
    }
    assert!(found > 12, "{found} endpoints, files and benches");
}

#[test]
fn every_configuration_passes_check() {
    let mut found = 0;
    for page in pages() {
        for block in blocks(&page.text).iter().filter(|block| block.language == "yaml") {
            found += 1;
            if block.text.contains("\nstreams:") {
                let path = file("workload.yaml", &block.text);
                succeed(&["simulate", path.to_str().unwrap(), "--part", "0.01"], "");
                continue;
            }
            let path = file("documented.yaml", &block.text);
            let ran = run(["check", "--config", path.to_str().unwrap()]);
            let shown = format!("{}: {}\n{}", page.name, ran.stderr, block.text);
            assert!(ran.code == Some(0) && ran.stderr.is_empty(), "no fault, no warning: {shown}");
        }
    }
    assert!(found >= 8, "{found} configurations");
    let first = blocks(&page("README.md").text).into_iter().find(|one| one.language == "yaml");
    assert!(first.unwrap().text.lines().count() <= 4, "the first configuration is the smallest");
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

/// Returns whether it is lower case with `_` in it.
fn is_name(span: &str) -> bool {
    span.contains('_') && span.chars().all(|c| c.is_ascii_lowercase() || c == '_')
}

#[test]
fn every_option_and_name_exists() {
    let mut known: BTreeSet<String> = BTreeSet::new();
    collect_options(&json_schema(), "", &mut known);
    let sections: BTreeSet<String> =
        known.iter().filter_map(|path| path.split(['.', '[']).next().map(str::to_owned)).collect();
    known.extend(ERROR_CODES.iter().map(|row| row.name.to_owned()));
    known.extend(metric_rows().map(|row| row.name.to_owned()));
    let sources = pages::sources();
    let variables: BTreeSet<String> =
        known_variables().into_iter().chain(["PENSTOCK_CONFIG".to_owned()]).collect();
    let mut options = 0;
    // Decisions and the changelog may name what is gone, worked examples what they add.
    let others = ["docs/decisions/", "docs/contributing/", "CHANGELOG.md"];
    let current = |page: &Page| !others.iter().any(|other| page.name.starts_with(other));
    for page in pages().into_iter().filter(current) {
        let prose = page.own_prose();
        for span in spans(&prose) {
            let name = span.split(": ").next().unwrap();
            let is_path = name.contains('.')
                && name.chars().all(|c| c.is_ascii_lowercase() || "._[]*".contains(c))
                && sections.contains(name.split(['.', '[']).next().unwrap());
            if is_path {
                options += 1;
                assert!(known.contains(name), "{}: no option `{name}`", page.name);
            }
            if span.starts_with("PENSTOCK_") {
                let is_known = variables.contains(span) || span == "PENSTOCK_A_B";
                let is_setting = span.contains('=');
                assert!(is_known || is_setting, "{}: no variable `{span}`", page.name);
            }
            let exists = !is_name(span) || known.contains(span) || sources.contains(span);
            assert!(exists, "{}: nothing is called `{span}`", page.name);
        }
    }
    assert!(options > 100, "{options} options are named");
}

#[test]
fn every_named_file_exists() {
    let folders = [
        ".ci/",
        "benches/",
        "conf/",
        "crates/",
        "docs/",
        "fuzz/",
        "packaging/",
        "src/",
        "systemd/",
        "tests/",
        "vendor/",
    ];
    // Worked examples also name what they add.
    let pages = pages().into_iter().filter(|page| !page.name.starts_with("docs/contributing/add-"));
    for page in pages {
        let prose = page.prose();
        for span in spans(&prose) {
            let is_path = folders.iter().any(|folder| span.starts_with(folder))
                && span.chars().all(|c| c.is_ascii_alphanumeric() || "./_-".contains(c));
            assert!(!is_path || root().join(span).exists(), "{}: no file `{span}`", page.name);
        }
    }
}

#[test]
fn every_page_is_packaged() {
    let manifest = page("Cargo.toml").text;
    for page in pages().iter().filter(|page| page.name.starts_with("docs/")) {
        let folder = page.name.rsplit_once('/').map_or("", |(folder, _)| folder);
        let is_packaged = manifest.contains(&format!("[\"{folder}/*.md\", "));
        assert!(is_packaged, "Cargo.toml: the Debian package lacks {}", page.name);
    }
}

const EXAMPLE: &str = "conf/examples/mixed-fleet-vision.yaml";

#[test]
fn explain_prints_what_the_docs_show() {
    let request = file("request.json", block("json", "{\"model\""));
    let printed = succeed(&["explain", request.to_str().unwrap(), "--config", EXAMPLE], "");
    assert_eq!(printed, block("text", "model       "));
}

#[test]
fn explain_output_keys_are_documented() {
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
    let documented = documented();
    let mut keys = BTreeSet::new();
    responses.iter().for_each(|response| collect_keys(response, &mut keys));
    let penstock =
        Penstock::start("backends: [{ name: one, url: http://127.0.0.1:9, models: [] }]");
    keys.extend(penstock.backend("one").as_object().unwrap().keys().cloned());
    let missing: Vec<_> = keys.iter().filter(|key| !documented.contains(*key)).collect();
    assert!(missing.is_empty(), "no page explains {missing:?}");
}

#[test]
fn score_prints_what_the_docs_show() {
    let printed = succeed(&["score"], &block("json", "{\"scorers\""));
    let shown: Value = serde_json::from_str(&block("json", "{\"scores\"")).unwrap();
    assert_eq!(serde_json::from_str::<Value>(&printed).unwrap(), shown);
}

#[test]
fn service_starts_what_the_docs_install() {
    let unit = std::fs::read_to_string(root().join("systemd/penstock.service")).unwrap();
    let install = block("sh", "cargo build --profile dist\nsudo");
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
            assert!(install.contains(path), "systemd.md does not install {path}");
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

#[test]
fn links_resolve() {
    for page in pages() {
        let path = root().join(&page.name);
        let prose = page.prose();
        for target in links(&prose).into_iter().filter(|target| !target.contains("://")) {
            let (to, anchor) =
                target.split_once('#').map_or((target, None), |(to, anchor)| (to, Some(anchor)));
            let file = if to.is_empty() { path.clone() } else { path.parent().unwrap().join(to) };
            assert!(file.exists(), "{}: no file {target}", page.name);
            let file = file.canonicalize().unwrap();
            // The book and the Debian package hold `docs` alone.
            let stays = !page.name.starts_with("docs/")
                || file.starts_with(root().join("docs").canonicalize().unwrap());
            assert!(stays, "{}: {target} leads out of docs", page.name);
            if let Some(anchor) = anchor {
                let other = std::fs::read_to_string(file).unwrap();
                assert!(anchors(&other).contains(anchor), "{}: no heading {target}", page.name);
            }
        }
    }
}

#[test]
fn every_page_is_in_the_table_of_contents() {
    let summary = page("docs/SUMMARY.md").text;
    let listed: BTreeSet<String> =
        links(&summary).into_iter().map(|link| format!("docs/{link}")).collect();
    let found: BTreeSet<String> = pages()
        .into_iter()
        .map(|page| page.name)
        .filter(|name| name.starts_with("docs/") && name != "docs/SUMMARY.md")
        .collect();
    assert_eq!(listed, found);
}

#[test]
fn default_authorization_is_as_documented() {
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
