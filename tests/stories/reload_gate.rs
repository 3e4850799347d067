//! The reload gate: an operator has a new configuration simulated with the traffic of the last
//! minutes before it is put in force. A worse one is refused and changes nothing.

use std::time::Duration;

use penstock_mock::{EngineModel, MockEngine, MockSpec, Pace};
use serde_json::Value;

use crate::support::client::{Client, request, streaming_chat};
use crate::support::engines::{backend, start};
use crate::support::eventually;
use crate::support::fleet::{CHAT, SOON, begin, metric};
use crate::support::penstock::Penstock;

const PACE: Pace = Pace {
    first_token: Duration::from_millis(20),
    per_token: Duration::from_millis(5),
    tokens: 20,
};
const GATE: &str = "routing: { strategy: weighted, reload_gate: { window: 10m } }\n";

fn paced(name: &str) -> MockEngine {
    let spec = MockSpec::new(name, [EngineModel::new("m")]);
    start(MockSpec { pace: PACE, ..spec })
}

fn fleet(engines: &[&MockEngine], more: &str) -> String {
    let items: String = engines.iter().map(|one| backend(one, more)).collect();
    format!("backends:\n{items}")
}

/// Streams, five at a time.
fn send(penstock: &Penstock, rounds: usize) {
    for round in 0..rounds {
        let mut streams: Vec<Client> = (0..5)
            .map(|number| {
                let prompt = format!("{round} {number} {}", "tell me more ".repeat(40));
                begin(penstock.data, CHAT, &streaming_chat("m", &prompt))
            })
            .collect();
        for stream in &mut streams {
            assert!(stream.read_response().unwrap().is_whole);
        }
    }
    eventually("all are recorded", SOON, || {
        metric(penstock, "penstock_requests_total") >= 5.0 * rounds as f64
    });
}

fn simulated_reload(penstock: &Penstock, yaml: &str) -> (u16, Value) {
    penstock.rewrite(yaml);
    let response = request(penstock.admin, "POST", "/reload?simulate=10m", &[], b"");
    (response.status, response.json())
}

#[test]
fn worse_configuration_is_refused_with_the_figures() {
    let (a, b) = (paced("a"), paced("b"));
    let good = format!("{GATE}{}", fleet(&[&a, &b], "models: [m]"));
    let penstock = Penstock::start(&good);
    send(&penstock, 12);
    let (status, report) = simulated_reload(&penstock, &good);
    assert_eq!(status, 200, "{report}");
    let simulation = &report["simulation"];
    assert_eq!(simulation["requests"], 60, "{simulation}");
    assert_eq!(simulation["regression"], Value::Null, "{simulation}");
    let figures = simulation["figures"].as_array().unwrap();
    assert!(figures.iter().any(|one| one["figure"] == "ttft_p99" && one["now"] == one["then"]));
    // One backend that takes one request at a time cannot serve five.
    let worse = format!("{GATE}{}", fleet(&[&a], "models: [m], max_in_flight: 1"));
    let (status, refused) = simulated_reload(&penstock, &worse);
    assert_eq!(status, 409, "{refused}");
    assert_eq!(refused["error"]["code"], "simulated_regression", "{refused}");
    let message = refused["error"]["message"].as_str().unwrap();
    assert!(message.contains("of 60 requests would not be served"), "{message}");
    assert!(penstock.admin("/config").text().contains("name: b"), "nothing has changed");
    assert_eq!(penstock.reload().status, 200, "a reload without a simulation is not refused");
}

#[test]
fn without_a_gate_or_traffic_nothing_is_simulated() {
    let a = paced("a");
    let plain = fleet(&[&a], "models: [m]");
    let penstock = Penstock::start(&plain);
    let (status, refused) = simulated_reload(&penstock, &format!("{GATE}{plain}"));
    assert_eq!((status, &refused["error"]["code"]), (409, &Value::from("not_simulated")));
    assert_eq!(penstock.reload().status, 200);
    let (status, refused) = simulated_reload(&penstock, &format!("{GATE}{plain}"));
    assert_eq!(status, 409, "{refused}");
    let message = refused["error"]["message"].as_str().unwrap();
    assert!(message.contains("0 requests are too few"), "{message}");
    let wrong = request(penstock.admin, "POST", "/reload?simulate=soon", &[], b"");
    assert_eq!(wrong.status, 400, "{}", wrong.text());
}
