//! A small fleet, asked.

use std::path::Path;

use rand::SeedableRng;
use rand::rngs::SmallRng;
use serde_json::{Value, json};

use super::{Question, explain, render_text};
use crate::config::{Config, Environment};
use crate::fleet::Health;
use crate::routing::Generation;
use crate::routing::{Live, Peek};
use crate::units::Timestamp;

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

fn ask(generation: &Generation, question: &Question) -> Value {
    let fleet = generation.fleet.topology();
    let mut rng = SmallRng::seed_from_u64(1);
    let mut chance = Live { topology: &fleet, rng: &mut rng };
    explain(generation, &fleet, question, &mut chance, NOW)
}

fn chat(model: &str, more: &str) -> Question {
    let body = format!(
        r#"{{"model": "{model}", "messages": [{{"role": "user", "content": "hi"}}]{more}}}"#
    );
    Question::new(body.into_bytes())
}

#[test]
fn a_decision_names_backend_models_and_candidates() {
    let answer = ask(&generation(FLEET), &chat("gpt-4", r#", "tools": [], "stream": true"#));
    assert_eq!(
        answer["requirements"],
        json!({
            "model": "gpt-4", "estimated_tokens": 0, "needs_vision": false, "needs_tools": true,
            "needs_json_mode": false, "prefers_streaming": true,
        })
    );
    let decision = &answer["decision"];
    assert_eq!(decision["backend"], "b");
    assert_eq!(decision["model"], "llama3:70b", "the alias is resolved");
    assert_eq!(decision["upstream_model"], "llama3:70b");
    assert_eq!(decision["fallback"], false);
    assert_eq!(decision["assumed"], false);
    assert_eq!(decision["strategy"], "round_robin");
    assert_eq!(decision["candidates"].as_array().unwrap().len(), 1);
    assert!(answer.get("error").is_none());
}

#[test]
fn rotation_advances_only_where_the_chance_is_live() {
    let generation = generation(FLEET);
    let plain = chat("llama3:8b", "");
    let picked: Vec<Value> =
        (0..4).map(|_| ask(&generation, &plain)["decision"]["backend"].clone()).collect();
    assert_eq!(picked, ["a", "b", "a", "b"]);
    let fleet = generation.fleet.topology();
    for _ in 0..3 {
        let mut chance = Peek { topology: &fleet, rng: SmallRng::seed_from_u64(1) };
        let answer = explain(&generation, &fleet, &plain, &mut chance, NOW);
        assert_eq!(answer["decision"]["backend"], "a", "a dry run leaves the turn where it is");
        assert_eq!(answer["decision"]["upstream_model"], "meta/8b");
    }
}

#[test]
fn a_fallback_is_marked_and_its_exclusions_are_told() {
    let answer = ask(&generation(FLEET), &chat("gone", r#", "tools": []"#));
    let decision = &answer["decision"];
    assert_eq!((&decision["backend"], &decision["fallback"]), (&json!("b"), &json!(true)));
    let candidates = decision["candidates"].as_array().unwrap();
    assert_eq!(candidates[0]["excluded"], "capabilities");
    assert_eq!(candidates[0]["reason"], "lacks [tools]");
    let text = render_text(&answer);
    assert!(text.contains("    a  llama3:8b  left out (capabilities): lacks [tools]"), "{text}");
    assert!(text.contains("  * b  llama3:8b  priority 50, 0 in flight"), "{text}");
    assert!(text.ends_with("b with 'llama3:8b', by round_robin, as a fallback"), "{text}");
}

#[test]
fn whoever_is_due_first_is_named_so_where_all_rest() {
    let generation = generation(FLEET);
    let fleet = generation.fleet.topology();
    assert_eq!(ask(&generation, &chat("llama3:8b", ""))["decision"]["first_due"], false);
    for (backend, rest) in fleet.backends.iter().zip([5, 3]) {
        backend.state.cooldown.start(NOW.after(std::time::Duration::from_secs(rest)), 503);
    }
    let answer = ask(&generation, &chat("llama3:8b", ""));
    let decision = &answer["decision"];
    assert_eq!((&decision["backend"], &decision["first_due"]), (&json!("b"), &json!(true)));
    assert_eq!(decision["candidates"][1]["excluded"], "cooldown");
    assert!(render_text(&answer).contains("asked all the same, as the first one due"), "{answer}");
}

#[test]
fn a_refusal_keeps_the_requirements_once_the_body_was_read() {
    let generation = generation(FLEET);
    let image = r#"[{"type": "image_url", "image_url": {"url": "x"}}]"#;
    let body = format!(r#"{{"model": "llama3:8b", "messages": [{{"content": {image}}}]}}"#);
    let answer = ask(&generation, &Question::new(body.into_bytes()));
    assert_eq!(answer["requirements"]["needs_vision"], true);
    assert_eq!(answer["error"]["status"], 400);
    assert_eq!(answer["error"]["code"], "capability_mismatch");
    assert_eq!(answer["candidates"].as_array().unwrap().len(), 2);
    assert!(answer.get("decision").is_none());
    assert!(render_text(&answer).contains("refused     400 capability_mismatch: No backend"));

    let answer = ask(&generation, &chat("nobody", ""));
    assert_eq!(
        answer["error"],
        json!({
            "status": 404, "code": "model_not_found", "message": "Model 'nobody' not found",
        })
    );
    assert_eq!(answer["candidates"], json!([]));
    assert!(render_text(&answer).contains("candidates  none"));
}

#[test]
fn what_is_refused_before_a_decision_is_an_error_alone() {
    let generation = generation(FLEET);
    let question = |path: &str, body: &[u8], header: (&str, &str)| Question {
        path: path.to_owned(),
        body: body.to_owned(),
        headers: vec![(header.0.to_owned(), header.1.to_owned())],
    };
    let chat = "/v1/chat/completions";
    for (question, code, status) in [
        (question("/v1/chat", b"{}", ("a", "b")), "unknown_path", 404),
        (question("/v1/models", b"", ("a", "b")), "unknown_path", 404),
        (question(chat, b"{", ("a", "b")), "invalid_json", 400),
        (question(chat, b"{\"messages\": []}", ("a", "b")), "missing_model", 400),
        (question(chat, b"{}", ("Content-Encoding", "gzip")), "unsupported_encoding", 415),
        (question(chat, &[b' '; 4097], ("a", "b")), "body_too_large", 413),
    ] {
        let answer = ask(&generation, &question);
        assert_eq!(answer["error"]["code"], code, "{}: {answer}", question.path);
        assert_eq!(answer["error"]["status"], status);
        assert_eq!(answer.as_object().unwrap().len(), 1, "{answer}");
        assert!(render_text(&answer).starts_with(&format!("refused     {status} {code}: ")));
    }
}

#[test]
fn a_form_is_read_by_its_content_type() {
    let yaml = "backends: [{ name: w, url: http://w:1, models: [whisper] }]";
    let body = b"--x\r\nContent-Disposition: form-data; name=\"model\"\r\n\r\nwhisper\r\n--x--\r\n";
    let question = Question {
        path: "/v1/audio/transcriptions".to_owned(),
        body: body.to_vec(),
        headers: vec![("Content-Type".to_owned(), "multipart/form-data; boundary=x".to_owned())],
    };
    let answer = ask(&generation(yaml), &question);
    assert_eq!(answer["requirements"]["model"], "whisper");
    assert_eq!(answer["decision"]["backend"], "w");
}
