//! A user asks for a model by its name, through any call of the API, and the backend that serves
//! exactly that model responds; an unserved name is refused with that name.

use std::time::{Duration, Instant};

use penstock_api::{BodyFormat, OPERATIONS};
use penstock_mock::{EngineModel, MockEngine, MockSpec};
use serde_json::{Value, json};

use crate::support::client::{self, chat, request};
use crate::support::engines::{backend, engine, last_body, serving_all, shares};
use crate::support::fleet::SOON;
use crate::support::penstock::Penstock;
use crate::support::{block_on, eventually};

const CHAT: &str = "/v1/chat/completions";

#[test]
fn model_name_selects_its_backend() {
    let names = ["llama3:8b", "llama3", "meta-llama/Llama-3.1-8B-Instruct", "Modèle \"ü\" 漢"];
    let engines: Vec<MockEngine> =
        names.iter().enumerate().map(|(n, id)| engine(&format!("e{n}"), &[id])).collect();
    let items: String = engines
        .iter()
        .zip(names)
        .map(|(engine, id)| backend(engine, &format!("models: [{}]", json!(id))))
        .collect();
    let penstock = Penstock::start(&format!("backends:\n{items}"));
    for (engine, name) in engines.iter().zip(names) {
        assert_eq!(penstock.chat(name).status, 200, "{name}");
        assert_eq!(last_body(engine), chat(name, "hello").to_string().as_bytes(), "untouched");
        let escaped: String = name.encode_utf16().map(|unit| format!("\\u{unit:04x}")).collect();
        let body = format!("{{\"model\":\"{escaped}\",\"messages\":[]}}");
        let response = client::request(penstock.data, "POST", CHAT, &[], body.as_bytes());
        assert_eq!(response.status, 200, "{name} written with escapes: {}", response.text());
        assert_eq!(String::from_utf8(last_body(engine)).unwrap(), body, "untouched");
    }
    assert_eq!(shares(&engines.iter().collect::<Vec<_>>()), [2, 2, 2, 2]);
}

/// A request of each operation with a JSON body.
fn json_body(name: &str) -> Value {
    match name {
        "chat" => chat("m", "hello"),
        "completions" | "image_generations" => json!({"model": "m", "prompt": "hello"}),
        "embeddings" | "moderations" | "responses" => json!({"model": "m", "input": "hello"}),
        "messages" => {
            json!({"model": "m", "max_tokens": 9, "messages": [{"role": "user", "content": "hello"}]})
        }
        "rerank" => json!({"model": "m", "query": "q", "documents": ["a", "b"]}),
        "score" => json!({"model": "m", "text_1": "a", "text_2": "b"}),
        "speech" => json!({"model": "m", "input": "hello", "voice": "alloy"}),
        "count_tokens" | "apply_template" => {
            json!({"model": "m", "messages": [{"role": "user", "content": "hello"}]})
        }
        "classify" | "pooling" | "input_tokens" => json!({"model": "m", "input": "hello"}),
        "tokenize" | "native_embedding" => json!({"model": "m", "content": "hello"}),
        "detokenize" => json!({"model": "m", "tokens": [1, 2]}),
        "native_completion" | "fim" => json!({"model": "m", "prompt": "hello"}),
        "infill" => json!({"model": "m", "input_prefix": "hello", "input_suffix": "bye"}),
        "ollama_chat" => json!({"model": "m", "messages": [{"role": "user", "content": "hello"}]}),
        "ollama_generate" | "ollama_embeddings" => json!({"model": "m", "prompt": "hello"}),
        "ollama_embed" => json!({"model": "m", "input": "hello"}),
        other => panic!("{other} has no JSON body"),
    }
}

fn form(model: &str) -> Vec<u8> {
    let part = |head: &str, value: &[u8]| {
        [
            format!("--XyZ\r\nContent-Disposition: form-data; {head}\r\n\r\n").as_bytes(),
            value,
            b"\r\n",
        ]
        .concat()
    };
    let file =
        part("name=\"file\"; filename=\"a.wav\"\r\nContent-Type: audio/wav", b"RIFF\0\xff\r\n--no");
    let prompt = part("name=\"prompt\"", b"hello");
    [file, part("name=\"model\"", model.as_bytes()), prompt, b"--XyZ--\r\n".to_vec()].concat()
}

#[test]
fn every_operation_reaches_the_engine_unchanged() {
    let engine = engine("one", &["m", "renamed"]);
    let routing = "routing: { aliases: { alias: renamed } }\n";
    let models = format!("models: [{}, renamed]", serving_all("m"));
    let items = backend(&engine, &models);
    let penstock = Penstock::start(&format!("{routing}backends:\n{items}"));
    for row in OPERATIONS {
        let Some(path) = row.path() else { continue };
        let (kind, body) = match row.body {
            BodyFormat::Json => ("application/json", json_body(row.name).to_string().into_bytes()),
            BodyFormat::Multipart => ("multipart/form-data; boundary=XyZ", form("m")),
        };
        let path = format!("{path}?api-version=1&x=%2F");
        let headers = [("content-type", kind), ("x-custom", "kept")];
        let response = client::request(penstock.data, "POST", &path, &headers, &body);
        assert_eq!(response.status, 200, "{}: {}", row.name, response.text());
        let received = engine.received().pop().unwrap();
        assert_eq!(received.target, path, "the query is kept");
        assert_eq!(received.header("content-type"), Some(kind));
        assert_eq!(received.header("x-custom"), Some("kept"));
        assert_eq!(received.body.unwrap(), body, "{}", row.name);
        let direct = client::request(engine.addr(), "POST", &path, &headers, &body);
        assert_eq!(
            response.text(),
            direct.text(),
            "{}: the response is the engine's own",
            row.name
        );
    }
    let headers = [("content-type", "multipart/form-data; boundary=\"XyZ\"")];
    let path = "/v1/audio/transcriptions";
    let response = client::request(penstock.data, "POST", path, &headers, &form("alias"));
    assert_eq!(response.status, 200, "{}", response.text());
    assert_eq!(last_body(&engine), form("renamed"), "a form's model is replaced in place");
    assert!(engine.malformed().is_empty());
}

#[test]
fn base_path_is_prepended() {
    let engine = engine("one", &["m"]);
    let url = engine.url();
    let with_v1 = format!("backends: [{{ url: \"{url}/v1\", models: [m] }}]");
    assert_eq!(Penstock::start(&with_v1).chat("m").status, 200);
    assert_eq!(engine.received().pop().unwrap().target, CHAT, "a trailing /v1 is not doubled");
    let below = format!("backends: [{{ url: \"{url}/deep/er/\", models: [m] }}]");
    let penstock = Penstock::start(&below);
    penstock.chat("m");
    let paths: Vec<String> = engine.probes().into_iter().map(|probe| probe.target).collect();
    assert!(paths.contains(&"/deep/er/v1/models".to_owned()), "{paths:?}");
}

#[test]
fn upstream_id_replaces_the_model_value() {
    let engine = engine("one", &["org/real-\"name\""]);
    let items = backend(&engine, r#"models: [{ id: m, upstream_id: 'org/real-"name"' }]"#);
    let penstock = Penstock::start(&format!("backends:\n{items}"));
    let body = br#" {"messages":[{"role":"user","content":"m \"m\""}],"model": "m" ,"n":1.0}"#;
    let response = client::request(penstock.data, "POST", CHAT, &[], body);
    assert_eq!(response.status, 200, "{}", response.text());
    let expected =
        String::from_utf8_lossy(body).replace(r#""model": "m""#, r#""model": "org/real-\"name\"""#);
    assert_eq!(String::from_utf8(last_body(&engine)).unwrap(), expected);
}

#[test]
fn last_duplicate_model_key_wins() {
    let (first, last) = (engine("first", &["a"]), engine("last", &["b"]));
    let items = backend(&first, "models: [a]") + &backend(&last, "models: [b]");
    let penstock = Penstock::start(&format!("backends:\n{items}"));
    let body = br#"{"model":"a","messages":[],"model":"b"}"#;
    let response = client::request(penstock.data, "POST", CHAT, &[], body);
    assert_eq!(response.status, 200, "{}", response.text());
    assert_eq!(shares(&[&first, &last]), [0, 1]);
}

#[test]
fn unserved_model_is_a_404() {
    let engine = engine("one", &["m"]);
    let penstock = Penstock::start(&format!("backends:\n{}", backend(&engine, "models: [m]")));
    let response = penstock.chat("gpt-5");
    assert_eq!(response.status, 404);
    let error = &response.json()["error"];
    assert_eq!(error["message"], "Model 'gpt-5' not found");
    assert_eq!(error["code"], "model_not_found");
    assert_eq!(error["type"], "invalid_request_error");
    assert_eq!(error["param"], "model");
    assert_eq!(response.header("x-should-retry"), Some("false"));
    assert_eq!(response.header("content-type"), Some("application/json"));
    let body = json!({"model": "gpt-5", "max_tokens": 1, "messages": []});
    let response = penstock.post("/v1/messages", &body);
    assert_eq!(response.status, 404);
    let wanted = json!({
        "type": "error",
        "error": {"type": "not_found_error", "message": "Model 'gpt-5' not found"},
        "request_id": response.header("request-id"),
    });
    assert_eq!(response.json(), wanted);
    assert_eq!(engine.counters().requests, 0);
}

#[test]
fn similar_model_is_named_to_those_who_may_use_it() {
    let engine = engine("one", &["llama3:8b", "secret-model"]);
    let yaml = format!(
        "auth: {{ keys: [{{ name: all, key: sk-all }}, {{ name: few, key: sk-few, models: ['llama*', 'secrat*'] }}] }}\n\
         backends:\n{}",
        backend(&engine, "models: ['llama3:8b', secret-model]")
    );
    let penstock = Penstock::start(&yaml);
    let message = |key: &str, model: &str| {
        let authorization = format!("Bearer {key}");
        let body = json!({"model": model, "messages": []}).to_string();
        let headers =
            [("authorization", authorization.as_str()), ("content-type", "application/json")];
        let response = request(penstock.data, "POST", CHAT, &headers, body.as_bytes());
        assert_eq!(response.status, 404, "{}", response.text());
        response.json()["error"]["message"].as_str().unwrap().to_owned()
    };
    for name in ["llama3", "llama3:8", "lama3:8b"] {
        let wanted = format!("Model '{name}' not found; did you mean 'llama3:8b'?");
        assert_eq!(message("sk-all", name), wanted);
    }
    assert!(message("sk-all", "secrat-model").ends_with("did you mean 'secret-model'?"));
    assert_eq!(message("sk-few", "secrat-model"), "Model 'secrat-model' not found");
    let long = "x".repeat(100_000);
    assert!(message("sk-all", &long).len() < 3000, "bounded");
}

#[test]
fn no_healthy_backend_is_a_503() {
    let ill = engine("one", &["m"]);
    ill.set_health(500);
    let penstock = Penstock::start(&format!("backends:\n{}", backend(&ill, "models: [m]")));
    let response = penstock.chat("m");
    assert_eq!(response.status, 503);
    let error = &response.json()["error"];
    assert_eq!(error["message"], "No healthy backend available for model 'm'");
    assert_eq!(error["code"], "no_healthy_backend");
    assert_eq!(error["type"], "server_error");
    // By the interval of its checks.
    let wait = response.header("retry-after").and_then(|wait| wait.parse::<u64>().ok());
    assert!(wait.is_some_and(|wait| (1..=10).contains(&wait)), "{wait:?}");
    assert_eq!(response.header("x-should-retry"), Some("true"));
    let body = json!({"model": "m", "max_tokens": 1, "messages": []});
    let response = penstock.post("/v1/messages", &body);
    assert_eq!(
        (response.status, &response.json()["error"]["type"]),
        (503, &json!("overloaded_error"))
    );
    assert_eq!(ill.counters().requests, 0);
}

#[test]
fn model_list_includes_aliases() {
    let (one, two) = (engine("one", &["a/b:8b", "m"]), engine("two", &["m", "z"]));
    let yaml = format!(
        "routing: {{ aliases: {{ gpt-4: \"a/b:8b\", ghost: unserved }} }}\nbackends:\n{}{}",
        backend(
            &one,
            "models: [{ id: \"a/b:8b\", context_length: 4096, capabilities: [vision] }, m]"
        ),
        backend(&two, "models: [m, z]")
    );
    let penstock = Penstock::start(&yaml);
    let list = penstock.get("/v1/models");
    assert_eq!(list.status, 200);
    assert_eq!(list.json()["object"], "list");
    let data = list.json()["data"].as_array().unwrap().clone();
    let ids: Vec<&str> = data.iter().map(|model| model["id"].as_str().unwrap()).collect();
    assert_eq!(ids, ["a/b:8b", "gpt-4", "m", "z"], "each once, dead aliases left out");
    assert!(data.iter().all(|model| model["object"] == "model" && model["created"].is_u64()));
    for path in ["/v1/models/a/b:8b", "/v1/models/a%2Fb%3A8b"] {
        let model = penstock.get(path);
        assert_eq!((model.status, &model.json()["id"]), (200, &json!("a/b:8b")), "{path}");
        assert_eq!(model.json()["max_model_len"], 4096);
    }
    assert_eq!(penstock.get("/v1/models/gpt-4").json()["id"], "gpt-4");
    let missing = penstock.get("/v1/models/a/b");
    assert_eq!((missing.status, missing.error_code().as_str()), (404, "model_not_found"));
    assert_eq!(penstock.get("/v1/models/").status, 404);
    let health = penstock.get("/health");
    assert_eq!((health.status, &health.json()["status"]), (200, &json!("healthy")));
}

#[test]
fn anthropic_clients_list_models_in_their_shape() {
    let names: Vec<String> = (0..25).map(|number| format!("m{number:02}")).collect();
    let names: Vec<&str> = names.iter().map(String::as_str).collect();
    let engine = engine("one", &names);
    let yaml = format!(
        "routing: {{ aliases: {{ claude: m00 }} }}\nauth: {{ keys: [{{ name: t, key: key-of-team-t }}] }}\n\
         backends:\n{}",
        backend(&engine, "")
    );
    let penstock = Penstock::start(&yaml);
    let fields = [("anthropic-version", "2023-06-01"), ("x-api-key", "key-of-team-t")];
    let get = |path: &str| request(penstock.data, "GET", path, &fields, b"");
    let ids = |page: &Value| -> Vec<String> {
        let data = page["data"].as_array().unwrap().iter();
        data.map(|model| model["id"].as_str().unwrap().to_owned()).collect()
    };
    let first = get("/v1/models").json();
    assert_eq!(ids(&first).len(), 20, "Anthropic's default");
    assert_eq!((&first["first_id"], &first["last_id"]), (&json!("claude"), &json!("m18")));
    assert_eq!(first["has_more"], true);
    let model = &first["data"][0];
    assert_eq!((&model["type"], &model["display_name"]), (&json!("model"), &json!("claude")));
    let created = model["created_at"].as_str().unwrap();
    assert!(created.len() == 20 && created.ends_with('Z'), "RFC 3339: {created}");
    let rest = get("/v1/models?limit=1000&after_id=m18").json();
    assert_eq!((ids(&rest).len(), &rest["has_more"]), (6, &json!(false)));
    let before = get("/v1/models?limit=2&before_id=m18").json();
    assert_eq!(ids(&before), ["m16", "m17"]);
    assert_eq!(before["has_more"], true);
    let none = get("/v1/models?after_id=m24").json();
    assert_eq!((&none["data"], &none["first_id"]), (&json!([]), &Value::Null));
    assert_eq!(get("/v1/models/m03").json()["display_name"], "m03");
    for (path, status, kind) in [
        ("/v1/models/ghost", 404, "not_found_error"),
        ("/v1/models?limit=0", 400, "invalid_request_error"),
        ("/v1/models?after_id=ghost", 400, "invalid_request_error"),
    ] {
        let response = get(path);
        assert_eq!(response.status, status, "{path}");
        assert_eq!(response.json()["error"]["type"], kind, "{path}: Anthropic's shape");
        assert!(response.json()["request_id"].is_string());
    }
    let anonymous = request(penstock.data, "GET", "/v1/models", &fields[..1], b"");
    assert_eq!((anonymous.status, &anonymous.json()["type"]), (401, &json!("error")));
    let openai = request(penstock.data, "GET", "/v1/models", &fields[1..], b"").json();
    assert_eq!((&openai["object"], ids(&openai).len()), (&json!("list"), 26));
}

#[test]
fn creation_times_are_stable() {
    let engine = engine("one", &["m"]);
    let yaml = format!("backends:\n{}", backend(&engine, "models: [m]"));
    let penstock = Penstock::start(&yaml);
    let created = || penstock.get("/v1/models").json()["data"][0]["created"].as_u64().unwrap();
    let first = created();
    // It would differ after the turn of a second.
    let next_second = Instant::now() + Duration::from_millis(1100);
    eventually("a second has passed", SOON, || Instant::now() >= next_second);
    assert_eq!(created(), first);
    assert_eq!(penstock.reload().status, 200);
    assert_eq!(created(), first, "a reload changes nothing");
    assert_eq!(penstock.get("/v1/models/m").json()["created"], first);
}

#[test]
fn empty_fleet_lists_no_models() {
    let penstock = Penstock::start("backends: []");
    let response = penstock.chat("m");
    assert_eq!((response.status, response.error_code().as_str()), (404, "model_not_found"));
    assert_eq!(penstock.get("/v1/models").json()["data"], json!([]));
    let spec = MockSpec::new("one", [EngineModel::new("m")]);
    let without_models = block_on(MockEngine::start_local(spec)).unwrap();
    let penstock =
        Penstock::start(&format!("backends:\n{}", backend(&without_models, "models: []")));
    assert_eq!(penstock.chat("m").error_code(), "model_not_found", "known to serve none");
}
