//! A shortage on this machine is not blamed on a backend: clients that fit are served, the others
//! get a response that names the reason, and nothing is learned about the backends.

use std::thread;
use std::time::Duration;

use penstock_mock::{EngineModel, MockSpec, Pace};
use serde_json::json;

use crate::support::client::{self, Client, chat, streaming_chat};
use crate::support::engines::{backend, backends, start};
use crate::support::eventually;
use crate::support::fleet::{CHAT, SOON};
use crate::support::penstock::Penstock;

const CLIENTS: usize = 100;

#[test]
fn few_descriptors_refuse_clients_and_blame_no_backend() {
    let pace = Pace {
        first_token: Duration::from_millis(200),
        per_token: Duration::from_millis(100),
        tokens: 8,
    };
    let engine = start(MockSpec { pace, ..MockSpec::new("one", [EngineModel::new("m")]) });
    let yaml = format!(
        "health: {{ interval: 200ms }}\nbackends:\n{}",
        backend(&engine, "engine: vllm, models: [m]")
    );
    let penstock = Penstock::start_with_files(64, &yaml);
    let address = penstock.data;
    let responses: Vec<_> = thread::scope(|scope| {
        let stream = || client::post(address, CHAT, &streaming_chat("m", "hello"));
        let clients: Vec<_> = (0..CLIENTS).map(|_| scope.spawn(stream)).collect();
        clients.into_iter().map(|client| client.join().unwrap()).collect()
    });
    let mut served = 0;
    for response in &responses {
        match response.status {
            200 => {
                assert!(response.is_whole && response.text().contains("[DONE]"));
                served += 1;
            }
            503 => {
                assert_eq!(response.error_code(), "out_of_resources", "{}", response.text());
                assert!(response.header("retry-after").is_some());
            }
            // A busy machine may take longer to connect than the timeout allows.
            504 => assert_eq!(response.error_code(), "connect_timeout", "{}", response.text()),
            status => panic!("{status}: {}", response.text()),
        }
    }
    // About 14 of the 64 are free for connections; a busy machine closes them late.
    assert!(served >= 3, "{served} of {CLIENTS} served");
    let state = penstock.backend("one");
    assert_eq!((&state["breaker"], &state["health"]), (&json!("closed"), &json!("healthy")));
    assert!(penstock.log().contains("the limit of open files"), "{}", penstock.log());
    let is_served = || client::post(address, CHAT, &streaming_chat("m", "hello")).status == 200;
    let are_served = || (0..3).all(|_| is_served());
    eventually("the descriptors of those that left are free", 4 * SOON, are_served);
}

/// Twelve backends times six clients are more connections than 64 files allow.
#[test]
fn idle_connections_give_way_when_descriptors_run_out() {
    let names = ["a", "b", "c", "d", "e", "f", "g", "h", "i", "j", "k", "l"];
    let slow = Pace { first_token: Duration::from_millis(20), ..Pace::at_once(1) };
    let engines = names
        .map(|name| start(MockSpec { pace: slow, ..MockSpec::new(name, [EngineModel::new("m")]) }));
    let refs: Vec<_> = engines.iter().collect();
    let yaml = format!(
        "routing: {{ strategy: random }}\nlimits: {{ idle_timeout: 60s }}\n\
         health: {{ interval: 100ms }}\n{}",
        backends(&refs, "engine: vllm, models: [m]")
    );
    let penstock = Penstock::start_with_files(64, &yaml);
    let is_healthy = |name: &&str| penstock.backend(name)["health"] == "healthy";
    // The first checks of all engines at once take descriptors that no client can be given.
    eventually("all are healthy", SOON, || names.iter().all(is_healthy));
    let address = penstock.data;
    let chat_often = || {
        let mut client = Client::connect(address);
        for turn in 0..40 {
            let body = chat("m", "hello").to_string();
            client.send("POST", CHAT, &[], body.as_bytes());
            let response = client.read_response().unwrap();
            assert_eq!(response.status, 200, "turn {turn}: {}", response.text());
        }
    };
    thread::scope(|scope| {
        let clients: Vec<_> = (0..6).map(|_| scope.spawn(chat_often)).collect();
        clients.into_iter().for_each(|client| client.join().unwrap());
    });
    assert!(penstock.log().contains("no file descriptors left"), "{}", penstock.log());
    for name in names {
        let state = penstock.backend(name);
        assert_eq!((&state["breaker"], &state["health"]), (&json!("closed"), &json!("healthy")));
    }
}
