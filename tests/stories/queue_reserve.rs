//! Room is kept for keys that hold less than their share: a request of one of them finds it at
//! once, and has a place in a queue that another key fills.

use penstock_mock::{Fault, Gate};

use super::queue::{JSON, ended, line_up, nothing_is_left, ok};
use crate::support::block_on;
use crate::support::client::{Client, chat};
use crate::support::fleet::{CHAT, Fleet, Setup};

const LARGE: &[(&str, &str)] = &[("authorization", "Bearer k1")];
const SMALL: &[(&str, &str)] = &[("authorization", "Bearer k2")];
const KEYS: &str = "auth: { keys: [{ name: large, key: k1 }, { name: small, key: k2 }] }";

/// An engine that takes four requests at a time and holds them until the gate opens.
fn held(size: usize) -> (Fleet, Gate) {
    let sections = format!("queue: {{ size: {size}, timeout: 20s }}\n{KEYS}");
    let setup = Setup { sections: &sections, backend: "max_in_flight: 4", ..Setup::default() };
    let fleet = Fleet::start(1, setup);
    let gate = Gate::new();
    fleet.a().script([0; 8].map(|_| Fault::Gate(gate.clone())));
    (fleet, gate)
}

fn send(fleet: &Fleet, text: &str, key: &[(&str, &str)]) -> Client {
    let mut client = Client::connect(fleet.penstock.data);
    let headers = [key, &[JSON]].concat();
    client.send("POST", CHAT, &headers, chat("m", text).to_string().as_bytes());
    client
}

#[test]
fn key_below_its_share_finds_room_and_a_place() {
    let (fleet, gate) = held(2);
    let mut clients = vec![send(&fleet, "small", SMALL)];
    block_on(gate.reached_by(1));
    for count in 2..=3 {
        clients.push(send(&fleet, "large", LARGE));
        block_on(gate.reached_by(count));
    }
    clients.push(line_up(&fleet, "large waits", LARGE));
    let mut displaced = line_up(&fleet, "large waits", LARGE);
    assert_eq!(fleet.metric("penstock_queue_held_back_total{model=\"m\"}"), 1.0);
    // It takes the place of the last one of the other key, then the room that was kept.
    clients.push(send(&fleet, "small", SMALL));
    block_on(gate.reached_by(4));
    let response = displaced.read_response().unwrap();
    assert_eq!((response.status, response.error_code().as_str()), (503, "queue_full"));
    gate.open();
    clients.iter_mut().for_each(ok);
    assert_eq!(ended(&fleet, "displaced").round(), 1.0);
    nothing_is_left(&fleet);
}

#[test]
fn key_that_is_alone_has_all_room() {
    let (fleet, gate) = held(2);
    let mut clients: Vec<Client> = (0..4).map(|_| send(&fleet, "large", LARGE)).collect();
    block_on(gate.reached_by(4));
    gate.open();
    clients.iter_mut().for_each(ok);
    fleet.wait_idle();
}
