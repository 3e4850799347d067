//! The access log says what is known of requests without a response of a backend: the model and the
//! stream of a refused one, and the backend that was tried last.

use std::path::Path;
use std::time::Duration;

use penstock_mock::Fault;
use serde_json::{Value, json};

use crate::support::client::{Client, request, streaming_chat};
use crate::support::engines::{backend, engine};
use crate::support::eventually;
use crate::support::fleet::{CHAT, Leave};
use crate::support::penstock::{Penstock, scratch};

const SOON: Duration = Duration::from_secs(10);

fn line(path: &Path, number: usize) -> Value {
    let lines = || std::fs::read_to_string(path).unwrap_or_default();
    eventually("the line", SOON, || lines().matches('\n').count() > number);
    serde_json::from_str(lines().lines().nth(number).unwrap()).unwrap()
}

#[test]
fn log_names_what_is_known_of_requests_that_fail() {
    let one = engine("one", &["m"]);
    let path = scratch("failures.log");
    let penstock = Penstock::start(&format!(
        "access_log: {{ path: \"{}\" }}\ntimeouts: {{ first_token: 1s }}\n\
         routing: {{ max_retries: 0 }}\n\
         auth: {{ keys: [{{ name: k, key: sk-k, limits: {{ requests_per_minute: 3 }} }}] }}\n\
         backends:\n{}",
        path.display(),
        backend(&one, "models: [m]")
    ));
    let headers = [("authorization", "Bearer sk-k")];
    let body = streaming_chat("m", "hello");
    let send = || request(penstock.data, "POST", CHAT, &headers, body.to_string().as_bytes());
    let refusal = Fault::Status {
        status: 400,
        retry_after: None,
        body: json!({"error": {"message": "no", "type": "invalid_request_error"}}).to_string(),
        headers: Vec::new(),
    };
    one.script([refusal, Fault::HangBeforeHead, Fault::HangBeforeHead]);
    assert_eq!(send().status, 400);
    let refused = line(&path, 0);
    assert_eq!((&refused["backend"], &refused["ttft_ms"]), (&json!("one"), &Value::Null));
    assert_eq!(send().status, 504);
    let late = line(&path, 1);
    assert_eq!((&late["backend"], &late["attempts"]), (&json!("one"), &json!(1)), "{late}");
    assert_eq!((&late["tokens_in"], &late["ttft_ms"]), (&Value::Null, &Value::Null), "{late}");
    let seen = one.counters().requests;
    let mut client = Client::connect(penstock.data);
    client.send("POST", CHAT, &headers, body.to_string().as_bytes());
    eventually("the engine has the request", SOON, || one.counters().requests > seen);
    drop(Leave::Reset.now(client));
    let gone = line(&path, 2);
    assert_eq!((&gone["backend"], &gone["status"]), (&json!("one"), &json!(499)), "{gone}");
    assert_eq!(send().status, 429);
    let limited = line(&path, 3);
    assert_eq!(limited["error"], "rate_limited", "{limited}");
    assert_eq!((&limited["model_requested"], &limited["stream"]), (&json!("m"), &json!(true)));
    assert_eq!((&limited["backend"], &limited["attempts"]), (&Value::Null, &json!(0)));
    let page = penstock.admin("/metrics").text();
    assert!(page.contains("backend=\"none\",operation=\"chat\",status=\"504\""), "{page}");
}
