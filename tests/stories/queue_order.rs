//! The order of the requests that wait: by priority, in turns between keys or tenants, by deadline.

use penstock_mock::{Fault, Gate};

use super::queue::{JSON, QUEUE, busy, ended, line_up, nothing_is_left, ok, served};
use crate::support::block_on;
use crate::support::client::{Client, chat};
use crate::support::fleet::{CHAT, Fleet, Setup};

#[test]
fn important_requests_come_first_and_others_in_order() {
    let (fleet, gate, mut first) = busy(QUEUE);
    let mut clients: Vec<Client> =
        (0..10).map(|n| line_up(&fleet, &format!("plain {n}"), &[])).collect();
    clients.push(line_up(&fleet, "batch", &[("x-priority", "-1")]));
    clients.push(line_up(&fleet, "late", &[("x-slo-ttft-ms", "9000")]));
    clients.push(line_up(&fleet, "soon", &[("x-slo-ttft-ms", "8000")]));
    clients.push(line_up(&fleet, "important", &[("x-priority", "7")]));
    gate.open();
    ok(&mut first);
    clients.iter_mut().for_each(ok);
    let plain: Vec<String> = (0..10).map(|n| format!("plain {n}")).collect();
    let expected =
        [&["important", "soon", "late"].map(str::to_owned), &*plain, &["batch".to_owned()]];
    assert_eq!(served(fleet.a()), expected.concat());
    nothing_is_left(&fleet);
}

#[test]
fn keys_take_turns_by_weight() {
    let keys = "auth: { keys: [{ name: much, key: k1 }, { name: little, key: k2 }, { name: paid, key: k3, weight: 2 }] }";
    let setup = Setup {
        sections: &format!("{QUEUE}\n{keys}"),
        backend: "max_in_flight: 1",
        ..Setup::default()
    };
    let fleet = Fleet::start(1, setup);
    let gate = Gate::new();
    fleet.a().script([Fault::Gate(gate.clone())]);
    let key = |name: &str| format!("Bearer {name}");
    let mut first = Client::connect(fleet.penstock.data);
    let body = chat("m", "first").to_string();
    first.send("POST", CHAT, &[JSON, ("authorization", &key("k1"))], body.as_bytes());
    block_on(gate.reached_by(1));
    let mut clients = Vec::new();
    for (name, count) in [("k1", 24), ("k2", 4), ("k3", 8)] {
        for _ in 0..count {
            clients.push(line_up(&fleet, name, &[("authorization", &key(name))]));
        }
    }
    gate.open();
    ok(&mut first);
    clients.iter_mut().for_each(ok);
    let order = served(fleet.a());
    let count = |name: &str| order[..16].iter().filter(|one| *one == name).count();
    let counts = ["k1", "k2", "k3"].map(count);
    assert!(counts[0].abs_diff(4) <= 1 && counts[2].abs_diff(8) <= 1, "{counts:?} {order:?}");
    nothing_is_left(&fleet);
}

#[test]
fn tenants_take_turns_where_their_header_is_trusted() {
    for (fairness_id, early) in [("off", 0), ("header", 2)] {
        let sections = format!("queue: {{ size: 100, timeout: 20s, fairness_id: {fairness_id} }}");
        let (fleet, gate, mut first) = busy(&sections);
        let mut clients = Vec::new();
        for (name, count) in [("much", 4), ("little", 2)] {
            for _ in 0..count {
                let tenant = [("x-gateway-inference-fairness-id", name)];
                clients.push(line_up(&fleet, name, &tenant));
            }
        }
        gate.open();
        ok(&mut first);
        clients.iter_mut().for_each(ok);
        let order = served(fleet.a());
        let found = order[..4].iter().filter(|one| *one == "little").count();
        assert_eq!((found, order.len()), (early, 6), "{fairness_id}: {order:?}");
        let received = fleet.a().received();
        let named = |name: &str| received.iter().any(|request| request.header(name).is_some());
        assert!(named("host") && !named("x-gateway-inference-fairness-id"));
        nothing_is_left(&fleet);
    }
}

#[test]
fn important_request_displaces_another() {
    let (fleet, gate, mut first) = busy("queue: { size: 1, timeout: 20s }");
    let mut plain = line_up(&fleet, "plain", &[]);
    let mut important = Client::connect(fleet.penstock.data);
    let body = chat("m", "important").to_string();
    important.send("POST", CHAT, &[JSON, ("x-priority", "1")], body.as_bytes());
    let response = plain.read_response().unwrap();
    assert_eq!((response.status, response.error_code().as_str()), (503, "queue_full"));
    assert!(response.header("retry-after").is_some());
    gate.open();
    ok(&mut first);
    ok(&mut important);
    assert_eq!(served(fleet.a()), ["important"]);
    assert_eq!(ended(&fleet, "displaced").round(), 1.0);
    nothing_is_left(&fleet);
}

#[test]
fn keys_take_no_place_that_they_may_not_have() {
    let keys = "auth: { keys: [{ name: plain, key: k1 }, { name: loud, key: k2 }, { name: high, key: k3, max_priority: 7 }] }";
    let setup = Setup {
        sections: &format!("{QUEUE}\nobjectives: {{ gold: {{ priority: 50 }} }}\n{keys}"),
        backend: "max_in_flight: 1",
        ..Setup::default()
    };
    let fleet = Fleet::start(1, setup);
    let gate = Gate::new();
    fleet.a().script([Fault::Gate(gate.clone())]);
    let mut first = Client::connect(fleet.penstock.data);
    let body = chat("m", "first").to_string();
    first.send("POST", CHAT, &[JSON, ("authorization", "Bearer k1")], body.as_bytes());
    block_on(gate.reached_by(1));
    let lower = [("authorization", "Bearer k1"), ("x-priority", "-1")];
    let mut clients = vec![
        line_up(&fleet, "lower", &lower),
        line_up(&fleet, "plain", &[("authorization", "Bearer k1")]),
    ];
    for claim in [("x-priority", "100"), ("x-gateway-inference-objective", "gold")] {
        clients.push(line_up(&fleet, "loud", &[("authorization", "Bearer k2"), claim]));
    }
    let high = [("authorization", "Bearer k3"), ("x-priority", "100")];
    clients.push(line_up(&fleet, "high", &high));
    gate.open();
    ok(&mut first);
    clients.iter_mut().for_each(ok);
    let order = served(fleet.a());
    assert_eq!((order[0].as_str(), order[4].as_str()), ("high", "lower"), "{order:?}");
    let plain = order.iter().position(|one| one == "plain").unwrap();
    assert!(plain <= 2, "keys take turns: {order:?}");
    nothing_is_left(&fleet);
}
