//! A client that wants a better response requests `moe-MODEL`: three drafts and three critiques on
//! all available backends become one response. Failed parts are left out, and all of it is counted.

use std::collections::BTreeSet;
use std::path::PathBuf;

use penstock_mock::{Fault, Gate, MockEngine, Received};
use serde_json::{Value, json};

use crate::support::client::{self, Response, chat, streaming_chat};
use crate::support::command::run;
use crate::support::fleet::{CHAT, FAULTS_FORGOTTEN, Fleet, Leave, SOON, Setup};
use crate::support::penstock::scratch;
use crate::support::{block_on, eventually};

const ON: &str = "ensembles: { enabled: true }";
const REVIEW: &str = "Review its response";
const LAST: &str = "Write the best possible response";

fn fleet(count: usize, sections: &str) -> Fleet {
    let routing = "retry_unanswered: never";
    Fleet::start(count, Setup { sections, routing, health: FAULTS_FORGOTTEN, ..Setup::default() })
}

fn ensemble(fleet: &Fleet) -> Response {
    fleet.penstock.post(CHAT, &chat("moe-m", "why is the sky blue?"))
}

fn parts(response: &Response) -> String {
    let parts = response.header("x-penstock-ensemble").unwrap_or_default();
    parts.split(";input").next().unwrap().to_owned()
}

fn body(received: &Received) -> Value {
    serde_json::from_slice(received.body.as_ref().unwrap()).unwrap()
}

/// Returns the requests that an engine received: drafts, critiques and final requests.
fn calls(engine: &MockEngine) -> [Vec<Value>; 3] {
    let mut sorted = [Vec::new(), Vec::new(), Vec::new()];
    for received in engine.received() {
        let body = body(&received);
        let text = body.to_string();
        let stage = usize::from(text.contains(REVIEW)) + 2 * usize::from(text.contains(LAST));
        sorted[stage].push(body);
    }
    sorted
}

fn folder(name: &str) -> PathBuf {
    let folder = scratch(name);
    std::fs::create_dir_all(&folder).unwrap();
    folder
}

fn text_of(body: &Value) -> &str {
    body["messages"][0]["content"].as_str().unwrap()
}

#[test]
fn calls_go_to_distinct_backends_and_become_one_response() {
    let fleet = fleet(3, ON);
    let response = ensemble(&fleet);
    assert_eq!(response.status, 200, "{}", response.text());
    assert_eq!(parts(&response), "drafts=3;critiques=3");
    for (engine, finals) in fleet.engines.iter().zip([1, 0, 0]) {
        let [drafts, critiques, last] = calls(engine);
        let name = &engine.spec().name;
        assert_eq!((drafts.len(), critiques.len(), last.len()), (1, 1, finals), "{name}");
        let draft = &drafts[0];
        assert_eq!((&draft["model"], &draft["stream"]), (&json!("m"), &json!(false)), "{name}");
        assert_eq!(draft["temperature"], 1, "{name}");
        assert_eq!(text_of(draft), "why is the sky blue?", "{name}");
    }
    let texts: Vec<String> = fleet
        .engines
        .iter()
        .map(|engine| {
            let draft = &calls(engine)[0][0];
            let direct = client::post(engine.addr(), CHAT, draft).json();
            direct["choices"][0]["message"]["content"].as_str().unwrap().to_owned()
        })
        .collect();
    assert_eq!(texts.iter().collect::<BTreeSet<_>>().len(), 3, "{texts:?}");
    let last = calls(fleet.a())[2][0].clone();
    let prompt = text_of(&last);
    for (number, (engine, text)) in (1..).zip(fleet.engines.iter().zip(&texts)) {
        let critique = &calls(engine)[1][0];
        let words = text_of(critique);
        assert_eq!(critique["max_tokens"], 1024, "{words}");
        assert!(words.contains("why is the sky blue?") && words.contains(text), "{words}");
        assert!(words.contains(&format!("number=\"{number}\"")), "{words}");
        let block =
            format!("<candidate_{number}>\n{text}\n</candidate_{number}>\n<review_{number}>");
        assert!(prompt.contains(&block), "{block}: {prompt}");
    }
    assert!(!prompt.contains("choices"), "texts, not responses: {prompt}");
    let direct = client::post(fleet.a().addr(), CHAT, &last).json();
    assert_eq!(response.json()["choices"], direct["choices"], "that of the final call");
    fleet.wait_idle();
    fleet.wait_metric("penstock_ensembles_total{outcome=\"served\"}", 1.0);
    fleet.wait_metric("penstock_ensemble_calls_total{stage=\"draft\",outcome=\"ok\"}", 3.0);
    fleet.wait_metric("penstock_ensembles_in_flight", 0.0);
    fleet.wait_metric("penstock_held_body_bytes", 0.0);
}

#[test]
fn final_response_streams_in_every_dialect() {
    let messages = json!([{"role": "user", "content": "hello"}]);
    for operations in
        ["", ", operations: [chat, ollama_chat, ollama_generate, messages, responses]"]
    {
        let model = format!("{{ id: m{operations} }}");
        let setup = Setup { sections: ON, ..Setup::default() };
        let fleet = Fleet::of(&[&model, &model, &model], setup);
        for (path, field, value, end) in [
            (CHAT, "messages", &messages, "data: [DONE]"),
            ("/api/chat", "messages", &messages, "\"done\":true"),
            ("/api/generate", "prompt", &json!("hello"), "\"done\":true"),
            ("/v1/messages", "messages", &messages, "message_stop"),
            ("/v1/responses", "input", &json!("hello"), "response.completed"),
        ] {
            for stream in [true, false] {
                let request = |model: &str| {
                    let body =
                        json!({"model": model, "max_tokens": 64, "stream": stream, field: value});
                    fleet.penstock.post(path, &body)
                };
                let (plain, response) = (request("m"), request("moe-m"));
                let about = format!("{path} {operations} {stream}: {}", response.text());
                assert_eq!(response.status, 200, "{about}");
                assert_eq!(parts(&response), "drafts=3;critiques=3", "{about}");
                assert_eq!(
                    response.header("content-type"),
                    plain.header("content-type"),
                    "{about}"
                );
                if stream {
                    let end = end.replace(' ', "");
                    let text = response.text().replace(' ', "");
                    assert_eq!(
                        text.matches(&end).count(),
                        plain.text().replace(' ', "").matches(&end).count(),
                        "{about}"
                    );
                    assert!(text.contains(&end), "{about}");
                }
            }
        }
        let streamed = fleet.engines.iter().flat_map(|engine| engine.received());
        let streams = streamed.filter(|one| body(one)["stream"] == true).count();
        assert_eq!(streams, 10, "the five plain streams and the five final ones");
    }
}

#[test]
fn one_backend_makes_all_calls_even_one_at_a_time() {
    for backend in ["", "max_in_flight: 1"] {
        let setup = Setup { sections: ON, backend, ..Setup::default() };
        let fleet = Fleet::start(1, setup);
        let response = ensemble(&fleet);
        assert_eq!(response.status, 200, "{backend}: {}", response.text());
        assert_eq!(parts(&response), "drafts=3;critiques=3", "{backend}");
        assert_eq!(calls(fleet.a()).map(|calls| calls.len()), [3, 3, 1], "{backend}");
        fleet.wait_idle();
    }
}

#[test]
fn members_take_turns() {
    let sections = format!("{ON}\nmodels: {{ m: {{ ensemble: [m, m2] }} }}");
    let fleet = Fleet::of(&["m, m2"], Setup { sections: &sections, ..Setup::default() });
    assert_eq!(parts(&ensemble(&fleet)), "drafts=3;critiques=3");
    let models = calls(fleet.a()).map(|calls| {
        let mut models: Vec<String> =
            calls.iter().map(|call| call["model"].as_str().unwrap().to_owned()).collect();
        models.sort();
        models.join(" ")
    });
    assert_eq!(models, ["m m m2", "m m2 m2", "m"]);
}

#[test]
fn failed_calls_are_left_out() {
    let fleet = fleet(3, ON);
    fleet.b().always(Some(Fault::CloseAfterRequest));
    let response = ensemble(&fleet);
    assert_eq!((response.status, parts(&response).as_str()), (200, "drafts=2;critiques=1"));
    let prompt = calls(fleet.a())[2][0].to_string();
    assert!(prompt.contains("<candidate_2>") && !prompt.contains("<candidate_3>"), "{prompt}");
    fleet.wait_metric("penstock_ensemble_calls_total{stage=\"draft\",outcome=\"failed\"}", 1.0);
    fleet.c().always(Some(Fault::CloseAfterRequest));
    assert_eq!(parts(&ensemble(&fleet)), "drafts=1;critiques=1");
    for engine in [fleet.b(), fleet.c()] {
        engine.always(None);
    }
    for engine in &fleet.engines {
        engine.fail_on(REVIEW, Fault::CloseAfterRequest);
    }
    let response = ensemble(&fleet);
    assert_eq!((response.status, parts(&response).as_str()), (200, "drafts=3;critiques=0"));
}

#[test]
fn calls_are_retried_like_requests() {
    let fleet = fleet(3, ON);
    fleet.b().script([Fault::status_with_retry(503, "1")]);
    let response = ensemble(&fleet);
    assert_eq!((response.status, parts(&response).as_str()), (200, "drafts=3;critiques=3"));
    assert_eq!(fleet.requests(), 8, "seven, and one that was refused");
}

#[test]
fn error_of_the_last_draft_reaches_the_client() {
    let fleet = fleet(3, ON);
    for engine in &fleet.engines {
        engine.always(Some(Fault::status(400)));
    }
    let response = ensemble(&fleet);
    assert_eq!(response.status, 400);
    assert_eq!(response.json()["error"]["message"], "scripted", "as the engine sent it");
    assert_eq!(fleet.requests(), 3, "no critique without a draft");
    for engine in &fleet.engines {
        engine.always(Some(Fault::CloseAfterRequest));
    }
    let body = json!({"model": "moe-m", "messages": [{"role": "user", "content": "hello"}]});
    let response = fleet.penstock.post("/api/chat", &body);
    assert_eq!(response.status, 502);
    assert!(response.json()["error"].is_string(), "{}", response.text());
    let unknown = fleet.penstock.post(CHAT, &chat("moe-x", "hello"));
    assert_eq!((unknown.status, unknown.error_code().as_str()), (404, "model_not_found"));
    let unknown = fleet.penstock.post(CHAT, &chat("moe-moe-m", "hello"));
    assert_eq!(unknown.error_code(), "model_not_found", "an ensemble of ensembles");
    fleet.wait_metric("penstock_ensembles_total{outcome=\"failed\"}", 4.0);
    fleet.wait_idle();
}

#[test]
fn slow_draft_is_left_out() {
    let fleet = fleet(3, "ensembles: { enabled: true, stage_timeout: 3s }");
    fleet.b().script([Fault::HangBeforeHead]);
    let response = ensemble(&fleet);
    assert_eq!((response.status, parts(&response).as_str()), (200, "drafts=2;critiques=2"));
    fleet.wait_idle();
    assert_eq!(fleet.b().counters().cancelled, 1);
}

#[test]
fn disconnect_frees_every_engine() {
    for (stage, held) in [("why is the sky", [3, 3]), (REVIEW, [6, 3]), (LAST, [7, 1])] {
        for how in Leave::BOTH {
            let fleet = fleet(3, ON);
            for engine in &fleet.engines {
                engine.fail_on(stage, Fault::Gate(Gate::new()));
            }
            let open =
                || -> usize { fleet.engines.iter().map(|engine| engine.open_requests()).sum() };
            let client = fleet.begin(&streaming_chat("moe-m", "why is the sky blue?"));
            eventually("the calls are held", SOON, || [fleet.requests(), open()] == held);
            let left = how.now(client);
            eventually("the engines are free", SOON, || open() == 0);
            fleet.wait_idle();
            fleet.wait_metric("penstock_ensembles_total{outcome=\"cancelled\"}", 1.0);
            fleet.wait_metric("penstock_ensembles_in_flight", 0.0);
            assert_eq!(fleet.requests(), held[0], "{stage}: no call follows");
            drop(left);
        }
    }
}

#[test]
fn tokens_of_all_calls_are_counted() {
    let fleet = fleet(3, ON);
    let response = ensemble(&fleet);
    assert_eq!(response.status, 200);
    // Equal requests get equal responses: what each engine has counted.
    let mut expected = Vec::new();
    let (mut input, mut output) = (0, 0);
    for engine in &fleet.engines {
        let (mut own, all) = (0, engine.received());
        for received in all {
            let usage = client::post(engine.addr(), CHAT, &body(&received)).json()["usage"].clone();
            let count = |name: &str| usage[name].as_u64().unwrap();
            own += count("total_tokens");
            if !body(&received).to_string().contains(LAST) {
                input += count("prompt_tokens");
                output += count("completion_tokens");
            }
        }
        expected.push(own);
    }
    let shown = response.header("x-penstock-ensemble").unwrap();
    let sums = format!("drafts=3;critiques=3;input_tokens={input};output_tokens={output}");
    assert_eq!(shown, sums);
    let total: u64 = expected.iter().sum();
    let counts = || fleet.penstock.admin("/api/token_counts").json();
    eventually("all tokens are counted", SOON, || counts()["total_tokens"] == total);
    let breakdown = counts()["breakdown"].as_array().unwrap().clone();
    for (engine, own) in fleet.engines.iter().zip(expected) {
        let url = engine.url();
        let row = breakdown
            .iter()
            .find(|row| row["endpoint"].as_str().unwrap().contains(url.trim_end_matches('/')));
        assert_eq!(row.unwrap_or_else(|| panic!("{url}: {breakdown:?}"))["total_tokens"], own);
    }
}

#[test]
fn calls_are_spans_of_one_trace_with_a_decision_each() {
    let fleet = fleet(3, ON);
    let trace = "4bf92f3577b34da6a3ce929d0e0e4736";
    let parent = format!("00-{trace}-00f067aa0ba902b7-01");
    let headers = [("traceparent", parent.as_str()), ("x-request-id", "seven")];
    let bytes = chat("moe-m", "hello").to_string();
    let response = client::request(fleet.penstock.data, "POST", CHAT, &headers, bytes.as_bytes());
    assert_eq!(response.status, 200, "{}", response.text());
    let received: Vec<Received> =
        fleet.engines.iter().flat_map(|engine| engine.received()).collect();
    let spans: BTreeSet<String> = received
        .iter()
        .map(|one| {
            let parts: Vec<&str> = one.header("traceparent").unwrap().split('-').collect();
            assert_eq!(parts[1], trace);
            assert_eq!(one.header("x-request-id"), Some("seven"));
            parts[2].to_owned()
        })
        .collect();
    assert_eq!(spans.len(), 7, "{spans:?}");
    assert!(!spans.contains("00f067aa0ba902b7"));
    let decisions = fleet.penstock.admin("/decisions?n=7").json();
    let decisions = decisions["decisions"].as_array().unwrap();
    assert!(decisions.iter().all(|one| one["request_id"] == "seven"), "{decisions:?}");
    let calls: BTreeSet<&str> =
        decisions.iter().map(|one| one["ensemble"].as_str().unwrap()).collect();
    let expected =
        ["critique 1", "critique 2", "critique 3", "draft 1", "draft 2", "draft 3", "final"];
    assert_eq!(calls, BTreeSet::from(expected));
}

#[test]
fn ensembles_are_limited_in_all_and_by_key() {
    let all = "ensembles: { enabled: true, in_flight: 1 }";
    let keys = format!(
        "{ON}\nauth: {{ keys: [{{ name: one, key: sk-one, ensembles: 1 }}, \
         {{ name: none, key: sk-none, ensembles: 0 }}, {{ name: any, key: sk-any }}] }}"
    );
    for (sections, key, other) in [(all, "", ""), (&*keys, "sk-one", "sk-any")] {
        let fleet = fleet(1, sections);
        let gate = Gate::new();
        fleet.a().fail_on("wait here", Fault::Gate(gate.clone()));
        let credential = |key: &str| format!("Bearer {key}");
        let send = |key: &str, model: &str, text: &str| {
            let mut client = client::Client::connect(fleet.penstock.data);
            let credential = credential(key);
            let headers = [("content-type", "application/json"), ("authorization", &*credential)];
            client.send("POST", CHAT, &headers, chat(model, text).to_string().as_bytes());
            client
        };
        let mut first = send(key, "moe-m", "wait here");
        block_on(gate.reached_by(3));
        let refused = send(key, "moe-m", "hello").read_response().unwrap();
        assert_eq!((refused.status, &*refused.error_code()), (429, "too_many_ensembles"));
        assert_eq!(refused.header("retry-after"), Some("5"));
        let plain = send(key, "m", "hello").read_response().unwrap();
        assert_eq!(plain.status, 200, "only ensembles are limited");
        if !other.is_empty() {
            let others = send(other, "moe-m", "hello").read_response().unwrap();
            assert_eq!(others.status, 200, "another key");
            let never = send("sk-none", "moe-m", "hello").read_response().unwrap();
            assert_eq!((never.status, &*never.error_code()), (403, "model_not_allowed"));
        }
        gate.open();
        assert_eq!(first.read_response().unwrap().status, 200);
        fleet.wait_metric("penstock_ensembles_in_flight", 0.0);
        assert_eq!(send(key, "moe-m", "hello").read_response().unwrap().status, 200, "free again");
    }
}

#[test]
fn key_needs_the_right_to_use_the_model() {
    let sections = format!(
        "{ON}\nmodels: {{ m: {{ ensemble: [m, m2] }} }}\nauth: {{ keys: [\
         {{ name: one, key: sk-m, models: [m] }}, {{ name: two, key: sk-x, models: [x] }}] }}"
    );
    let fleet = Fleet::of(&["m, m2"], Setup { sections: &sections, ..Setup::default() });
    let post = |key: &str| {
        let credential = format!("Bearer {key}");
        let headers = [("content-type", "application/json"), ("authorization", &*credential)];
        let body = chat("moe-m", "hello").to_string();
        client::request(fleet.penstock.data, "POST", CHAT, &headers, body.as_bytes())
    };
    assert_eq!(parts(&post("sk-m")), "drafts=2;critiques=1", "without what m2 would make");
    let refused = post("sk-x");
    assert_eq!((refused.status, &*refused.error_code()), (403, "model_not_allowed"));
}

#[test]
fn ensembles_are_off_by_default() {
    let fleet = fleet(1, "");
    let response = ensemble(&fleet);
    assert_eq!((response.status, &*response.error_code()), (404, "model_not_found"));
    let body = json!({"model": "moe-m", "messages": [{"role": "user", "content": "hello"}]});
    let response = fleet.penstock.post("/api/chat", &body);
    assert_eq!(response.json()["error"], "model 'moe-m' not found");
    assert_eq!(fleet.requests(), 0);
}

#[test]
fn requests_that_cannot_be_ensembles_are_refused() {
    let fleet = fleet(1, ON);
    for (path, body, words) in [
        (CHAT, json!({"model": "moe-m", "messages": []}), "a message of the user"),
        ("/v1/embeddings", json!({"model": "moe-m", "input": "x"}), "/v1/chat/completions"),
        (
            "/v1/responses",
            json!({"model": "moe-m", "input": "x", "previous_response_id": "resp_1"}),
            "'previous_response_id'",
        ),
        ("/api/generate", json!({"model": "moe-m", "prompt": "x", "raw": true}), "'raw'"),
        ("/v1/messages", json!({"model": "moe-m", "max_tokens": 1, "messages": []}), "a message"),
    ] {
        let response = fleet.penstock.post(path, &body);
        assert_eq!(response.status, 400, "{path}: {}", response.text());
        assert!(response.text().contains(words), "{path}: {}", response.text());
    }
    assert_eq!(fleet.requests(), 0);
}

#[test]
fn prompts_come_from_files() {
    let folder = folder("prompts");
    std::fs::write(folder.join("c.txt"), "CRITIQUE {response} OF {query}").unwrap();
    std::fs::write(folder.join("f.txt"), "FINAL {candidates} OF {query}").unwrap();
    let sections = format!(
        "ensembles: {{ enabled: true, critique_prompt: {0}/c.txt, final_prompt: {0}/f.txt }}",
        folder.display()
    );
    let fleet = fleet(1, &sections);
    // Braces of a client are no placeholders.
    let body = chat("moe-m", "what is {response}?");
    assert_eq!(parts(&fleet.penstock.post(CHAT, &body)), "drafts=3;critiques=3");
    let texts: Vec<String> =
        fleet.a().received().iter().map(|one| text_of(&self::body(one)).to_owned()).collect();
    let critiques = texts.iter().filter(|text| text.starts_with("CRITIQUE "));
    assert!(critiques.clone().all(|text| text.ends_with("OF what is {response}?")), "{texts:?}");
    assert_eq!(critiques.count(), 3);
    let last = texts.last().unwrap();
    assert!(last.starts_with("FINAL <candidate_1>"), "{last}");
    // Another text in the same file counts after a reload.
    std::fs::write(folder.join("f.txt"), "OTHER {candidates} OF {query}").unwrap();
    let reload = fleet.penstock.reload();
    assert_eq!(reload.status, 200, "{}", reload.text());
    assert!(reload.text().contains("ensembles.final_prompt"), "{}", reload.text());
    assert_eq!(ensemble(&fleet).status, 200);
    let last = fleet.a().received().pop().unwrap();
    assert!(text_of(&self::body(&last)).starts_with("OTHER <candidate_1>"));
}

#[test]
fn bad_prompts_are_errors_of_the_configuration() {
    let folder = folder("bad-prompts");
    std::fs::write(folder.join("f.txt"), "{query}").unwrap();
    std::fs::write(folder.join("c.txt"), "{query} {response} {respond}").unwrap();
    let yaml = "ensembles: { critique_prompt: c.txt, final_prompt: f.txt }\nbackends: [http://a:1]";
    let path = folder.join("penstock.yaml");
    std::fs::write(&path, yaml).unwrap();
    let done = run(&["check", "--config", path.to_str().unwrap()]);
    assert_eq!(done.code, Some(2), "{}", done.stderr);
    for words in ["the prompt has no {candidates}", "{respond}, which nothing fills in"] {
        assert!(done.stderr.contains(words), "{}", done.stderr);
    }
}

#[test]
fn plan_and_price_are_shown_before_it_runs() {
    let sections = format!("{ON}\nmodels: {{ m: {{ price: {{ input: 1, output: 2 }} }} }}");
    let fleet = fleet(3, &sections);
    let sample = json!({"path": CHAT, "body": chat("moe-m", "hello").to_string()});
    let bytes = sample.to_string();
    let plan = client::request(fleet.penstock.admin, "POST", "/explain", &[], bytes.as_bytes());
    assert_eq!(plan.status, 200, "{}", plan.text());
    let plan = plan.json()["ensemble"].clone();
    let calls = plan["calls"].as_array().unwrap();
    let backends: Vec<&str> = calls.iter().map(|call| call["backend"].as_str().unwrap()).collect();
    assert_eq!(backends, ["a", "b", "c", "a", "b", "c", "a"], "{plan}");
    assert!(plan["price"].as_f64().unwrap() > 0.0, "{plan}");
    assert_eq!(fleet.requests(), 0);
    assert_eq!(ensemble(&fleet).status, 200);
    let made: usize = fleet.engines.iter().map(|engine| engine.counters().requests).sum();
    assert_eq!(made, calls.len(), "the calls that were planned");
}
