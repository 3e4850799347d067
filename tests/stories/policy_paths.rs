//! Requests that penstock does not read or that are for one backend (passthrough, WebSockets,
//! stored responses, commands of Ollama clients) stay in the zones of every policy of their key,
//! and so do those to the members of a group.

use penstock_mock::{EngineModel, Flavour, MockEngine, MockSpec};
use ring::digest::{SHA256, digest};
use serde_json::json;

use super::policies::{PRIVATE, SECRET, Zones, engine, saw_nothing};
use crate::support::client::{Client, Response, chat, post, request};
use crate::support::dns_server::{DnsServer, loopback};
use crate::support::engines::{backend, start};
use crate::support::fleet::CHAT;
use crate::support::free_address;
use crate::support::http2::Http2;
use crate::support::open_engine::OpenEngine;
use crate::support::penstock::Penstock;

const PASSTHROUGH: &str = "routing: { strategy: priority_only, passthrough: { \"/near/*\": near, \
                           \"/far/*\": far, \"/by/*\": by-model } }\n";
const WISH: (&str, &str) = ("x-penstock-policy", "private");

/// Engines that serve any path, at home and away.
struct Open {
    near: OpenEngine,
    far: OpenEngine,
    penstock: Penstock,
}

impl Open {
    fn start(sections: &str) -> Self {
        let (near, far) = (OpenEngine::start("near"), OpenEngine::start("far"));
        let items = near.item("zone: home, priority: 90, models: [m, n]")
            + &far.item("zone: away, priority: 1, models: [m, n]");
        let penstock = Penstock::start(&format!("{PASSTHROUGH}{sections}backends:\n{items}"));
        let open = Self { near, far, penstock };
        open.near.take_requests();
        open.far.take_requests();
        open
    }

    fn send(&self, method: &str, path: &str, headers: &[(&str, &str)], body: &str) -> Response {
        let json = [("content-type", "application/json")];
        let headers = [&json, headers].concat();
        request(self.penstock.data, method, path, &headers, body.as_bytes())
    }

    fn upgrade(&self, path: &str, more: &str) -> u16 {
        let mut client = Client::connect(self.penstock.data);
        let fields = "Connection: Upgrade\r\nUpgrade: websocket\r\nSec-WebSocket-Version: 13\r\n\
                      Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n";
        client
            .send_bytes(format!("GET {path} HTTP/1.1\r\nhost: t\r\n{fields}{more}\r\n").as_bytes());
        client.read_status()
    }

    fn far_saw_nothing(&self, why: &str) {
        assert_eq!(self.far.take_requests(), Vec::<String>::new(), "{why}");
    }
}

#[test]
fn unread_paths_stay_in_every_zone_of_their_key() {
    let open = Open::start(PRIVATE);
    for (method, path) in [("POST", "/far/files"), ("GET", "/far/x?model=n"), ("PUT", "/far/y")] {
        let response = open.send(method, path, &[], SECRET);
        assert_eq!((response.status, response.error_code().as_str()), (503, "no_backend_in_zone"));
        assert_eq!(response.header("x-should-retry"), Some("false"));
        assert_eq!(response.header("retry-after"), None);
        let text = response.text();
        assert!(text.contains("'far' is not in a zone") && text.contains("(home)"), "{text}");
        open.far_saw_nothing(path);
    }
    assert_eq!(open.send("POST", "/near/files", &[], SECRET).status, 200);
    for (path, body) in [
        ("/by/a", r#"{"model": "m"}"#),
        ("/by/a?model=m", ""),
        ("/by/models/m:generateContent", ""),
        ("/by/models/%6d", ""),
        ("/by/deployments/M/x", "{}"),
    ] {
        let response = open.send("POST", path, &[], body);
        assert_eq!(response.status, 200, "{path}: {}", response.text());
        open.far_saw_nothing(path);
    }
    for (path, body) in [
        ("/by/a?model=n", r#"{"model": "m"}"#),
        ("/by/models/m", r#"{"model": "n"}"#),
        ("/by/a?model=m&model=n", ""),
    ] {
        open.send("POST", path, &[], body);
        open.far_saw_nothing(path);
    }
    assert_eq!(open.send("POST", "/by/a", &[], r#"{"model": "n"}"#).json()["served_by"], "far");
}

#[test]
fn websockets_stay_in_the_zone() {
    let open = Open::start(PRIVATE);
    assert_eq!(open.upgrade("/far/ws", ""), 503);
    for path in ["/near/ws", "/by/realtime?model=m", "/by/realtime?model=M%3Alatest"] {
        assert_eq!(open.upgrade(path, ""), 101, "{path}");
    }
    open.far_saw_nothing("it was preferred");
    assert_eq!(open.upgrade("/by/realtime?model=n", ""), 101);
    assert_eq!(open.far.take_requests().len(), 1, "no policy is about n");
}

#[test]
fn unread_requests_may_name_a_policy() {
    let open =
        Open::start("policies: [{ name: private, models: [none], zones: [home], keys: [k] }]\n");
    let path = "/far/files";
    assert_eq!(open.send("POST", path, &[], SECRET).status, 200, "none applies");
    open.far.take_requests();
    assert_eq!(open.send("POST", path, &[WISH], SECRET).status, 503);
    assert_eq!(open.upgrade("/far/ws", "X-Penstock-Policy: private\r\n"), 503);
    assert_eq!(open.upgrade("/by/ws?model=n", "X-Penstock-Policy: private\r\n"), 101);
    let unknown = open.send("GET", "/v1/responses/resp_none", &[WISH], "");
    assert_eq!(unknown.status, 404, "{}", unknown.text());
    open.far_saw_nothing("the request named the policy");
    for wrong in [("x-penstock-policy", "nope"), ("x-penstock-strict", "maybe")] {
        for path in ["/near/x", "/v1/responses/resp_none"] {
            assert_eq!(open.send("GET", path, &[wrong], "").status, 400, "{wrong:?}");
        }
    }
    open.far_saw_nothing("an invalid wish");
}

#[test]
fn stored_responses_are_not_searched_for_outside() {
    let open = Open::start(PRIVATE);
    let make = |model: &str| {
        let body = json!({"model": model, "input": SECRET});
        post(open.penstock.data, "/v1/responses", &body).json()["id"].as_str().unwrap().to_owned()
    };
    let (home, away) = (make("m"), make("n"));
    assert_eq!((&home[..9], &away[..8]), ("resp_near", "resp_far"));
    open.far.take_requests();
    for path in ["/v1/responses/resp_1", "/v1/responses/resp_1/input_items"] {
        open.send("GET", path, &[], "");
        open.far_saw_nothing("an unknown id");
    }
    assert_eq!(open.send("GET", &format!("/v1/responses/{home}"), &[], "").status, 200);
    // The secret goes on at home, also after a response from elsewhere.
    for previous in [&home, &away] {
        for more in [json!({"previous_response_id": previous}), json!({"conversation": previous})] {
            let mut body = json!({"model": "m", "input": SECRET});
            body.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
            post(open.penstock.data, "/v1/responses", &body);
            open.far_saw_nothing("the backend of the earlier response");
        }
    }
    let own = open.send("GET", &format!("/v1/responses/{away}"), &[], "");
    assert_eq!(own.json()["served_by"], "far", "a response stays where it was made");
}

fn ollama(name: &str) -> MockEngine {
    let models = ["m", "n"].map(EngineModel::new);
    start(MockSpec { flavour: Flavour::Ollama, ..MockSpec::new(name, models) })
}

#[test]
fn commands_of_ollama_clients_stay_in_the_zone() {
    let (near, far) = (ollama("near"), ollama("far"));
    let items =
        backend(&near, "engine: ollama, zone: home") + &backend(&far, "engine: ollama, zone: away");
    let managed = "ollama: { manage_models: true }\n";
    let penstock = Penstock::start(&format!("{managed}{PRIVATE}backends:\n{items}"));
    let hex: String = digest(&SHA256, SECRET.as_bytes())
        .as_ref()
        .iter()
        .map(|byte| format!("{byte:02x}"))
        .collect();
    let blob = format!("/api/blobs/sha256:{hex}");
    let send = |method: &str, path: &str, body: &str| {
        request(penstock.data, method, path, &[], body.as_bytes())
    };
    let create = json!({"model": "new", "from": "m", "system": SECRET}).to_string();
    for (method, path, body) in [
        ("POST", "/api/pull", r#"{"model": "x"}"#),
        ("POST", "/api/create", &create),
        ("POST", "/api/copy", r#"{"source": "m", "destination": "y"}"#),
        ("POST", "/api/push", r#"{"model": "m"}"#),
        ("POST", &blob, SECRET),
        ("HEAD", &blob, ""),
        ("POST", "/api/show", r#"{"model": "m"}"#),
        ("POST", "/api/generate", r#"{"model": "m", "keep_alive": 0}"#),
        ("DELETE", "/api/delete", r#"{"model": "y"}"#),
    ] {
        if method == "HEAD" {
            let mut client = Client::connect(penstock.data);
            client.send(method, path, &[], b"");
            assert_eq!(client.read_head().unwrap().0, 200);
        } else {
            let response = send(method, path, body);
            assert!(response.status < 300, "{path}: {}", response.text());
        }
        saw_nothing(&far, path);
    }
    let served: Vec<String> = near.received().iter().map(|one| one.path().to_owned()).collect();
    for path in ["/api/pull", "/api/create", &blob, "/api/delete"] {
        assert!(served.iter().any(|one| one == path), "{path}: {served:?}");
    }
    for (path, body) in
        [("/api/pull?backend=far", r#"{"model": "x"}"#), ("/api/create?backend=far", &*create)]
    {
        let refused = send("POST", path, body);
        assert_eq!(refused.status, 503, "{}", refused.text());
        saw_nothing(&far, path);
    }
    let all = "policies: [{ name: private, models: [m], zones: [nowhere] }]\n";
    let penstock = Penstock::start(&format!("{managed}{all}backends:\n{items}"));
    let before = near.received().len();
    for path in ["/api/pull", "/api/show"] {
        let refused = request(penstock.data, "POST", path, &[], br#"{"model": "m"}"#);
        assert_eq!(refused.status, 503, "{path}: {}", refused.text());
        assert!(refused.text().contains("zone"), "{path}: {}", refused.text());
    }
    saw_nothing(&far, "no zone is admitted");
    assert_eq!(near.received().len(), before);
}

#[test]
fn members_of_a_group_have_the_zone_of_the_file() {
    const NAME: &str = "engines.example";
    let server = DnsServer::start();
    server.set_host(NAME, &[2]);
    let port = free_address().port();
    let spec = MockSpec::new("e2", [EngineModel::new("m")]);
    let member = crate::support::block_on(MockEngine::start(spec, loopback(2, port))).unwrap();
    for (zone, is_served) in [("", false), (", zone: away", false), (", zone: local", true)] {
        let group =
            format!("  - {{ name: e, url: \"http://{NAME}:{port}\", resolve: each{zone} }}\n");
        let policy = "policies: [{ name: private, zones: [local] }]\n";
        let penstock =
            Penstock::start(&format!("{}{policy}backends:\n{group}", server.discovery()));
        let response = penstock.post(CHAT, &chat("m", SECRET));
        match is_served {
            true => assert_eq!(response.status, 200, "{}", response.text()),
            false => {
                assert_eq!(
                    response.error_code(),
                    "no_backend_in_zone",
                    "{zone}: {}",
                    response.text()
                );
                saw_nothing(&member, "its address is loopback, but DNS says so");
            }
        }
    }
}

#[test]
fn policies_hold_over_http2() {
    let (near, far) = (engine("near"), engine("far"));
    let items = backend(&near, "zone: home, models: [m]")
        + &backend(&far, "zone: away, priority: 1, models: [m]");
    let address = free_address();
    let listener = format!("{{ address: \"{address}\", http2: true }}");
    let penstock =
        Penstock::start_listening(&[listener], "", &format!("{PRIVATE}backends:\n{items}"));
    let client = Http2::connect(address);
    for model in ["m", "M:latest"] {
        assert_eq!(client.post(CHAT, &chat(model, SECRET)).status, 200, "{model}");
    }
    let twice = [("x-penstock-policy", "private"), ("x-penstock-policy", "private")];
    let body = chat("m", SECRET).to_string();
    let (refused, _) = client.post_bytes(CHAT, &twice, body.as_bytes());
    assert_eq!(refused.status, 400, "{}", refused.text());
    saw_nothing(&far, "HTTP/2");
    drop(penstock);
}

#[test]
fn keys_have_their_own_policies() {
    let keys = "auth: { keys: [{ name: team-a, key: 0123456789abcdef000a }, { name: b, key: 0123456789abcdef000b }] }\n";
    let policies = "policies: [{ name: private, keys: [\"team-*\"], zones: [home] }]\n";
    let zones = Zones::start(&format!("routing: {{ strategy: priority_only }}\n{keys}{policies}"));
    let of = |key: &'static str| [("authorization", key)];
    for model in ["m", "n", "M"] {
        assert_eq!(zones.chat(model, &of("Bearer 0123456789abcdef000a")).status, 200);
        zones.far_saw_nothing(model);
    }
    assert_eq!(zones.chat("m", &of("Bearer 0123456789abcdef000b")).status, 200);
    assert_eq!(zones.far.received().len(), 1, "the policy is about another key");
}
