//! Several penstocks before the same engines count each other's requests in flight, through a Redis
//! server: in decisions, in limits, and in their reports. The requests of a killed penstock are
//! forgotten. Without the server each counts alone.

use penstock_mock::{Fault, Gate};
use serde_json::json;

use crate::support::client::{Client, chat, is_ok};
use crate::support::eventually;
use crate::support::fleet::{CHAT, SOON, Setup, begin, yaml};
use crate::support::penstock::Penstock;
use crate::support::redis::{Pair, Redis, UP};

const OTHERS: &str = "penstock_backend_others_in_flight";

/// The least loaded engine, by penstock's own counts and what other penstocks report alone.
fn least_loaded<'a>() -> Setup<'a> {
    Setup {
        strategy: "weighted",
        routing: "preset: least-loaded, expose_decision: true",
        sections: "telemetry: { enabled: false }",
        ..Setup::default()
    }
}

/// A request whose response waits for the gate, and the backend that the penstock picked for it.
fn hold(pair: &Pair, penstock: &Penstock, gate: &Gate) -> (Client, &'static str) {
    let engines = &pair.fleet.engines;
    let given = |index: usize| engines[index].counters().requests;
    let before: Vec<usize> = (0..engines.len()).map(given).collect();
    engines.iter().for_each(|engine| engine.always(Some(Fault::Gate(gate.clone()))));
    let client = begin(penstock.data, CHAT, &chat("m", "hello"));
    let mut picked = None;
    eventually("an engine has it", SOON, || {
        picked = (0..engines.len()).find(|index| given(*index) > before[*index]);
        picked.is_some()
    });
    engines.iter().for_each(|engine| engine.always(None));
    (client, ["a", "b"][picked.unwrap()])
}

fn in_flight(penstock: &Penstock, backend: &str) -> u64 {
    penstock.backend(backend)["in_flight"].as_u64().unwrap()
}

fn others(penstock: &Penstock, backend: &str) -> u64 {
    penstock.backend(backend)["others_in_flight"].as_u64().unwrap_or(0)
}

fn wait_others(penstock: &Penstock, backend: &str, count: u64) {
    let what = format!("{count} requests of others on {backend}");
    eventually(&what, 2 * SOON, || others(penstock, backend) == count);
}

#[test]
fn decisions_count_the_requests_of_the_other_penstock() {
    let Some(redis) = Redis::start("several_penstocks") else { return };
    let pair = Pair::start(&redis, 2, least_loaded(), "");
    let [first, second] = pair.both();
    let gate = Gate::default();
    let (held, busy) = hold(&pair, first, &gate);
    let idle = if busy == "a" { "b" } else { "a" };
    wait_others(second, busy, 1);
    assert_eq!((others(second, idle), in_flight(second, busy)), (0, 0));
    for number in 0..10 {
        let response = second.chat("m");
        let picked = response.header("x-penstock-backend");
        assert_eq!(picked, Some(idle), "request {number}: the engines do not report their load");
    }
    pair.wait(second, &format!("{OTHERS}{{backend=\"{busy}\"}}"), 1.0);
    pair.wait(first, "penstock_shared_state_penstocks", 1.0);
    assert_eq!(first.backend("a")["other_penstocks"], json!(1));
    gate.open();
    drop(held);
    wait_others(second, busy, 0);
}

#[test]
fn limit_of_a_backend_is_that_of_all_penstocks() {
    let Some(redis) = Redis::start("several_penstocks") else { return };
    let setup = Setup {
        backend: "max_in_flight: 4",
        sections: "queue: { size: 10, timeout: 60s }",
        ..Setup::default()
    };
    let pair = Pair::start(&redis, 1, setup, "");
    let [first, second] = pair.both();
    let (gate, own) = (Gate::default(), Gate::default());
    let held: Vec<_> = (0..4).map(|_| hold(&pair, first, &gate)).collect();
    wait_others(second, "a", 4);
    let of_second: Vec<_> = (0..2).map(|_| hold(&pair, second, &own)).collect();
    eventually("half of the limit is its own", SOON, || in_flight(second, "a") == 2);
    let mut third = begin(second.data, CHAT, &chat("m", "hello"));
    pair.wait(second, "penstock_queue_requests", 1.0);
    wait_others(first, "a", 2);
    assert_eq!((in_flight(first, "a"), in_flight(second, "a")), (4, 2));
    // None of its requests ends: what the other reports wakes the queue.
    gate.open();
    assert_eq!(third.read_response().unwrap().status, 200);
    assert_eq!(in_flight(second, "a"), 2);
    own.open();
    drop((held, of_second));
}

#[test]
fn requests_of_a_killed_penstock_are_forgotten() {
    let Some(redis) = Redis::start("several_penstocks") else { return };
    let pair = Pair::start(&redis, 1, Setup::default(), "lease: 2s");
    let [first, second] = pair.both();
    let gate = Gate::default();
    let held = hold(&pair, second, &gate);
    wait_others(first, "a", 1);
    second.signal("KILL");
    wait_others(first, "a", 0);
    pair.wait(first, "penstock_shared_state_penstocks", 0.0);
    gate.open();
    drop(held);
}

#[test]
fn penstock_that_has_drained_is_forgotten_before_its_lease_ends() {
    let Some(redis) = Redis::start("several_penstocks") else { return };
    let pair = Pair::start(&redis, 1, Setup::default(), "lease: 10m");
    let [first, second] = pair.both();
    let gate = Gate::default();
    let held = hold(&pair, second, &gate);
    wait_others(first, "a", 1);
    second.signal("TERM");
    eventually("it drains", SOON, || !is_ok(second.admin, "/health/ready"));
    // It reports and reads in one exchange: what it reads now came with a report of its drain.
    let new = hold(&pair, first, &gate);
    wait_others(second, "a", 1);
    gate.open();
    drop((held, new));
    pair.wait(first, "penstock_shared_state_penstocks", 0.0);
    assert_eq!(others(first, "a"), 0);
}

#[test]
fn without_the_server_each_penstock_counts_alone() {
    let Some(redis) = Redis::start("several_penstocks") else { return };
    let pair = Pair::start(&redis, 2, least_loaded(), "lease: 1s");
    let [first, second] = pair.both();
    let gate = Gate::default();
    let (held, busy) = hold(&pair, first, &gate);
    wait_others(second, busy, 1);
    let address = redis.address;
    redis.signal("-KILL");
    pair.wait_up(0.0);
    wait_others(second, busy, 0);
    pair.wait(second, OTHERS, 0.0);
    drop(redis);
    let _again = Redis::start_at(address).unwrap();
    pair.wait_up(1.0);
    // The request is the same, and so is the report of it: a server that lost it gets it again.
    wait_others(second, busy, 1);
    gate.open();
    drop(held);
    for penstock in pair.both() {
        assert_eq!(penstock.chat("m").status, 200);
    }
}

#[test]
fn option_switches_it_off() {
    let Some(redis) = Redis::start("several_penstocks") else { return };
    let pair = Pair::start(&redis, 1, Setup::default(), "");
    let sections = redis.section("in_flight: false");
    let setup = Setup { sections: &sections, ..Setup::default() };
    let alone = Penstock::start(&yaml(&pair.fleet.engines, &["m"], setup));
    pair.wait(&alone, UP, 1.0);
    let [first, second] = pair.both();
    let held = hold(&pair, &alone, &Gate::default());
    // The two that share exchange several reports; the third has the same interval.
    for _ in 0..3 {
        let gate = Gate::default();
        let shared = hold(&pair, first, &gate);
        wait_others(second, "a", 1);
        assert_eq!(alone.backend("a")["others_in_flight"], json!(null), "it reads no report");
        gate.open();
        drop(shared);
        wait_others(second, "a", 0);
    }
    assert_eq!(others(first, "a"), 0, "it reports nothing");
    assert_eq!(first.backend("a")["other_penstocks"], json!(1));
    drop(held);
}
