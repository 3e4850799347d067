//! A user of LiteLLM's proxy takes the configuration and the command of the page about it: the
//! command makes the key that the page describes, and a key that a client has goes on by its hash.

use std::path::Path;

use penstock_mock::{EngineModel, Flavour, MockEngine, MockSpec};
use serde_json::{Value, json};

use super::key_store::SOON;
use crate::support::client::{Response, chat, request};
use crate::support::command::run;
use crate::support::engines::{engine, start};
use crate::support::fleet::CHAT;
use crate::support::markdown::{blocks, calls};
use crate::support::penstock::{Penstock, scratch};

const PAGE: &str = "docs/migration/litellm.md";

fn page() -> String {
    std::fs::read_to_string(Path::new(env!("CARGO_MANIFEST_DIR")).join(PAGE)).unwrap()
}

/// The configuration of the page, with the engines and files of this test.
fn converted(engines: [&MockEngine; 3], store: &Path, hash: &str) -> String {
    let all = blocks(&page());
    let yaml = all.into_iter().find(|block| block.language == "yaml").unwrap().text;
    let ledger = scratch("ledger.db").display().to_string();
    let urls = ["http://10.0.0.5:8000", "http://10.0.0.6:11434", "https://api.openai.com/v1"];
    let mut replaced = yaml.replace("keys.db", &store.display().to_string());
    replaced = replaced.replace("ledger.db", &ledger);
    for (engine, url) in engines.into_iter().zip(urls) {
        assert!(replaced.contains(url), "{url}");
        replaced = replaced.replace(url, &engine.url());
    }
    let line = replaced.lines().find(|line| line.contains("hash:")).unwrap().to_owned();
    // The hosted one is in another zone there, by its address.
    replaced = replaced.replace("priority: 90", "zone: cloud\n    priority: 90");
    replaced.replace(&line, &format!("      hash: \"{hash}\""))
}

fn send(penstock: &Penstock, key: &str, model: &str) -> Response {
    let key = format!("Bearer {key}");
    let headers = [("authorization", key.as_str()), ("content-type", "application/json")];
    request(penstock.data, "POST", CHAT, &headers, chat(model, "hello").to_string().as_bytes())
}

#[test]
fn converted_configuration_of_litellm_serves_its_keys() {
    let engines = [
        engine("gpu-a", &["meta-llama/Meta-Llama-3-70B-Instruct"]),
        start(MockSpec {
            flavour: Flavour::Ollama,
            ..MockSpec::new("gpu-b", [EngineModel::new("llama3:8b")])
        }),
        engine("openai", &["gpt-4o-mini"]),
    ];
    let store = scratch("keys.db");
    // SHA-256 of `sk-old-key`.
    let hash = "sha256:fdc6e23d2c60628166fda3ff8846daa0de3a7d74a2c789227ebd4361914b0e42";
    let [a, b, c] = &engines;
    let penstock = Penstock::start(&converted([a, b, c], &store, hash));
    let all = blocks(&page());
    let line = all.iter().find(|block| block.text.starts_with("penstock keys create")).unwrap();
    let mut arguments = calls(line.text.trim()).remove(0);
    arguments.extend(["--json".to_owned(), "--store".to_owned(), store.display().to_string()]);
    let made = run(&arguments);
    assert_eq!(made.code, Some(0), "{}", made.stderr);
    let made: Value = serde_json::from_str(&made.stdout).unwrap();
    assert_eq!((&made["name"], &made["team"]), (&json!("app"), &json!("product")));
    assert_eq!(made["models"], json!(["gpt-*", "llama*"]));
    assert_eq!(made["limits"], json!({"requests_per_minute": 300}));
    let new = made["key"].as_str().unwrap();
    crate::support::eventually("the new key", SOON, || send(&penstock, new, "gpt-4").status == 200);
    for key in [new, "sk-old-key"] {
        for model in ["gpt-4", "gpt-4o-mini", "llama3:70b", "llama3:8b"] {
            let response = send(&penstock, key, model);
            assert_eq!(response.status, 200, "{model}: {}", response.text());
            assert_eq!(response.header("x-ratelimit-limit-requests"), Some("300"), "{model}");
        }
        assert_eq!(send(&penstock, key, "mistral:7b").status, 403, "not among its models");
    }
    let rows = penstock.admin("/budgets").json()["budgets"].clone();
    let names: Vec<&str> =
        rows.as_array().unwrap().iter().map(|row| row["name"].as_str().unwrap()).collect();
    for name in ["all", "product", "app"] {
        assert!(names.contains(&name), "{name}: {rows}");
    }
    assert_eq!(send(&penstock, "sk-master", "gpt-4").status, 401, "there is no master key");
}
