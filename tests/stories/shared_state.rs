//! Several penstocks share the limits of their clients through a Redis server: together they pass
//! no more than one would. When the server is killed no request fails, and when it is back they
//! share again.

use std::time::{Duration, Instant};

use penstock_mock::{Fault, Gate};

use crate::support::certificates::Authority;
use crate::support::client::{Client, Response, chat, request};
use crate::support::eventually;
use crate::support::fleet::{CHAT, Fleet, SOON, Setup, find_metric};
use crate::support::pace::pause_between_readings;
use crate::support::penstock::Penstock;
use crate::support::redis::{Pair, Redis, UP};

const KEY: (&str, &str) = ("authorization", "Bearer sk-key-of-the-test");
const JSON: (&str, &str) = ("content-type", "application/json");

/// Two penstocks before one engine, with limits for the key of the test.
fn limited(redis: &Redis, limits: &str, shared: &str) -> Pair {
    let sections = format!(
        "auth: {{ keys: [{{ name: k, key: sk-key-of-the-test, limits: {{ {limits} }} }}] }}\n"
    );
    Pair::start(redis, 1, Setup { sections: &sections, ..Setup::default() }, shared)
}

fn send(penstock: &Penstock) -> Response {
    let body = chat("m", "hello").to_string();
    request(penstock.data, "POST", CHAT, &[KEY, JSON], body.as_bytes())
}

#[test]
fn two_penstocks_pass_one_limit_together() {
    let Some(redis) = Redis::start("shared_state") else { return };
    // A generous timeout: on a busy machine a request must not go on without the server.
    let pair = limited(&redis, "requests_per_minute: 60", "timeout: 5s");
    let started = Instant::now();
    let statuses: Vec<u16> = std::thread::scope(|scope| {
        let clients: Vec<_> = (0..8)
            .map(|number| {
                let penstock = pair.both()[number % 2];
                scope.spawn(move || (0..20).map(|_| send(penstock).status).collect::<Vec<_>>())
            })
            .collect();
        clients.into_iter().flat_map(|client| client.join().unwrap()).collect()
    });
    let refilled = usize::try_from(started.elapsed().as_secs() + 1).unwrap();
    let passed = statuses.iter().filter(|status| **status == 200).count();
    assert!((60..=60 + refilled).contains(&passed), "{passed} and {refilled} refilled");
    assert!(statuses.iter().all(|status| [200, 429].contains(status)), "{statuses:?}");
    let refused = pair.both().map(send);
    for response in refused {
        if response.status == 429 {
            assert_eq!(response.header("x-ratelimit-remaining-requests"), Some("0"));
            assert!(response.header("retry-after").is_some());
        }
    }
    for penstock in pair.both() {
        assert_eq!(find_metric(penstock, "penstock_shared_state_errors_total"), Some(0.0));
    }
}

#[test]
fn limits_are_shared_over_tls() {
    let authority = Authority::new("redis");
    let Some(redis) = Redis::start_secured("shared_state", &authority) else { return };
    let start = |tls: &str| {
        let sections = format!(
            r#"
auth: {{ keys: [{{ name: k, key: sk-key-of-the-test, limits: {{ requests_per_minute: 4 }} }}] }}
shared_state: {{ redis: "rediss://{}", password: a-password, timeout: 5s{tls} }}
"#,
            redis.address
        );
        Fleet::start(1, Setup { sections: &sections, ..Setup::default() })
    };
    let trusting = format!(", tls: {{ ca: {} }}", authority.file.display());
    let (one, other) = (start(&trusting), start(&trusting));
    for fleet in [&one, &other] {
        fleet.wait_metric(UP, 1.0);
    }
    let statuses: Vec<u16> =
        (0..3).flat_map(|_| [&one, &other]).map(|fleet| send(&fleet.penstock).status).collect();
    assert_eq!(statuses, [200, 200, 200, 200, 429, 429]);
    // A certificate that the system does not trust is refused.
    let other = start("");
    let errors = "penstock_shared_state_errors_total";
    eventually("it is refused", SOON, || other.metric(errors) >= 1.0);
    assert_eq!(other.metric(UP), 0.0);
}

#[test]
fn killed_server_fails_no_request_and_is_shared_again() {
    let Some(redis) = Redis::start("shared_state") else { return };
    let pair = limited(&redis, "requests_per_minute: 200", "");
    let address = redis.address;
    let mut statuses = Vec::new();
    for number in 0..60 {
        if number == 30 {
            redis.signal("-KILL");
        }
        statuses.extend(pair.both().map(|penstock| send(penstock).status));
    }
    assert!(statuses.iter().all(|status| *status == 200), "{statuses:?}");
    pair.wait_up(0.0);
    for penstock in pair.both() {
        assert!(find_metric(penstock, "penstock_shared_state_errors_total").unwrap() > 0.0);
        assert_eq!(send(penstock).status, 200);
        let lines = penstock.log().matches("shared state unreachable").count();
        assert_eq!(lines, 1, "one line per change: {}", penstock.log());
    }
    drop(redis);
    let _again = Redis::start_at(address).unwrap();
    pair.wait_up(1.0);
    // One comes back each 300 ms.
    let left = |penstock| -> u32 {
        let response: Response = send(penstock);
        response.header("x-ratelimit-remaining-requests").unwrap().parse().unwrap()
    };
    let [first, second] = pair.both().map(left);
    assert!(second < first, "the other's request counts: {first}, {second}");
}

#[test]
fn server_that_hangs_delays_no_request() {
    let Some(redis) = Redis::start("shared_state") else { return };
    let pair = limited(&redis, "requests_per_minute: 1000", "timeout: 100ms");
    redis.signal("-STOP");
    for _ in 0..50 {
        assert_eq!(send(&pair.fleet.penstock).status, 200);
    }
    // Three requests wait, the others do not; each wait ends as an error. Other messages, and new
    // connections at growing intervals, add some.
    let errors = pair.fleet.metric("penstock_shared_state_errors_total");
    assert!((3.0..20.0).contains(&errors), "{errors}");
    pair.wait(&pair.fleet.penstock, UP, 0.0);
    redis.signal("-CONT");
    pair.wait_up(1.0);
}

fn begin(penstock: &Penstock) -> Client {
    let mut client = Client::connect(penstock.data);
    client.send("POST", CHAT, &[KEY, JSON], chat("m", "hello").to_string().as_bytes());
    client
}

/// Returns whether a response has arrived, without reading it.
fn has_response(client: &Client) -> bool {
    client.stream.set_nonblocking(true).unwrap();
    let peeked = client.stream.peek(&mut [0]);
    client.stream.set_nonblocking(false).unwrap();
    peeked.is_ok()
}

#[test]
fn slots_are_shared_and_those_of_a_killed_penstock_expire() {
    let Some(redis) = Redis::start("shared_state") else { return };
    let pair = limited(&redis, "in_flight: 1", "timeout: 5s, lease: 2s");
    let [first, second] = pair.both();
    let status = |penstock: &Penstock| send(penstock).status;
    assert_eq!(status(first), 200);
    eventually("the slot is free for the other", SOON, || status(second) == 200);
    eventually("the slot is free for the first", SOON, || status(first) == 200);
    let gate = Gate::default();
    pair.fleet.a().script([Fault::Gate(gate.clone())]);
    let mut held = begin(second);
    // The end of the last request is reported after its response: until then this one is refused.
    // The gate, not the number of open requests: the engine counts the last one for a moment more.
    eventually("the slot is taken again", SOON, || {
        if has_response(&held) {
            held = begin(second);
        }
        gate.arrivals() == 1
    });
    let in_flight = "penstock_key_in_flight{key=\"k\"}";
    pair.wait(second, in_flight, 1.0);
    // Longer than a lease: it is renewed while the request runs.
    let until = Instant::now() + Duration::from_secs(3);
    while Instant::now() < until {
        assert_eq!(status(first), 429);
        pause_between_readings(Duration::from_millis(100));
    }
    second.signal("KILL");
    eventually("its slot expires", 2 * SOON, || status(first) == 200);
    gate.open();
    drop(held);
}
