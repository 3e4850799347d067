//! A user sends an image, tools, a wish for JSON or a long prompt, and only backends that can serve
//! it are used; without one, the error lists what is missing.

use penstock_api::Capabilities;
use penstock_mock::{Fault, MockEngine, MockSpec};
use serde_json::{Value, json};

use crate::support::client::chat;
use crate::support::engines::{backend, engine, model, shares, start};
use crate::support::penstock::Penstock;

const CHAT: &str = "/v1/chat/completions";
const IMAGE: &str = "data:image/png;base64,iVBORw0KGgo=";

/// One model on three backends that can do different things with it, worst priority first.
struct Fleet {
    plain: MockEngine,
    vision: MockEngine,
    tools: MockEngine,
    penstock: Penstock,
}

impl Fleet {
    fn start() -> Self {
        let tools_and_json = Capabilities::TOOLS.union(Capabilities::JSON_MODE);
        let one = |name, length, can| start(MockSpec::new(name, [model("m", length, can)]));
        let plain = one("plain", 16_000, Capabilities::NONE);
        let vision = one("vision", 1000, Capabilities::VISION);
        let tools = one("tools", 4096, tools_and_json);
        let yaml = format!(
            "backends:\n{}{}{}",
            backend(
                &plain,
                "priority: 30, models: [{ id: m, context_length: 16000, capabilities: [] }]"
            ),
            backend(
                &vision,
                "priority: 20, models: [{ id: m, context_length: 1000, capabilities: [vision] }]"
            ),
            backend(
                &tools,
                "priority: 10, models: [{ id: m, context_length: 4096, capabilities: [tools, json_mode] }]"
            )
        );
        Self { penstock: Penstock::start(&yaml), plain, vision, tools }
    }

    /// The backend that took a request, or the status.
    fn taker(&self, path: &str, body: &Value) -> Result<&'static str, (u16, String)> {
        let engines = [&self.plain, &self.vision, &self.tools];
        let before = shares(&engines);
        let response = self.penstock.post(path, body);
        let after = shares(&engines);
        let took: Vec<usize> = (0..3).filter(|index| after[*index] > before[*index]).collect();
        match (response.status, took.as_slice()) {
            (200, [index]) => Ok(["plain", "vision", "tools"][*index]),
            (status, []) => Err((status, response.text())),
            (status, took) => panic!("{status} from {took:?}: {}", response.text()),
        }
    }
}

fn with(mut body: Value, key: &str, value: Value) -> Value {
    body[key] = value;
    body
}

fn image_chat() -> Value {
    let parts = json!([
        {"type": "text", "text": "what is this?"},
        {"type": "image_url", "image_url": {"url": IMAGE}},
        {"type": "text", "text": "and that?"}
    ]);
    json!({"model": "m", "messages": [{"role": "system", "content": "x"}, {"role": "user", "content": parts}]})
}

fn tool() -> Value {
    json!({"type": "function", "function": {"name": "f", "parameters": {"type": "object"}}})
}

#[test]
fn each_capability_selects_a_backend_that_has_it() {
    let fleet = Fleet::start();
    let plain = chat("m", "hello");
    let user = |content: Value| json!([{"role": "user", "content": content}]);
    let anthropic =
        |content: Value| json!({"model": "m", "max_tokens": 9, "messages": user(content)});
    let schema =
        json!({"type": "json_schema", "json_schema": {"name": "s", "schema": {"type": "object"}}});
    let cases = [
        (CHAT, plain.clone(), "tools", "the best priority"),
        (CHAT, image_chat(), "vision", "an image"),
        (CHAT, with(plain.clone(), "tools", json!([tool()])), "tools", "tools"),
        (CHAT, with(plain.clone(), "tools", json!([])), "tools", "an empty list of tools"),
        (CHAT, with(plain.clone(), "functions", json!([{"name": "f"}])), "tools", "functions"),
        (
            CHAT,
            with(plain.clone(), "response_format", json!({"type": "json_object"})),
            "tools",
            "JSON",
        ),
        (CHAT, with(plain.clone(), "response_format", schema), "tools", "a schema"),
        (
            "/v1/messages",
            anthropic(
                json!([{"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": "AA=="}}]),
            ),
            "vision",
            "an image in Anthropic's dialect",
        ),
        (
            "/v1/responses",
            json!({"model": "m", "input": user(json!([{"type": "input_image", "image_url": IMAGE}]))}),
            "vision",
            "an image in a Responses request",
        ),
        (
            "/v1/responses",
            json!({"model": "m", "input": "hi", "text": {"format": {"type": "json_object"}}}),
            "tools",
            "JSON in a Responses request",
        ),
    ];
    for (path, body, taker, what) in cases {
        assert_eq!(fleet.taker(path, &body), Ok(taker), "{what}");
    }
    let decided = fleet.penstock.admin("/decisions?n=1").json();
    let needs = &decided["decisions"][0]["requirements"];
    assert_eq!((&needs["needs_json_mode"], &needs["needs_vision"]), (&json!(true), &json!(false)));
}

#[test]
fn image_selects_vision_in_every_operation_and_place() {
    let fleet = Fleet::start();
    let image = json!({"type": "image_url", "image_url": {"url": IMAGE}});
    let block = json!({"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": "AA=="}});
    let document = json!({"type": "document", "source": {"type": "content", "content": [block]}});
    let user = |part: &Value| json!([{"role": "user", "content": [part]}]);
    let screenshot = json!({"type": "computer_call_output", "call_id": "c", "output": {"type": "computer_screenshot", "image_url": IMAGE}});
    for (path, body) in [
        (
            CHAT,
            json!({"model": "m", "messages": user(&json!({"type": "video_url", "video_url": {"url": "https://a.b/c"}}))}),
        ),
        ("/v1/messages", json!({"model": "m", "max_tokens": 9, "messages": user(&document)})),
        ("/v1/responses", json!({"model": "m", "input": [screenshot]})),
        ("/v1/embeddings", json!({"model": "m", "messages": user(&image)})),
        ("/v1/rerank", json!({"model": "m", "query": "q", "documents": [{"content": [image]}]})),
        (
            "/completion",
            json!({"model": "m", "prompt": {"prompt_string": "<__media__>", "multimodal_data": ["AA=="]}}),
        ),
        (
            "/completion",
            json!({"model": "m", "prompt": "[img-1]", "image_data": [{"data": "AA==", "id": 1}]}),
        ),
    ] {
        assert_eq!(fleet.taker(path, &body), Ok("vision"), "{path} {body}");
    }
    let about = json!({"model": "m", "query": "image_url", "documents": [image.to_string()]});
    assert_eq!(fleet.taker("/v1/rerank", &about), Ok("tools"), "a text is no image");
}

#[test]
fn long_prompt_selects_a_long_context() {
    let fleet = Fleet::start();
    let of = |tokens: usize| chat("m", &"x".repeat(tokens * 4));
    assert_eq!(fleet.taker(CHAT, &of(4096)), Ok("tools"), "equal fits");
    assert_eq!(fleet.taker(CHAT, &of(4097)), Ok("plain"));
    let (status, text) = fleet.taker(CHAT, &of(16_001)).unwrap_err();
    let error = &serde_json::from_str::<Value>(&text).unwrap()["error"];
    assert_eq!((status, &error["code"]), (400, &json!("context_length_exceeded")));
    let message = "No backend supports required capabilities for model 'm': [context_length] \
                   (plain lacks context_length; vision lacks context_length; tools lacks context_length): \
                   prompt is too long: 16001 tokens > 16000 maximum; this model's maximum context \
                   length is 16000 tokens";
    assert_eq!(error["message"], message);
    // An image's data is no text: a picture of a megabyte still fits a thousand tokens.
    let mut big = image_chat();
    let url = format!("data:image/png;base64,{}", "A".repeat(1 << 20));
    big["messages"][1]["content"][1]["image_url"]["url"] = json!(url);
    assert_eq!(fleet.taker(CHAT, &big), Ok("vision"));
    // Characters are counted as they are meant, however they are written.
    let escaped = format!(
        "{{\"model\":\"m\",\"messages\":[{{\"role\":\"user\",\"content\":\"{}\"}}]}}",
        "\\u0444".repeat(4096 * 4)
    );
    let address = fleet.penstock.data;
    let response = crate::support::client::request(address, "POST", CHAT, &[], escaped.as_bytes());
    assert_eq!(response.status, 200, "{}", response.text());
    assert_eq!(fleet.tools.counters().requests, 2, "4096 tokens by characters");
}

#[test]
fn prompt_that_an_engine_counts_longer_goes_to_a_longer_context() {
    let fleet = Fleet::start();
    let too_long = |counted: u32| {
        let message = format!(
            "This model's maximum context length is 4096 tokens. However, you requested {counted} tokens ({counted} in the messages, 0 in the completion)."
        );
        let body = json!({"error": {"message": message, "code": 400}}).to_string();
        Fault::Status { status: 400, retry_after: None, body, headers: Vec::new() }
    };
    let text = chat("m", &"x".repeat(4000 * 4));
    fleet.tools.script([too_long(5000)]);
    assert_eq!(fleet.penstock.post(CHAT, &text).status, 200);
    assert_eq!(shares(&[&fleet.plain, &fleet.vision, &fleet.tools]), [1, 0, 1]);
    // No context is long enough by the engine's count: its own words go to the client.
    fleet.tools.script([too_long(50_000)]);
    let response = fleet.penstock.post(CHAT, &text);
    assert_eq!(response.status, 400);
    assert!(response.text().contains("you requested 50000 tokens"), "{}", response.text());
    // No longer context is left with what the request needs.
    fleet.tools.script([too_long(5000)]);
    let response = fleet.penstock.post(CHAT, &with(text, "tools", json!([tool()])));
    assert_eq!(response.status, 400);
    assert_eq!(shares(&[&fleet.plain, &fleet.vision, &fleet.tools]), [1, 0, 3]);
}

#[test]
fn batch_fits_a_context_that_fits_its_longest_text() {
    let fleet = Fleet::start();
    let text = |tokens: usize| "x".repeat(tokens * 4);
    let batch = |tokens: usize| json!([text(100), text(tokens), text(3000), text(3000)]);
    let embed = |tokens: usize| json!({"model": "m", "input": batch(tokens)});
    assert_eq!(fleet.taker("/v1/embeddings", &embed(4096)), Ok("tools"), "equal fits");
    assert_eq!(fleet.taker("/v1/embeddings", &embed(4097)), Ok("plain"));
    let rank = |tokens: usize| json!({"model": "m", "query": text(96), "documents": batch(tokens)});
    assert_eq!(fleet.taker("/v1/rerank", &rank(4000)), Ok("tools"));
    assert_eq!(fleet.taker("/v1/rerank", &rank(4001)), Ok("plain"), "each with the query");
    let (status, text) = fleet.taker("/v1/embeddings", &embed(16_001)).unwrap_err();
    assert_eq!(status, 400);
    assert!(text.contains("prompt is too long: 16001 tokens > 16000 maximum"), "{text}");
}

#[test]
fn too_long_prompt_is_refused_in_the_words_of_each_client() {
    let fleet = Fleet::start();
    let text = "x".repeat(4 * 16_001);
    let messages = json!([{"role": "user", "content": text}]);
    let body =
        json!({"model": "m", "max_tokens": 5, "input": text, "prompt": text, "messages": messages});
    let words = "prompt is too long: 16001 tokens > 16000 maximum; this model's maximum context length is 16000 tokens";
    for (path, message, code) in [
        (CHAT, "/error/message", "/error/code"),
        ("/v1/completions", "/error/message", "/error/code"),
        ("/v1/responses", "/error/message", "/error/code"),
        ("/v1/messages", "/error/message", ""),
        ("/api/chat", "/error", ""),
        ("/api/generate", "/error", ""),
    ] {
        let (status, text) = fleet.taker(path, &body).unwrap_err();
        let error: Value = serde_json::from_str(&text).unwrap();
        assert_eq!(status, 400, "{path}: {text}");
        assert!(
            error.pointer(message).unwrap().as_str().unwrap().ends_with(words),
            "{path}: {text}"
        );
        let code = error.pointer(code).filter(|_| !code.is_empty());
        assert!(code.is_none_or(|code| code == "context_length_exceeded"), "{path}: {text}");
    }
}

#[test]
fn capability_mismatch_lists_what_is_missing() {
    let fleet = Fleet::start();
    let both = with(image_chat(), "tools", json!([tool()]));
    let (status, text) = fleet.taker(CHAT, &both).unwrap_err();
    let error = &serde_json::from_str::<Value>(&text).unwrap()["error"];
    assert_eq!((status, &error["code"]), (400, &json!("capability_mismatch")));
    let message = "No backend supports required capabilities for model 'm': [vision, tools] \
                   (plain lacks vision, tools; vision lacks tools; tools lacks vision)";
    assert_eq!(error["message"], message);
    let body = json!({
        "model": "m", "max_tokens": 9, "tools": [{"name": "f", "input_schema": {}}],
        "messages": [{"role": "user", "content": [{"type": "image", "source": {}}]}]
    });
    let (status, text) = fleet.taker("/v1/messages", &body).unwrap_err();
    let wanted = json!({"type": "invalid_request_error", "message": message});
    let body = serde_json::from_str::<Value>(&text).unwrap();
    assert_eq!((status, &body["type"], &body["error"]), (400, &json!("error"), &wanted));
}

#[test]
fn plain_request_may_use_any_backend() {
    let (all, none) = (engine("all", &["m"]), engine("none", &["m"]));
    let yaml = format!(
        "routing: {{ strategy: round_robin }}\nbackends:\n{}{}",
        backend(&all, "models: [{ id: m, capabilities: [vision, tools, json_mode] }]"),
        backend(&none, "models: [{ id: m, capabilities: [] }]")
    );
    let penstock = Penstock::start(&yaml);
    let body = with(chat("m", "hello"), "tools", Value::Null);
    let body = with(body, "response_format", json!({"type": "text"}));
    let odd = json!([{"type": 7}, {"text": "no type"}, 5, null, {"type": "image_urls"}]);
    let odd = json!({"model": "m", "messages": [{"role": "user", "content": odd}]});
    for body in [&body, &odd, &body, &odd] {
        let response = penstock.post(CHAT, body);
        assert_eq!(response.status, 200, "{}", response.text());
    }
    assert_eq!(shares(&[&all, &none]), [2, 2]);
}

#[test]
fn known_capability_beats_an_assumed_one() {
    let (assumed, known) = (engine("assumed", &["m"]), engine("known", &["m"]));
    let yaml = format!(
        "backends:\n{}{}",
        backend(&assumed, "priority: 1, models: [m]"),
        backend(&known, "priority: 99, models: [{ id: m, capabilities: [vision] }]")
    );
    let penstock = Penstock::start(&yaml);
    assert_eq!(penstock.post(CHAT, &image_chat()).status, 200);
    assert_eq!(shares(&[&assumed, &known]), [0, 1]);
    assert!(penstock.admin("/metrics").text().contains("penstock_assumed_capability_total 0"));
    let drained =
        crate::support::client::request(penstock.admin, "POST", "/backends/known/drain", &[], b"");
    assert_eq!(drained.status, 200);
    assert_eq!(penstock.post(CHAT, &image_chat()).status, 200);
    assert_eq!(shares(&[&assumed, &known]), [1, 1]);
    assert!(penstock.admin("/metrics").text().contains("penstock_assumed_capability_total 1"));
    let decision = &penstock.admin("/decisions?n=1").json()["decisions"][0];
    assert_eq!((&decision["assumed"], &decision["backend"]), (&json!(true), &json!("assumed")));
}

#[test]
fn operation_selects_a_backend_that_serves_it() {
    let (talks, embeds) = (engine("talks", &["m"]), engine("embeds", &["m"]));
    let yaml = format!(
        "backends:\n{}{}",
        backend(&talks, "models: [{ id: m, operations: [chat, completions] }]"),
        backend(&embeds, "models: [{ id: m, operations: [embeddings] }]")
    );
    let penstock = Penstock::start(&yaml);
    assert_eq!(penstock.post("/v1/embeddings", &json!({"model": "m", "input": "x"})).status, 200);
    assert_eq!(penstock.chat("m").status, 200);
    assert_eq!(shares(&[&talks, &embeds]), [1, 1]);
    let body = json!({"model": "m", "query": "q", "documents": []});
    let response = penstock.post("/v1/rerank", &body);
    assert_eq!((response.status, response.error_code().as_str()), (400, "capability_mismatch"));
    assert!(response.text().contains("[rerank]"), "{}", response.text());
}

#[test]
fn unhealthy_capable_backend_is_a_503() {
    let (blind, sees) = (engine("blind", &["m"]), engine("sees", &["m"]));
    sees.set_health(503);
    let yaml = format!(
        "backends:\n{}{}",
        backend(&blind, "models: [{ id: m, capabilities: [] }]"),
        backend(&sees, "models: [{ id: m, capabilities: [vision] }]")
    );
    let penstock = Penstock::start(&yaml);
    let response = penstock.post(CHAT, &image_chat());
    assert_eq!((response.status, response.error_code().as_str()), (503, "no_healthy_backend"));
    assert!(response.text().contains("vision"), "{}", response.text());
}
