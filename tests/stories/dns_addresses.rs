//! Backends behind a name with several addresses, as a Kubernetes headless service or Consul gives
//! them: each address is a backend, addresses come and go without a reload, and a DNS outage
//! changes nothing.

use std::net::TcpListener;
use std::time::Duration;

use penstock_mock::{EngineModel, Fault, Gate, MockEngine, MockSpec, Pace};
use serde_json::{Value, json};

use crate::support::client::{chat, request, streaming_chat};
use crate::support::command::{file, run};
use crate::support::dns_server::{DnsServer, Service, loopback};
use crate::support::engines::shares;
use crate::support::fleet::{CHAT, SOON, begin, find_metric, metric};
use crate::support::penstock::Penstock;
use crate::support::{block_on, eventually, free_address};

const NAME: &str = "engines.example";

fn start(last: u8, port: u16, pace: Pace) -> MockEngine {
    let spec = MockSpec { pace, ..MockSpec::new(&format!("e{last}"), [EngineModel::new("m")]) };
    block_on(MockEngine::start(spec, loopback(last, port))).unwrap()
}

/// Engines at `127.0.0.x` with one port, which is free at all of them.
fn engines(last: &[u8], pace: Pace) -> (u16, Vec<MockEngine>) {
    let is_free =
        |port: u16| last.iter().all(|one| TcpListener::bind(loopback(*one, port)).is_ok());
    let port =
        std::iter::repeat_with(|| free_address().port()).find(|port| is_free(*port)).unwrap();
    (port, last.iter().map(|one| start(*one, port, pace)).collect())
}

const FAST_CHECKS: &str = "health: { interval: 1s, unhealthy_interval: 100ms, slow_start: 0s }\n";

fn yaml(server: &DnsServer, strategy: &str, backend: &str) -> String {
    format!(
        "{}{FAST_CHECKS}routing: {{ strategy: {strategy} }}\nbackends: [{{ name: e, {backend} }}]",
        server.discovery()
    )
}

fn each(port: u16) -> String {
    format!("url: \"http://{NAME}:{port}\", resolve: each")
}

/// The names of the backends in `/fleet`.
fn names(penstock: &Penstock) -> Vec<String> {
    let fleet = penstock.admin("/fleet").json();
    let backends = fleet["backends"].as_array().unwrap().iter();
    backends.map(|backend| backend["name"].as_str().unwrap().to_owned()).collect()
}

fn member(last: u8, port: u16) -> String {
    format!("e@127.0.0.{last}:{port}")
}

fn wait_names(penstock: &Penstock, expected: &[String]) {
    eventually(&format!("the backends are {expected:?}"), SOON, || names(penstock) == expected);
}

fn group(penstock: &Penstock) -> Value {
    penstock.admin("/fleet").json()["groups"][0].clone()
}

#[test]
fn each_address_of_a_name_is_a_backend() {
    let server = DnsServer::start();
    server.set_host(NAME, &[2, 3]);
    let (port, engines) = engines(&[2, 3], Pace::at_once(8));
    let penstock = Penstock::start(&yaml(&server, "round_robin", &each(port)));
    assert_eq!(names(&penstock), [member(2, port), member(3, port)], "when it is ready");
    for _ in 0..10 {
        assert_eq!(penstock.chat("m").status, 200);
    }
    assert_eq!(shares(&engines.iter().collect::<Vec<_>>()), [5, 5]);
    let received = engines[0].received().pop().unwrap();
    let host = format!("{NAME}:{port}");
    assert_eq!(received.header("host"), Some(host.as_str()), "the Host header is that of the URL");
    let rows = group(&penstock);
    assert_eq!((&rows["name"], &rows["is_failing"]), (&json!("e"), &json!(false)));
    assert_eq!(rows["backends"], json!([member(2, port), member(3, port)]));
    // One of them is drained by hand; the other has its own health and load.
    let drained =
        request(penstock.admin, "POST", &format!("/backends/{}/drain", member(2, port)), &[], b"");
    assert_eq!(drained.status, 200, "{}", drained.text());
    for _ in 0..4 {
        assert_eq!(penstock.chat("m").status, 200);
    }
    assert_eq!(shares(&engines.iter().collect::<Vec<_>>()), [5, 9]);
    assert_eq!(metric(&penstock, "penstock_group_backends{group=\"e\"}"), 2.0);
}

#[test]
fn added_address_gets_requests_and_removed_one_drains() {
    let server = DnsServer::start();
    server.set_host(NAME, &[2]);
    let (port, mut engines) = engines(&[3], Pace::at_once(8));
    let slow = Pace { per_token: Duration::from_millis(50), ..Pace::at_once(100) };
    engines.insert(0, start(2, port, slow));
    let penstock = Penstock::start(&yaml(&server, "round_robin", &each(port)));
    let mut stream = begin(penstock.data, CHAT, &streaming_chat("m", "hello"));
    block_on(engines[0].wait_for(|counters| counters.events >= 3)).unwrap();
    server.set_host(NAME, &[2, 3]);
    wait_names(&penstock, &[member(2, port), member(3, port)]);
    let first = penstock.backend(&member(2, port));
    assert_eq!(first["in_flight"], 1, "what is known of the address that stays is kept: {first}");
    server.set_host(NAME, &[3]);
    wait_names(&penstock, &[member(3, port)]);
    let response = penstock.chat("m");
    assert_eq!(response.status, 200, "{}", response.text());
    assert_eq!(shares(&engines.iter().collect::<Vec<_>>()), [1, 1]);
    let response = stream.read_response().unwrap();
    assert!(response.is_whole && response.text().ends_with("data: [DONE]\n\n"), "it drains");
    assert_eq!(engines[0].counters().cancelled, 0);
    let log = penstock.log();
    assert_eq!(log.matches("addresses changed").count(), 3, "{log}");
}

#[test]
fn added_address_starts_slowly() {
    let server = DnsServer::start();
    server.set_host(NAME, &[2]);
    let (port, _engines) = engines(&[2, 3], Pace::at_once(8));
    let text = yaml(&server, "smart", &each(port)).replace("slow_start: 0s", "slow_start: 60s");
    let penstock = Penstock::start(&text);
    let share = |last: u8| {
        let name = member(last, port);
        metric(&penstock, &format!("penstock_backend_slow_start_share{{backend=\"{name}\"}}"))
    };
    assert!(share(2) > 0.99, "all backends of a start begin alike");
    server.set_host(NAME, &[2, 3]);
    wait_names(&penstock, &[member(2, port), member(3, port)]);
    eventually("the new one starts slowly", SOON, || share(3) < 0.5);
    assert!(share(2) > 0.99);
}

#[test]
fn failed_lookup_keeps_the_addresses() {
    let server = DnsServer::start();
    server.set_host(NAME, &[2]);
    let (port, engines) = engines(&[2], Pace::at_once(8));
    let penstock = Penstock::start(&yaml(&server, "smart", &each(port)));
    let failed =
        || find_metric(&penstock, "penstock_group_lookups_total{group=\"e\",result=\"failed\"}");
    server.set_failing(true);
    eventually("three lookups fail", SOON, || failed().is_some_and(|count| count >= 3.0));
    assert_eq!(names(&penstock), [member(2, port)]);
    assert_eq!(penstock.chat("m").status, 200);
    assert_eq!(group(&penstock)["is_failing"], true);
    // A name without addresses is a failure, too.
    server.set_failing(false);
    eventually("lookups recover", SOON, || group(&penstock)["is_failing"] == false);
    server.set_host(NAME, &[]);
    eventually("lookups fail again", SOON, || group(&penstock)["is_failing"] == true);
    assert_eq!(penstock.chat("m").status, 200);
    assert_eq!(engines[0].counters().requests, 2);
    let log = penstock.log();
    assert_eq!(log.matches("name resolution failed").count(), 2, "once per outage: {log}");
    assert_eq!(log.matches("name resolution recovered").count(), 1, "{log}");
}

#[test]
fn name_without_addresses_has_no_backend_yet() {
    let server = DnsServer::start();
    let (port, engines) = engines(&[2], Pace::at_once(8));
    let text = yaml(&server, "smart", &each(port));
    let config = file("penstock.yaml", &text);
    let checked = run(["check".as_ref(), "--config".as_ref(), config.as_os_str()]);
    assert_eq!(checked.code, Some(0), "{}", checked.stderr);
    let shown = format!("a backend for each address of {NAME}");
    assert!(checked.stdout.contains(&shown), "{}", checked.stdout);
    let penstock = Penstock::start_unready(&text);
    eventually("the data port listens", SOON, || {
        std::net::TcpStream::connect(penstock.data).is_ok()
    });
    let refused = penstock.chat("m");
    assert_eq!((refused.status, refused.error_code()), (503, "discovery_pending".to_owned()));
    assert!(names(&penstock).is_empty() && group(&penstock)["backends"] == json!([]));
    assert!(penstock.log().contains("no address yet"), "{}", penstock.log());
    server.set_host(NAME, &[2]);
    wait_names(&penstock, &[member(2, port)]);
    assert_eq!(penstock.chat("m").status, 200);
    assert_eq!(engines[0].counters().requests, 1);
}

#[test]
fn srv_records_give_port_priority_and_weight() {
    let server = DnsServer::start();
    let ports: Vec<u16> = (0..3).map(|_| free_address().port()).collect();
    let engines: Vec<MockEngine> =
        (0..3).map(|index| start(2, ports[index], Pace::at_once(8))).collect();
    server.set_host("one.example", &[2]);
    let service = |index: usize, priority, weight| Service {
        priority,
        weight,
        port: ports[index],
        target: "one.example".to_owned(),
    };
    let name = "_http._tcp.engines.example";
    server.set_services(name, &[service(0, 10, 20), service(1, 10, 60), service(2, 30, 0)]);
    let backend = format!("url: \"http://{NAME}/v1\", srv: {name}");
    let penstock = Penstock::start(&yaml(&server, "round_robin", &backend));
    let shown = |index: usize| penstock.backend(&member(2, ports[index]));
    assert_eq!(shown(0)["priority"], 50);
    assert_eq!(shown(2)["priority"], 70);
    server.set_services(name, &[service(0, 10, 20), service(1, 10, 60)]);
    eventually("the third is gone", SOON, || names(&penstock).len() == 2);
    for _ in 0..8 {
        assert_eq!(penstock.chat("m").status, 200);
    }
    assert_eq!(shares(&[&engines[0], &engines[1]]), [2, 6]);
    let received = engines[0].received().pop().unwrap();
    assert_eq!(received.header("host"), Some(NAME), "not the name of the service or of its target");
}

#[test]
fn addresses_over_the_limit_are_not_used() {
    let server = DnsServer::start();
    let many: Vec<u8> = (2..102).collect();
    server.set_host(NAME, &many);
    let text = yaml(&server, "smart", &each(9)).replace("100ms }", "100ms, max_addresses: 90 }");
    let penstock = Penstock::start_unready(&text);
    eventually("the admin port listens", SOON, || {
        std::net::TcpStream::connect(penstock.admin).is_ok()
    });
    eventually("the addresses are backends", SOON, || {
        find_metric(&penstock, "penstock_group_backends{group=\"e\"}") == Some(90.0)
    });
    assert!(server.queries_over_tcp() > 0, "the response does not fit a packet");
    assert_eq!(metric(&penstock, "penstock_group_unused_addresses{group=\"e\"}"), 10.0);
    assert!(penstock.log().contains("discovery.max_addresses"), "{}", penstock.log());
}

/// One backend with the addresses of a name together: its idle connections do not outlive the
/// address.
#[test]
fn moved_address_gets_all_new_requests() {
    let server = DnsServer::start();
    server.set_host(NAME, &[2]);
    let (port, engines) = engines(&[2, 3], Pace::at_once(8));
    let backend = format!("url: \"http://{NAME}:{port}\", resolve: together");
    let penstock = Penstock::start(&yaml(&server, "smart", &backend));
    let gate = Gate::new();
    engines[0].script([Fault::Gate(gate.clone())]);
    let mut in_use = begin(penstock.data, CHAT, &chat("m", "hello"));
    block_on(gate.reached_by(1));
    assert_eq!(penstock.chat("m").status, 200);
    assert_eq!(shares(&[&engines[0], &engines[1]]), [2, 0]);
    server.set_host(NAME, &[3]);
    eventually("the change is logged", SOON, || penstock.log().contains("addresses changed"));
    gate.open();
    assert_eq!(in_use.read_response().unwrap().status, 200);
    for _ in 0..5 {
        assert_eq!(penstock.chat("m").status, 200);
    }
    assert_eq!(
        shares(&[&engines[0], &engines[1]]),
        [2, 5],
        "no connection to the old address is used"
    );
}

#[test]
fn saved_fleet_of_a_name_is_explained() {
    let server = DnsServer::start();
    server.set_host(NAME, &[2, 3]);
    let (port, _engines) = engines(&[2, 3], Pace::at_once(8));
    let penstock = Penstock::start(&yaml(&server, "smart", &each(port)));
    let saved = file("fleet.json", penstock.admin("/fleet").text());
    let request = file("request.json", chat("m", "hello").to_string());
    let explained = run([
        "explain".as_ref(),
        "--config".as_ref(),
        penstock.config.as_os_str(),
        "--fleet".as_ref(),
        saved.as_os_str(),
        request.as_os_str(),
    ]);
    assert_eq!(explained.code, Some(0), "{}", explained.stderr);
    assert!(explained.stdout.contains(&member(2, port)), "{}", explained.stdout);
    assert!(explained.stdout.contains(&member(3, port)), "{}", explained.stdout);
    let doctor = run([
        "doctor".as_ref(),
        "--watch".as_ref(),
        "0s".as_ref(),
        "--config".as_ref(),
        penstock.config.as_os_str(),
    ]);
    assert!(doctor.stdout.contains("has 2 addresses, each is a backend"), "{}", doctor.stdout);
    assert!(doctor.stdout.contains(&member(3, port)), "{}", doctor.stdout);
}
