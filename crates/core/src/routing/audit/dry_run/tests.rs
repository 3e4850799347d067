//! Dry runs over a small fleet.

use std::path::Path;

use penstock_api::units::Timestamp;
use penstock_config::{Config, Environment};
use rand::SeedableRng;
use rand::rngs::SmallRng;
use serde_json::{Value, json};

use super::{DryRun, DryRunReport, DryRunRequest, sorted_json};
use crate::fleet::{CooldownCause, CooldownScope, Health, PermitRequest, Topology};
use crate::routing::Generation;
use crate::routing::{Live, Peek};

const NOW: Timestamp = Timestamp(1_000_000);

const FLEET: &str = r#"
routing:
  strategy: round_robin
  aliases: { gpt-4: "llama3:70b" }
  fallbacks: { "gone": ["llama3:8b"] }
limits: { max_body_size: 4KiB }
backends:
  - name: a
    url: http://a:1
    models: [{ id: "llama3:8b", upstream_id: meta/8b, context_length: 64, capabilities: [] }]
  - name: b
    url: http://b:1
    models:
      - { id: "llama3:8b", context_length: 8192, capabilities: [tools] }
      - { id: "llama3:70b", capabilities: [vision, tools] }
"#;

fn generation(yaml: &str) -> Generation {
    let config = Config::parse(yaml, "test.yaml", Path::new(""), &Environment::default());
    let generation = Generation::new(config.unwrap());
    for backend in &generation.fleet.topology().backends {
        backend.state.health.set(Health::Healthy);
    }
    generation
}

fn dry_run<'a>(generation: &'a Generation, topology: &'a Topology) -> DryRun<'a> {
    let Generation { config, router, .. } = generation;
    let (stored, client) = (None, None);
    DryRun {
        config,
        router,
        topology,
        now: NOW,
        records_prompts: true,
        homes: None,
        stored,
        client,
    }
}

fn explain(generation: &Generation, sample: &DryRunRequest) -> Value {
    let fleet = generation.fleet.topology();
    let mut rng = SmallRng::seed_from_u64(1);
    let mut random = Live { topology: &fleet, rng: &mut rng };
    sorted_json(&dry_run(generation, &fleet).explain(sample, &mut random))
}

/// The text of a report that was read back from its JSON.
fn render_text(result: &Value) -> String {
    let report: DryRunReport = serde_json::from_str(&result.to_string()).unwrap();
    assert_eq!(sorted_json(&report), *result, "nothing is lost");
    report.to_string()
}

fn chat(model: &str, more: &str) -> DryRunRequest {
    let body = format!(
        r#"{{"model": "{model}", "messages": [{{"role": "user", "content": "hi"}}]{more}}}"#
    );
    DryRunRequest::new(body.into_bytes())
}

#[test]
fn decision_names_backend_models_and_candidates() {
    let result = explain(&generation(FLEET), &chat("gpt-4", r#", "tools": [], "stream": true"#));
    assert_eq!(
        result["requirements"],
        json!({
            "model": "gpt-4", "estimated_tokens": 0, "prompt_tokens": 0, "needs_vision": false, "needs_tools": true,
            "needs_json_mode": false, "prefers_streaming": true,
        })
    );
    let decision = &result["decision"];
    assert_eq!(decision["backend"], "b");
    assert_eq!(decision["model"], "llama3:70b", "the alias is resolved");
    assert_eq!(decision["upstream_model"], "llama3:70b");
    assert_eq!(decision["fallback"], false);
    assert_eq!(decision["assumed"], false);
    assert_eq!(decision["strategy"], "round_robin");
    assert_eq!(decision["candidates"].as_array().unwrap().len(), 1);
    assert!(result.get("error").is_none());
}

#[test]
fn rotation_advances_only_with_a_live_source() {
    let generation = generation(FLEET);
    let plain = chat("llama3:8b", "");
    let picked: Vec<Value> =
        (0..4).map(|_| explain(&generation, &plain)["decision"]["backend"].clone()).collect();
    assert_eq!(picked, ["a", "b", "a", "b"]);
    let fleet = generation.fleet.topology();
    for _ in 0..3 {
        let mut random = Peek { topology: &fleet, rng: SmallRng::seed_from_u64(1) };
        let result = sorted_json(&dry_run(&generation, &fleet).explain(&plain, &mut random));
        assert_eq!(result["decision"]["backend"], "a", "a dry run leaves the turn where it is");
        assert_eq!(result["decision"]["upstream_model"], "meta/8b");
    }
}

#[test]
fn fallback_is_marked_and_rejections_are_explained() {
    let result = explain(&generation(FLEET), &chat("gone", r#", "tools": []"#));
    let decision = &result["decision"];
    assert_eq!((&decision["backend"], &decision["fallback"]), (&json!("b"), &json!(true)));
    let candidates = decision["candidates"].as_array().unwrap();
    assert_eq!(candidates[0]["excluded"], "capabilities");
    assert_eq!(candidates[0]["reason"], "lacks [tools]");
    let text = render_text(&result);
    assert!(text.contains("    a  llama3:8b  rejected (capabilities): lacks [tools]"), "{text}");
    assert!(text.contains("  * b  llama3:8b  priority 50, 0 in flight"), "{text}");
    assert!(text.ends_with("b with 'llama3:8b', by round_robin, as a fallback"), "{text}");
}

#[test]
fn next_probe_is_named_while_all_are_in_cooldown() {
    let generation = generation(FLEET);
    let fleet = generation.fleet.topology();
    assert_eq!(explain(&generation, &chat("llama3:8b", ""))["decision"]["next_probe"], false);
    for (backend, cooldown) in fleet.backends.iter().zip([5, 3]) {
        backend.state.cooldowns.start(
            CooldownScope::BACKEND,
            NOW.after(std::time::Duration::from_secs(cooldown)),
            CooldownCause::of_status(503),
            NOW,
        );
    }
    let result = explain(&generation, &chat("llama3:8b", ""));
    let decision = &result["decision"];
    assert_eq!((&decision["backend"], &decision["next_probe"]), (&json!("b"), &json!(true)));
    assert_eq!(decision["candidates"][1]["excluded"], "cooldown");
    assert!(render_text(&result).contains("probed: first to leave cooldown"), "{result}");
}

#[test]
fn error_keeps_the_requirements_once_the_body_was_read() {
    let generation = generation(FLEET);
    let image = r#"[{"type": "image_url", "image_url": {"url": "x"}}]"#;
    let body = format!(r#"{{"model": "llama3:8b", "messages": [{{"content": {image}}}]}}"#);
    let result = explain(&generation, &DryRunRequest::new(body.into_bytes()));
    assert_eq!(result["requirements"]["needs_vision"], true);
    assert_eq!(result["error"]["status"], 400);
    assert_eq!(result["error"]["code"], "capability_mismatch");
    assert_eq!(result["candidates"].as_array().unwrap().len(), 2);
    assert!(result.get("decision").is_none());
    assert!(render_text(&result).contains("refused     400 capability_mismatch: No backend"));

    let result = explain(&generation, &chat("absent", ""));
    assert_eq!(
        result["error"],
        json!({
            "status": 404, "code": "model_not_found", "message": "Model 'absent' not found",
        })
    );
    assert_eq!(result["candidates"], json!([]));
    assert!(render_text(&result).contains("candidates  none"));
}

#[test]
fn request_that_would_wait_for_room_is_not_refused() {
    for (queue, start) in [
        (
            "{ size: 5, timeout: 2500ms }",
            "waits       in the queue, if that has room, for at most 2.5 s: Every",
        ),
        ("{}", "refused     503 all_backends_busy: Every"),
    ] {
        let yaml = format!(
            "queue: {queue}\nbackends: [{{ name: a, url: http://a:1, models: [m], max_in_flight: 1 }}]"
        );
        let generation = generation(&yaml);
        let topology = generation.fleet.topology();
        let row = &topology.models()[0].serving[0];
        let _permit = row.try_reserve(&PermitRequest::default()).unwrap();
        let result = explain(&generation, &chat("m", ""));
        assert!(render_text(&result).contains(start), "{}", render_text(&result));
        let missing = explain(&generation, &chat("absent", ""));
        assert!(missing["queue_timeout_ms"].is_null(), "it would wait in vain: {missing}");
    }
}

#[test]
fn error_before_the_decision_stands_alone() {
    let generation = generation(FLEET);
    let sample = |path: &str, body: &[u8], header: (&str, &str)| DryRunRequest {
        path: path.to_owned(),
        body: body.to_owned(),
        headers: vec![(header.0.to_owned(), header.1.to_owned())],
    };
    let chat = "/v1/chat/completions";
    for (sample, code, status) in [
        (sample("/v1/chat", b"{}", ("a", "b")), "unknown_path", 404),
        (sample("/v1/models", b"", ("a", "b")), "unknown_path", 404),
        (sample(chat, b"{", ("a", "b")), "invalid_json", 400),
        (sample(chat, b"{\"messages\": []}", ("a", "b")), "missing_model", 400),
        (sample(chat, b"{}", ("Content-Encoding", "compress")), "unsupported_encoding", 415),
        (sample(chat, &[b' '; 4097], ("a", "b")), "body_too_large", 413),
    ] {
        let result = explain(&generation, &sample);
        assert_eq!(result["error"]["code"], code, "{}: {result}", sample.path);
        assert_eq!(result["error"]["status"], status);
        assert_eq!(result.as_object().unwrap().len(), 1, "{result}");
        assert!(render_text(&result).starts_with(&format!("refused     {status} {code}: ")));
    }
}

#[test]
fn names_in_a_request_cannot_control_the_terminal() {
    let text =
        render_text(&explain(&generation(FLEET), &chat(r"a\u001b[31mred\u0007\nforged", "")));
    assert!(!text.contains(['\u{1b}', '\u{7}']) && !text.contains("\nforged"), "{text}");
    assert!(text.contains(r"a\u{1b}[31mred\u{7}\nforged"), "{text}");
    let text = render_text(&explain(&generation(FLEET), &chat(&"long".repeat(30_000), "")));
    assert!(text.len() < 4096, "{}", text.len());
}

#[test]
fn form_is_read_by_its_content_type() {
    let yaml = "backends: [{ name: w, url: http://w:1, models: [whisper] }]";
    let body = b"--x\r\nContent-Disposition: form-data; name=\"model\"\r\n\r\nwhisper\r\n--x--\r\n";
    let sample = DryRunRequest {
        path: "/v1/audio/transcriptions".to_owned(),
        body: body.to_vec(),
        headers: vec![("Content-Type".to_owned(), "multipart/form-data; boundary=x".to_owned())],
    };
    let result = explain(&generation(yaml), &sample);
    assert_eq!(result["requirements"]["model"], "whisper");
    assert_eq!(result["decision"]["backend"], "w");
}

#[test]
fn plan_of_an_ensemble_has_every_call_and_its_price() {
    let yaml = "ensembles: { enabled: true, critique_tokens: 7 }\n\
                models: { m: { price: { input: 1, output: 2 }, ensemble: [m, n] } }\n\
                backends:\n  - { name: a, url: http://a:1, models: [m] }\n\
                \x20 - { name: b, url: http://b:1, models: [m, n] }";
    let generation = generation(yaml);
    let result = explain(&generation, &chat("moe-m", r#", "max_tokens": 100, "stream": true"#));
    assert_eq!(result["requirements"]["model"], "moe-m");
    assert!(result["decision"]["backend"].is_string(), "{result}");
    let plan = &result["ensemble"];
    let calls = plan["calls"].as_array().unwrap();
    let of = |key: &str| -> Vec<&Value> { calls.iter().map(|call| &call[key]).collect() };
    assert_eq!(of("model"), ["m", "n", "m", "n", "m", "n", "m"], "{plan}");
    assert_eq!(of("output_tokens"), [100, 100, 100, 7, 7, 7, 100]);
    assert_eq!(calls[6]["backend"], result["decision"]["backend"]);
    assert!(calls.iter().all(|call| call["backend"].is_string()), "{plan}");
    assert_ne!(calls[0]["backend"], calls[1]["backend"], "on as many as there are");
    let input: Vec<u64> =
        of("input_tokens").iter().map(|tokens| tokens.as_u64().unwrap()).collect();
    let client = input[0];
    let critique = generation.config.ensembles.critique_prompt.length() as u64 / 4;
    let last = generation.config.ensembles.final_prompt.length() as u64 / 4;
    assert_eq!(input[3], client + critique + 100, "the query and the draft");
    assert_eq!(input[6], client + last + 3 * (100 + 7), "all drafts and critiques");
    assert_eq!(plan["input_tokens"], input.iter().sum::<u64>());
    assert_eq!(plan["output_tokens"], 4 * 100 + 3 * 7);
    let priced: u64 = input[0] + input[2] + input[4] + input[6];
    let price = (priced as f64 + 2.0 * (300.0 + 7.0)) / 1e6;
    assert!((plan["price"].as_f64().unwrap() - price).abs() < 1e-12, "n has no price: {plan}");
    assert!(calls[1].get("price").is_none());
    let text = render_text(&result);
    assert!(text.contains("ensemble    7 calls, about"), "{text}");
    assert!(text.contains("    critique 2  m  "), "{text}");
    let open = explain(&generation, &chat("moe-m", ""));
    assert_eq!(open["ensemble"]["calls"][0]["output_tokens"], 512, "assumed: nothing shows it");
    let embedding = DryRunRequest {
        path: "/v1/embeddings".to_owned(),
        ..DryRunRequest::new(br#"{"model": "moe-m", "input": "x"}"#.to_vec())
    };
    assert_eq!(explain(&generation, &embedding)["error"]["status"], 400);
}

#[test]
fn prediction_for_an_engine_of_which_nothing_is_learned_is_called_a_guess() {
    let yaml = FLEET.replace("strategy: round_robin", "strategy: round_robin\n  predict: true");
    let mut result = explain(&generation(&yaml), &chat("gpt-4", ""));
    let candidate = &mut result["decision"]["candidates"][0];
    assert_eq!(candidate["prediction"]["trusted"], false);
    candidate["prediction"]["trusted"] = true.into();
    let trusted: DryRunReport = serde_json::from_str(&result.to_string()).unwrap();
    assert!(!trusted.to_string().contains("a guess"));
    result["decision"]["candidates"][0]["prediction"]["trusted"] = false.into();
    assert!(render_text(&result).contains("ms per token, a guess: too little is learned\n"));
}

#[test]
fn settings_of_a_model_apply_in_any_spelling() {
    for written in ["m", "M", "m:latest"] {
        let generation = generation(&format!(
            "objectives: {{ fast: {{ priority: 5 }} }}
models: {{ \"{written}\": {{ objective: fast, context_shift: true, price: {{ input: 1, output: 1 }} }} }}
ensembles: {{ enabled: true }}
backends: [{{ name: a, url: \"http://a:1\", models: [{{ id: \"m:latest\", context_length: 300 }}] }}]"
        ));
        for asked in ["m", "M", "m:latest"] {
            let result = explain(&generation, &chat(asked, ""));
            assert_eq!(result["objectives"]["priority"], 5, "{written} for {asked}");
            let result = explain(&generation, &chat(&format!("moe-{asked}"), ""));
            assert!(!result["ensemble"]["calls"][0]["price"].is_null(), "{result}");
            let message = json!({ "role": "user", "content": "word ".repeat(100) });
            let body = json!({ "model": asked, "messages": vec![message; 8] }).to_string();
            let fleet = generation.fleet.topology();
            let mut rng = SmallRng::seed_from_u64(1);
            let mut random = Live { topology: &fleet, rng: &mut rng };
            let sample = DryRunRequest::new(body.into_bytes());
            let report = dry_run(&generation, &fleet).explain_with_shift(&sample, &mut random);
            assert!(report.context_shift.is_some(), "{written} for {asked}");
        }
    }
}
