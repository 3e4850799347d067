//! Dashboards follow the fleet by its usage stream: the state at once, then every change. However
//! many there are and however slow they read, no request waits for them.

use std::time::Duration;

use penstock_mock::{Fault, Pace};
use serde_json::{Value, json};

use crate::support::client::{self, Client, chat, streaming_chat};
use crate::support::eventually;
use crate::support::fleet::{CHAT, Fleet, Setup, begin, read_until};
use crate::support::penstock::scratch;

const TIMEOUT: Duration = Duration::from_secs(20);
const NOMYO: &str = "compat: nomyo";

fn open(address: std::net::SocketAddr) -> Client {
    let mut client = Client::connect(address);
    client.send("GET", "/api/usage-stream", &[], b"");
    let (status, headers) = client.read_head().unwrap();
    assert_eq!(status, 200, "{headers:?}");
    assert!(headers.contains(&("content-type".to_owned(), "text/event-stream".to_owned())));
    client
}

/// Sends `count` requests and returns the state once all of them are over and counted.
fn state_after(fleet: &Fleet, count: usize) -> Value {
    let mut tokens = 0;
    for _ in 0..count {
        let response = fleet.chat();
        assert_eq!(response.status, 200, "{}", response.text());
        tokens += response.json()["usage"]["total_tokens"].as_u64().unwrap();
    }
    let url = fleet.a().url();
    let mut state = Value::Null;
    eventually("every token is counted, and nothing is in flight", TIMEOUT, || {
        state = fleet.penstock.admin("/api/usage").json();
        state["token_usage_counts"][&url]["m"] == tokens && state["usage_counts"] == json!({})
    });
    state
}

/// The next event of a stream.
fn next(client: &mut Client) -> Value {
    let mut text = read_until(client, "\n\n");
    // Each event is a chunk: one of several may have come in part.
    while !text.ends_with("\n\n\r\n") {
        text += &String::from_utf8_lossy(&client.read_raw().unwrap());
    }
    let event = text.rsplit("data: ").next().unwrap().split("\n\n").next().unwrap();
    serde_json::from_str(event).unwrap_or_else(|error| panic!("{error}: {text}"))
}

#[test]
fn stream_shows_the_state_at_once_and_each_change() {
    let pace =
        Pace { first_token: Duration::ZERO, per_token: Duration::from_millis(30), tokens: 40 };
    let fleet = Fleet::of(&["m, m2"], Setup { pace, server: NOMYO, ..Setup::default() });
    let url = fleet.a().url();
    for address in [fleet.penstock.admin, fleet.penstock.data] {
        let before = fleet.penstock.admin("/api/token_counts").json()["total_tokens"].clone();
        let mut stream = open(address);
        let first = next(&mut stream);
        assert_eq!(first["usage_counts"], json!({}), "nothing is in flight");
        let mut request = fleet.begin(&streaming_chat("m", "hello"));
        let busy = next(&mut stream);
        assert_eq!(busy["usage_counts"], json!({&url: {"m": 1}}), "of m alone");
        assert!(request.read_response().unwrap().is_whole);
        let mut last = next(&mut stream);
        while last["usage_counts"] != json!({})
            || last["token_usage_counts"] == first["token_usage_counts"]
        {
            last = next(&mut stream);
        }
        let total = &fleet.penstock.admin("/api/token_counts").json()["total_tokens"];
        assert_ne!(*total, before);
        assert_eq!(last["token_usage_counts"][&url]["m"], *total);
        assert_eq!(fleet.penstock.admin("/api/usage").json(), last);
    }
}

#[test]
fn first_state_does_not_wait_for_the_interval() {
    let setup = Setup { sections: "usage: { interval: 60s }", ..Setup::default() };
    let fleet = Fleet::start(1, setup);
    let first = next(&mut open(fleet.penstock.admin));
    assert_eq!(first["usage_counts"], json!({}));
}

#[test]
fn slow_reader_delays_no_request_and_sees_the_newest_state_last() {
    let fleet = Fleet::start(1, Setup { sections: "usage: { interval: 1ms }", ..Setup::default() });
    let mut slow = open(fleet.penstock.admin);
    let newest = state_after(&fleet, 300);
    let mut seen = next(&mut slow);
    let mut events = 1;
    while seen != newest {
        seen = next(&mut slow);
        events += 1;
    }
    assert!(events <= 700, "{events} events");
    assert_eq!(seen["usage_counts"], json!({}));
}

#[test]
fn thousand_streams_are_served_and_end_at_shutdown() {
    const STREAMS: usize = 1000;
    let sections = format!("usage: {{ streams: {STREAMS} }}");
    let setup = Setup { sections: &sections, server: NOMYO, ..Setup::default() };
    let mut fleet = Fleet::start(1, setup);
    let mut streams: Vec<Client> = (0..STREAMS).map(|_| open(fleet.penstock.data)).collect();
    fleet.wait_metric("penstock_usage_streams", STREAMS as f64);
    let refused = fleet.penstock.get("/api/usage-stream");
    assert_eq!(refused.status, 503, "{}", refused.text());
    assert!(refused.text().contains("usage.streams"), "{}", refused.text());
    fleet.wait_metric("penstock_usage_streams_refused_total", 1.0);
    let newest = state_after(&fleet, 100);
    for stream in &mut streams {
        let mut seen = next(stream);
        while seen != newest {
            seen = next(stream);
        }
    }
    // Clients that leave make room.
    drop(streams.split_off(STREAMS / 2));
    fleet.wait_metric("penstock_usage_streams", (STREAMS / 2) as f64);
    fleet.penstock.signal("TERM");
    for stream in &mut streams {
        let end = read_until(stream, "0\r\n\r\n");
        assert!(end.ends_with("0\r\n\r\n"), "cut: {end}");
    }
    assert_eq!(fleet.penstock.wait_end(Duration::from_secs(5)).code(), Some(0));
}

#[test]
fn counts_of_the_engine_come_before_estimates() {
    let fleet = Fleet::start(1, Setup::default());
    let body = json!({
        "object": "chat.completion", "model": "m",
        "choices": [{"index": 0, "message": {"role": "assistant", "content": "hi"}}],
        "usage": {"prompt_tokens": 77, "completion_tokens": 5, "total_tokens": 82},
    });
    let body = body.to_string();
    fleet.a().script([Fault::Status { status: 200, retry_after: None, body, headers: vec![] }]);
    assert_eq!(fleet.chat().status, 200);
    eventually("it is counted", TIMEOUT, || {
        let page = fleet.penstock.admin("/api/token_counts").json();
        page["breakdown"][0]["input_tokens"] == 77 && page["breakdown"][0]["output_tokens"] == 5
    });
}

#[test]
fn pages_have_the_documented_shapes() {
    let fleet = Fleet::of(&["m", "m2"], Setup { server: NOMYO, ..Setup::default() });
    let penstock = &fleet.penstock;
    let (url, other) = (fleet.a().url(), fleet.b().url());
    assert_eq!(penstock.chat("m").status, 200);
    assert_eq!(penstock.chat("m2").status, 200);
    let usage_of_m = penstock.chat("m").json()["usage"].clone();
    // A request is counted just after its response.
    let rows = || penstock.admin("/api/token_counts").json()["breakdown"].clone();
    let expected = 2 * usage_of_m["total_tokens"].as_i64().unwrap();
    eventually("all requests are counted", TIMEOUT, || {
        let sum: i64 = rows()
            .as_array()
            .unwrap()
            .iter()
            .map(|row| row["total_tokens"].as_i64().unwrap())
            .sum();
        sum * 2 == expected * 3
    });
    for port in [penstock.admin, penstock.data] {
        let get = |path: &str| client::get(port, path);
        let counts = get("/api/token_counts").json();
        let row = &counts["breakdown"][usize::from(url > other)];
        assert_eq!((&row["endpoint"], &row["model"]), (&json!(url), &json!("m")));
        assert_eq!(row["input_tokens"], 2 * usage_of_m["prompt_tokens"].as_i64().unwrap());
        assert_eq!(row["output_tokens"], 2 * usage_of_m["completion_tokens"].as_i64().unwrap());
        let stats = client::post(port, "/api/stats", &json!({"model": "M:latest"})).json();
        assert_eq!(stats["model"], "m", "as Ollama compares names");
        assert_eq!(stats["total_tokens"], row["total_tokens"]);
        let series = stats["time_series"].as_array().unwrap();
        let sum: i64 = series.iter().map(|point| point["total_tokens"].as_i64().unwrap()).sum();
        assert_eq!(json!(sum), row["total_tokens"]);
        assert_eq!(series[0]["timestamp"].as_i64().unwrap() % 60, 0);
        assert_eq!(stats["endpoint_distribution"][&url], row["total_tokens"]);
        let by_query = client::request(port, "POST", "/api/stats?model=m", &[], b"");
        assert_eq!(by_query.json()["total_tokens"], row["total_tokens"]);
        let unknown = client::post(port, "/api/stats", &json!({"model": "unknown"}));
        assert_eq!(unknown.status, 404, "{}", unknown.text());
        assert_eq!(client::post(port, "/api/stats", &json!({})).status, 400);
        let config = get("/api/config").json();
        assert_eq!(
            config["endpoints"][0],
            json!({"url": url, "status": "ok", "version": "latest"})
        );
        assert_eq!(config["require_router_api_key"], false);
        let ask = || {
            let body = json!({"days": 1, "trim_old": false});
            client::post(port, "/api/aggregate_time_series_days", &body).json()
        };
        assert_eq!(
            (ask()["status"].clone(), ask()),
            (json!("ok"), ask()),
            "asking changes nothing"
        );
        assert_eq!(get("/api/cache/stats").json()["enabled"], false);
        assert_eq!(client::request(port, "POST", "/api/cache/invalidate", &[], b"").status, 200);
        assert_eq!(client::request(port, "POST", "/api/usage", &[], b"").status, 405);
    }
    let health = penstock.get("/health").json();
    assert_eq!(health["status"], "ok");
    assert_eq!(health["endpoints"][&other], json!({"status": "ok", "version": "latest"}));
}

#[test]
fn data_port_serves_usage_only_where_it_is_configured() {
    let fleet = Fleet::start(1, Setup::default());
    for path in ["/api/usage", "/api/usage-stream", "/api/token_counts", "/api/config"] {
        assert_eq!(fleet.penstock.get(path).status, 404, "{path}");
        assert_eq!(fleet.penstock.get(&format!("{path}?api_key=x")).status, 404, "{path}");
    }
    assert_eq!(fleet.penstock.get("/health").json()["status"], "healthy", "our own shape");
}

#[test]
fn key_in_the_query_reaches_neither_log_nor_backend() {
    const KEY: &str = "sk-very-secret";
    let sections = format!(
        r"
auth: {{ keys: [{{ name: team, key: {KEY}, manage_models: true }}] }}
log: {{ level: debug }}
access_log: {{ path: stdout }}
"
    );
    let setup = Setup { sections: &sections, server: NOMYO, ..Setup::default() };
    let fleet = Fleet::start(1, setup);
    let penstock = &fleet.penstock;
    let status = |path: &str, headers: &[(&str, &str)]| {
        client::request(penstock.data, "GET", path, headers, b"").status
    };
    assert_eq!(status("/api/usage", &[]), 401, "missing");
    assert_eq!(status("/api/usage?api_key=wrong", &[]), 403, "wrong");
    assert_eq!(status("/api/usage", &[("authorization", "Bearer wrong")]), 403, "wrong");
    assert_eq!(status(&format!("/api/usage?api_key={KEY}"), &[]), 200);
    assert_eq!(status("/api/usage", &[("x-api-key", KEY)]), 200);
    let bearer = format!("Bearer {KEY}");
    assert_eq!(status("/api/usage", &[("authorization", &bearer)]), 200);

    let health = penstock.get("/health").json();
    assert_eq!(health, json!({"status": "ok"}), "no URL without a key");
    let health = penstock.get(&format!("/health?api_key={KEY}")).json();
    assert!(health["endpoints"].is_object(), "{health}");

    let path = format!("{CHAT}?api_key={KEY}&trace=1");
    let mut client = begin(penstock.data, &path, &chat("m", "hello"));
    assert_eq!(client.read_response().unwrap().status, 200);
    let received = fleet.a().received().pop().unwrap();
    assert_eq!(received.target, format!("{CHAT}?trace=1"));
    eventually("the request is logged", TIMEOUT, || !penstock.log().is_empty());
    assert!(!penstock.log().contains(KEY), "{}", penstock.log());
    let total = || penstock.admin("/api/token_counts").json()["total_tokens"].as_i64().unwrap();
    eventually("the request is counted", TIMEOUT, || total() > 0);
}

#[test]
fn usage_of_all_is_for_keys_that_manage() {
    let sections = "auth: { keys: [{ name: boss, key: sk-of-boss, manage_models: true }, \
                    { name: team, key: sk-of-team }] }";
    let fleet = Fleet::start(1, Setup { sections, server: NOMYO, ..Setup::default() });
    let send = |key: &str, method: &str, path: &str| {
        let headers = [("x-api-key", key), ("content-type", "application/json")];
        let body = if method == "POST" { r#"{"model":"m","trim_old":true}"# } else { "" };
        if path == "/api/usage-stream" && key == "sk-of-boss" {
            let mut client = Client::connect(fleet.penstock.data);
            client.send(method, path, &headers, b"");
            return (client.read_head().unwrap().0, String::new());
        }
        let response =
            client::request(fleet.penstock.data, method, path, &headers, body.as_bytes());
        (response.status, response.text())
    };
    for (method, path) in [
        ("GET", "/api/usage"),
        ("GET", "/api/usage-stream"),
        ("GET", "/api/token_counts"),
        ("POST", "/api/stats"),
        ("GET", "/api/config"),
        ("POST", "/api/aggregate_time_series_days"),
        ("GET", "/api/cache/stats"),
        ("POST", "/api/cache/invalidate"),
    ] {
        assert_eq!(send("sk-of-boss", method, path).0, 200, "{path}");
        let refused = send("sk-of-team", method, path);
        assert!(refused.0 == 403 && refused.1.contains("keys with manage_models"), "{refused:?}");
    }
}

#[test]
fn usage_by_key_is_shown_with_and_without_a_file() {
    let keys = r"
auth: { keys: [{ name: team-a, key: sk-secret-a }, { name: team-b, key: sk-secret-b }] }
models: { m: { price: { input: 1000000, output: 0 } } }
";
    let folder = scratch("usage-by-key");
    std::fs::create_dir_all(&folder).unwrap();
    let file = format!("{keys}\nledger: {{ path: {}/ledger.db }}", folder.display());
    for (sections, has_file) in [(keys, false), (file.as_str(), true)] {
        let fleet = Fleet::of(&["m, m2"], Setup { sections, ..Setup::default() });
        let send = |key: &str, model: &str| {
            let bearer = format!("Bearer {key}");
            let headers =
                [("authorization", bearer.as_str()), ("content-type", "application/json")];
            let body = chat(model, "hello").to_string();
            client::request(fleet.penstock.data, "POST", CHAT, &headers, body.as_bytes())
        };
        let before = fleet.penstock.admin("/usage").json();
        assert_eq!((&before["has_file"], &before["rows"]), (&json!(has_file), &json!([])));
        assert_eq!(before["sum"]["requests"], 0);
        for (key, model, count) in
            [("sk-secret-a", "m", 1), ("sk-secret-b", "m", 2), ("sk-secret-b", "m2", 1)]
        {
            for _ in 0..count {
                assert_eq!(send(key, model).status, 200);
            }
        }
        assert_eq!(send("sk-secret-a", "unknown").status, 404, "not counted");
        let page = |query: &str| fleet.penstock.admin(&format!("/usage{query}")).json();
        eventually("all requests are counted", TIMEOUT, || page("")["sum"]["requests"] == 4);
        let by_key = page("");
        let rows = by_key["rows"].as_array().unwrap();
        let names: Vec<&Value> = rows.iter().map(|row| &row["key"]).collect();
        assert_eq!(names, ["team-b", "team-a"], "the largest first");
        assert_eq!((&rows[0]["requests"], &rows[1]["requests"]), (&json!(3), &json!(1)));
        let tokens = |row: &Value| row["input_tokens"].as_i64().unwrap();
        assert_eq!(tokens(&rows[0]), 3 * tokens(&rows[1]));
        assert_eq!(tokens(&by_key["sum"]), 4 * tokens(&rows[1]));
        assert_eq!(rows[1]["cost"].as_f64().unwrap(), tokens(&rows[1]) as f64);
        let first = page("?by=key,model&n=1");
        assert_eq!((&first["rows"][0]["model"], &first["has_more"]), (&json!("m"), &json!(true)));
        assert_eq!(first["rows"].as_array().unwrap().len(), 1);
        assert_eq!(page("?by=model&since=0d")["rows"].as_array().unwrap().len(), 2);
        assert_eq!(page("?until=2020-01-01")["rows"], json!([]));
        let refused = fleet.penstock.admin("/usage?by=client_key");
        assert_eq!(refused.status, 400, "{}", refused.text());
        let text = fleet.penstock.admin("/usage?by=key,model,backend,day").text();
        assert!(!text.contains("secret"), "names only: {text}");
    }
}
