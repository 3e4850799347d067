//! Limits per key and per client address: requests, tokens, requests in flight. A refusal says
//! which limit it is and when to try again, in the client's dialect; what was used survives a
//! reload and is given back when a client leaves.

use penstock_mock::{Fault, Gate};
use serde_json::{Value, json};

use crate::support::client::{Client, Response, chat, request, streaming_chat};
use crate::support::fleet::{CHAT, Fleet, Leave, SOON, Setup, metric, read_until, yaml};
use crate::support::penstock::{Penstock, scratch};

fn keyed(limits: &str) -> String {
    format!("auth: {{ keys: [{{ name: k, key: sk-key-of-the-test, limits: {{ {limits} }} }}] }}")
}

const KEY: (&str, &str) = ("authorization", "Bearer sk-key-of-the-test");
const JSON: (&str, &str) = ("content-type", "application/json");

fn send(fleet: &Fleet, path: &str, body: &Value) -> Response {
    request(fleet.penstock.data, "POST", path, &[KEY, JSON], body.to_string().as_bytes())
}

fn start(limits: &str) -> Fleet {
    Fleet::start(1, Setup { sections: &keyed(limits), ..Setup::default() })
}

fn number(response: &Response, field: &str) -> u64 {
    let text = response.header(field).unwrap_or_else(|| panic!("no {field}"));
    text.parse().unwrap_or_else(|_| panic!("{field}: {text}"))
}

#[test]
fn requests_over_the_limit_get_429_in_every_dialect() {
    let fleet = start("requests_per_minute: 3");
    for left in [2, 1, 0] {
        let response = send(&fleet, CHAT, &chat("m", "hello"));
        assert_eq!(response.status, 200, "{}", response.text());
        assert_eq!(number(&response, "x-ratelimit-limit-requests"), 3);
        assert_eq!(number(&response, "x-ratelimit-remaining-requests"), left);
        assert!(response.header("x-ratelimit-reset-requests").unwrap().ends_with('s'));
        assert_eq!(response.header("x-ratelimit-limit-tokens"), None);
    }
    let before = fleet.requests();
    let messages = json!([{"role": "user", "content": "hello"}]);
    let body = json!({"model": "m", "max_tokens": 8, "messages": messages});
    for (path, end) in [(CHAT, 20), ("/v1/messages", 40), ("/api/chat", 60)] {
        let response = send(&fleet, path, &body);
        assert_eq!(response.status, 429, "{path}");
        let wait = number(&response, "retry-after");
        assert!((end - 19..=end).contains(&wait), "{path}: {wait}, one in 20 seconds");
        assert_eq!(number(&response, "x-ratelimit-remaining-requests"), 0);
        assert_eq!(response.header("x-should-retry"), Some("true"));
        let error = &response.json()["error"];
        let text = error.to_string();
        assert!(text.contains("3 requests per minute (requests_per_minute)"), "{text}");
        match path {
            "/v1/messages" => assert_eq!(error["type"], "rate_limit_error"),
            "/api/chat" => assert!(error.is_string(), "{text}"),
            _ => assert_eq!(error["code"], "rate_limited"),
        }
    }
    assert_eq!(fleet.requests(), before, "a refused request reached an engine");
    fleet.wait_metric("penstock_rate_limited_total{key=\"k\",limit=\"requests_per_minute\"}", 3.0);
    fleet.wait_metric("penstock_errors_total{code=\"rate_limited\"}", 3.0);
}

#[test]
fn keys_of_one_name_share_a_limit_and_others_have_their_own() {
    let sections = "auth: { limits: { requests_per_minute: 2 }, keys: [\
        { name: team, key: sk-old-key-of-a-team }, { name: team, key: sk-new-key-of-a-team },\
        { name: other, key: sk-key-of-another }, \
        { name: free, key: sk-key-without-any, limits: {} }] }";
    let fleet = Fleet::start(1, Setup { sections, ..Setup::default() });
    let body = chat("m", "hello").to_string();
    let status = |key: &str| {
        let field = format!("Bearer {key}");
        let headers = [("authorization", field.as_str()), JSON];
        request(fleet.penstock.data, "POST", CHAT, &headers, body.as_bytes()).status
    };
    assert_eq!([status("sk-old-key-of-a-team"), status("sk-new-key-of-a-team")], [200, 200]);
    assert_eq!([status("sk-old-key-of-a-team"), status("sk-new-key-of-a-team")], [429, 429]);
    assert_eq!(status("sk-key-of-another"), 200);
    assert!((0..5).all(|_| status("sk-key-without-any") == 200), "its own limits: none");
}

#[test]
fn tokens_are_reserved_and_settled_by_usage() {
    let fleet = start("tokens_per_minute: 100000, tokens_per_day: 1000000");
    for body in [chat("m", "hello"), streaming_chat("m", "hello")] {
        let day = fleet.metric("penstock_key_day_tokens{key=\"k\"}");
        let mut body = body;
        body["max_tokens"] = json!(50_000);
        let response = send(&fleet, CHAT, &body);
        assert_eq!(response.status, 200, "{}", response.text());
        let left = number(&response, "x-ratelimit-remaining-tokens");
        assert!((49_000..50_000).contains(&left), "{left}");
        assert_eq!(number(&response, "x-ratelimit-limit-tokens"), 100_000);
        assert!(!response.text().contains("\"usage\":{") || body["stream"] != true);
        let used = fleet.metric("penstock_key_day_tokens{key=\"k\"}") - day;
        assert!((8.0..200.0).contains(&used), "8 tokens of the response and the prompt: {used}");
        if body["stream"] != true {
            let total = response.json()["usage"]["total_tokens"].as_f64().unwrap();
            assert!((used - total).abs() < 0.5, "{used}: {total}");
        }
    }
}

#[test]
fn request_that_can_never_pass_gets_400() {
    let fleet = start("tokens_per_minute: 1000");
    let mut body = chat("m", "hello");
    body["max_tokens"] = json!(2000);
    for _ in 0..2 {
        let response = send(&fleet, CHAT, &body);
        assert_eq!(
            (response.status, response.error_code().as_str()),
            (400, "token_limit_too_small")
        );
        assert!(response.text().contains("can never pass"), "{}", response.text());
        assert_eq!(response.header("retry-after"), None);
        assert_eq!(response.header("x-should-retry"), Some("false"));
    }
    body["max_tokens"] = json!(500);
    assert_eq!(send(&fleet, CHAT, &body).status, 200, "nothing was taken");
}

fn begin(fleet: &Fleet, body: &Value) -> Client {
    let mut client = Client::connect(fleet.penstock.data);
    client.send("POST", CHAT, &[KEY, JSON], body.to_string().as_bytes());
    client
}

#[test]
fn slots_are_free_again_however_a_request_ends() {
    let fleet = start("in_flight: 2, tokens_per_day: 100000000");
    let in_flight = "penstock_key_in_flight{key=\"k\"}";
    for how in Leave::BOTH {
        for body in [chat("m", "hello"), streaming_chat("m", "hello")] {
            let gate = Gate::default();
            fleet.a().script([Fault::Gate(gate.clone()), Fault::Gate(gate)]);
            let clients = [begin(&fleet, &body), begin(&fleet, &body)];
            fleet.wait_metric(in_flight, 2.0);
            let refused = send(&fleet, CHAT, &body);
            assert_eq!(refused.status, 429);
            assert!((1..=20).contains(&number(&refused, "retry-after")), "as long as they take");
            assert!(
                refused.text().contains("as many requests in flight as it may have: 2"),
                "{}",
                refused.text()
            );
            let left = clients.map(|client| how.now(client));
            fleet.wait_metric(in_flight, 0.0);
            drop(left);
        }
    }
    fleet.a().script([Fault::status(500)]);
    assert_eq!(send(&fleet, CHAT, &chat("m", "hello")).status, 500);
    assert_eq!(send(&fleet, CHAT, &chat("unknown", "hello")).status, 404);
    fleet.wait_metric(in_flight, 0.0);
    let mut client = begin(&fleet, &streaming_chat("m", "hello"));
    read_until(&mut client, "[DONE]");
    fleet.wait_metric(in_flight, 0.0);
    fleet.wait_idle();
}

#[test]
fn next_request_after_a_response_finds_the_slot_free() {
    let fleet = start("in_flight: 1");
    for number in 0..200 {
        let body = if number % 2 == 0 { chat("m", "hi") } else { streaming_chat("m", "hi") };
        // Each on another connection, as soon as the last byte is there.
        let response = send(&fleet, CHAT, &body);
        assert_eq!(response.status, 200, "{number}: {}", response.text());
    }
}

#[test]
fn addresses_are_limited_each() {
    let sections = "limits: { per_client: { requests_per_minute: 2 }, client_addresses: 1000 }";
    let fleet = Fleet::start(1, Setup { sections, ..Setup::default() });
    let body = chat("m", "hello").to_string();
    let status = |host: u8| {
        let mut client = Client::connect_from(host, fleet.penstock.data);
        client.send("POST", CHAT, &[JSON], body.as_bytes());
        client.read_response().unwrap().status
    };
    for host in [2, 3] {
        assert_eq!([status(host), status(host), status(host)], [200, 200, 429], "127.0.0.{host}");
    }
    fleet.wait_metric("penstock_rate_limited_total{key=\"\",limit=\"requests_per_minute\"}", 2.0);
    fleet.wait_metric("penstock_client_addresses", 2.0);
}

#[test]
fn reload_changes_limits_and_keeps_usage() {
    let fleet = start("requests_per_minute: 3");
    let whole = std::fs::read_to_string(&fleet.penstock.config).unwrap();
    let set = |limit: u32| {
        let next =
            whole.replace("requests_per_minute: 3", &format!("requests_per_minute: {limit}"));
        std::fs::write(&fleet.penstock.config, next).unwrap();
        assert_eq!(fleet.penstock.reload().status, 200);
    };
    let status = || send(&fleet, CHAT, &chat("m", "hello")).status;
    assert_eq!([status(), status(), status(), status()], [200, 200, 200, 429]);
    set(5);
    assert_eq!([status(), status(), status()], [200, 200, 429], "three of five are used");
    set(2);
    assert_eq!(status(), 429);
    set(1000);
    assert_eq!(status(), 200);
}

#[test]
fn day_continues_after_a_restart_with_the_ledger() {
    let sections = format!(
        "ledger: {{ path: {} }}\n{}",
        scratch("ledger.db").display(),
        keyed("tokens_per_day: 1000000")
    );
    let mut fleet = Fleet::start(1, Setup { sections: &sections, ..Setup::default() });
    assert_eq!(send(&fleet, CHAT, &chat("m", "hello")).status, 200);
    let used = fleet.metric("penstock_key_day_tokens{key=\"k\"}");
    assert!(used >= 8.0, "{used}");
    fleet.penstock.signal("TERM");
    fleet.penstock.wait_end(SOON);
    let yaml = yaml(&fleet.engines, &["m"], Setup { sections: &sections, ..Setup::default() });
    let next = Penstock::start(&yaml);
    let restored = metric(&next, "penstock_key_day_tokens{key=\"k\"}");
    assert!((restored - used).abs() < 0.5, "{restored}: {used}");
}

#[test]
fn ensemble_counts_once_with_the_tokens_of_all_its_calls() {
    let sections = format!(
        "ensembles: {{ enabled: true }}\n{}",
        keyed("requests_per_minute: 10, tokens_per_day: 1000000")
    );
    let fleet = Fleet::start(3, Setup { sections: &sections, ..Setup::default() });
    let response = send(&fleet, CHAT, &chat("moe-m", "hello"));
    assert_eq!(response.status, 200, "{}", response.text());
    assert_eq!(number(&response, "x-ratelimit-remaining-requests"), 9);
    let usage = &response.json()["usage"];
    let parts = response.header("x-penstock-ensemble").unwrap().to_owned();
    let part = |name: &str| {
        let of = parts.split(';').find_map(|part| part.strip_prefix(&format!("{name}=")));
        of.unwrap().parse::<u64>().unwrap()
    };
    let expected =
        usage["total_tokens"].as_u64().unwrap() + part("input_tokens") + part("output_tokens");
    let used = fleet.metric("penstock_key_day_tokens{key=\"k\"}");
    assert_eq!(json!(used), json!(expected as f64), "{parts} {usage}");
    fleet.wait_metric("penstock_key_in_flight{key=\"k\"}", 0.0);
}

#[test]
fn pages_without_a_model_and_clients_without_limits_are_not_counted() {
    let fleet = start("requests_per_minute: 1");
    for path in ["/v1/models", "/api/tags", "/health"] {
        let response = request(fleet.penstock.data, "GET", path, &[KEY], b"");
        assert_eq!((response.status, response.header("x-ratelimit-limit-requests")), (200, None));
    }
    assert_eq!(send(&fleet, CHAT, &chat("m", "hello")).status, 200);
    let open = Fleet::start(1, Setup::default());
    let response = open.chat();
    assert!(response.headers.iter().all(|(name, _)| !name.starts_with("x-ratelimit")));
}

#[test]
fn concurrent_clients_never_pass_more_than_the_limit() {
    let fleet = start("requests_per_minute: 50");
    let statuses: Vec<u16> = std::thread::scope(|scope| {
        let clients: Vec<_> = (0..8)
            .map(|_| {
                scope.spawn(|| {
                    let one = || send(&fleet, CHAT, &chat("m", "hello")).status;
                    (0..10).map(|_| one()).collect::<Vec<_>>()
                })
            })
            .collect();
        clients.into_iter().flat_map(|client| client.join().unwrap()).collect()
    });
    let passed = statuses.iter().filter(|status| **status == 200).count();
    // A slot is there again every 1.2 seconds.
    assert!((50..=55).contains(&passed), "{passed}");
    assert!(statuses.iter().all(|status| [200, 429].contains(status)), "{statuses:?}");
    assert_eq!(fleet.requests(), passed);
}

#[test]
fn absurd_usage_of_an_engine_is_no_debt() {
    let fleet = start("tokens_per_minute: 100000, tokens_per_day: 1000000");
    let usage = json!({"prompt_tokens": u64::MAX, "completion_tokens": u64::MAX});
    let message = json!({"role": "assistant", "content": "ok"});
    let whole = json!({"object": "chat.completion", "usage": usage,
        "choices": [{"index": 0, "message": message, "finish_reason": "stop"}]});
    let reply = || Fault::Status {
        status: 200,
        retry_after: None,
        body: whole.to_string(),
        headers: Vec::new(),
    };
    let mut limited = chat("m", "hi");
    limited["max_tokens"] = json!(50);
    for (body, most) in [(limited, 1_000), (chat("m", "hi"), 40_000)] {
        let left = || number(&send(&fleet, CHAT, &chat("m", "hi")), "x-ratelimit-remaining-tokens");
        let before = left();
        fleet.a().script([reply()]);
        assert_eq!(send(&fleet, CHAT, &body).status, 200);
        let used = before.saturating_sub(left());
        assert!(used <= most, "{used} tokens were charged for {body}");
    }
    // The counts of the last response are cut when it is recorded.
    fleet.wait_metric("penstock_usage_cut_total{backend=\"a\",count=\"prompt\"}", 2.0);
    let counted = fleet.metric("penstock_tokens_total");
    assert!(counted < 200_000.0, "{counted}");
    for (count, cuts) in [("prompt", 2.0), ("completion", 2.0), ("cached", 0.0)] {
        let name = format!("penstock_usage_cut_total{{backend=\"a\",count=\"{count}\"}}");
        fleet.wait_metric(&name, cuts);
    }
}
