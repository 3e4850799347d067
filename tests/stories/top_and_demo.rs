//! An operator watches a fleet in a terminal or a browser and sees failing backends and errors of
//! clients; the page is self-contained and cannot be abused.

use std::io::{BufRead, BufReader};
use std::net::SocketAddr;
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use serde_json::{Value, json};

use crate::support::certificates::Authority;
use crate::support::client::{self, Client, Response, request};
use crate::support::command::{file, run, run_with};
use crate::support::engines::{backend, engine};
use crate::support::fleet::{Fleet, Setup};
use crate::support::pace::pause_between_requests;
use crate::support::penstock::{Penstock, binary, scratch};
use crate::support::{eventually, free_address};

fn top(penstock: &Penstock, more: &[&str]) -> crate::support::command::Ran {
    let admin = format!("http://{}", penstock.admin);
    let arguments = ["top", "--once", "--interval", "1s", "--admin", &admin];
    run(arguments.iter().chain(more))
}

#[test]
fn top_prints_a_frame() {
    let fleet = Fleet::start(2, Setup { backend: "max_in_flight: 8", ..Setup::default() });
    request(fleet.penstock.admin, "POST", "/backends/b/drain", &[], b"");
    let is_over = AtomicBool::new(false);
    let frame = std::thread::scope(|scope| {
        let traffic = scope.spawn(|| {
            // Traffic between the two polls of the view.
            while !is_over.load(Ordering::Relaxed) {
                assert_eq!(fleet.stream().status, 200);
                for _ in 0..2 {
                    assert_eq!(fleet.penstock.chat("unknown").status, 404);
                }
                pause_between_requests(Duration::from_millis(10));
            }
        });
        let frame = top(&fleet.penstock, &[]);
        is_over.store(true, Ordering::Relaxed);
        traffic.join().unwrap();
        frame
    });
    assert_eq!((frame.code, frame.stderr.as_str()), (Some(0), ""));
    let text = &frame.stdout;
    let line = |start: &str| {
        let mut lines = text.lines();
        lines.find(|line| line.starts_with(start)).unwrap_or_else(|| panic!("{start} in\n{text}"))
    };
    assert!(line("penstock ").contains(&fleet.penstock.admin.to_string()), "{text}");
    let requests = line("requests/s");
    assert!(!requests.starts_with("requests/s 0 "), "{requests}");
    assert!(requests.contains("client 6"), "two thirds of them are refused: {requests}");
    assert!(!line("ttft p50").starts_with("ttft p50 -"), "{text}");
    let a: Vec<&str> = line("a ").split_whitespace().collect();
    assert_eq!(&a[..3], ["a", "ready", "auto"]);
    // A request may be in flight at the time of the frame.
    assert!(["0/8", "1/8"].contains(&a[3]), "{a:?}");
    assert_ne!(a[5], "0", "attempts: {a:?}");
    assert!(line("b ").contains("draining"), "{text}");
    assert!(line("errors/s").contains("model_not_found"), "{text}");
    assert!(text.chars().all(|c| c == '\n' || !c.is_control()), "plain text: {text:?}");
}

/// A listener with TLS that has no admin API: a verified connection ends in its 404.
#[test]
fn https_admin_url_is_verified() {
    let authority = Authority::new("the authority");
    let address = free_address();
    let tls = format!("tls: {{ {} }}", authority.issue("localhost").yaml());
    let listener = format!("{{ address: \"{address}\", {tls} }}");
    let _fleet = Fleet::start(1, Setup { listeners: &[listener], ..Setup::default() });
    let url = format!("https://localhost:{}", address.port());
    let top = ["top", "--once", "--admin", &url];
    let trusted = [("SSL_CERT_FILE", authority.file.to_str().unwrap())];
    let verified = run_with(top, b"", &trusted);
    assert!(verified.stderr.contains("returned 404"), "{}", verified.stderr);
    let stranger = Authority::new("another authority");
    let unverified = run_with(top, b"", &[("SSL_CERT_FILE", stranger.file.to_str().unwrap())]);
    assert_eq!(unverified.code, Some(1));
    assert!(unverified.stderr.contains("cannot connect"), "{}", unverified.stderr);
    assert!(unverified.stderr.contains("certificate"), "{}", unverified.stderr);
}

#[test]
fn top_without_a_terminal_prints_one_frame() {
    let fleet = Fleet::start(1, Setup::default());
    let admin = format!("http://{}", fleet.penstock.admin);
    let ran = run(["top", "--admin", &admin]);
    assert_eq!(ran.code, Some(0), "it ends: {}", ran.stderr);
    assert_eq!(ran.stdout.matches("IN FLIGHT").count(), 1, "{}", ran.stdout);
}

#[test]
fn demo_admin_port_can_be_chosen() {
    let (by_flag, by_variable) = (free_address(), free_address());
    for (arguments, variable, wanted) in [
        (vec!["--admin-listen".to_owned(), by_flag.to_string()], by_variable, by_flag),
        (Vec::new(), by_variable, by_variable),
    ] {
        let mut child = binary()
            .args(["demo", "--listen", "127.0.0.1:0"])
            .args(arguments)
            .env("PENSTOCK_ADMIN_LISTEN", variable.to_string())
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        let lines = BufReader::new(child.stdout.take().unwrap()).lines().map(Result::unwrap);
        let printed = lines.take_while(|line| !line.contains("Ctrl-C")).collect::<Vec<_>>();
        let (killed, ended) = (child.kill(), child.wait());
        let dashboard = format!("Dashboard: http://{wanted}/dashboard");
        assert!(printed.contains(&dashboard), "{printed:?}");
        assert!(printed.iter().any(|line| line.contains(": 0 failed, ")), "{printed:?}");
        assert!(printed.iter().any(|line| line.starts_with("curl -iN http://")), "{printed:?}");
        drop((killed, ended));
    }
}

#[test]
fn top_reports_connection_errors() {
    let unreachable = run(["top", "--once", "--admin", "http://127.0.0.1:9"]);
    assert_eq!(unreachable.code, Some(1));
    assert!(
        unreachable.stderr.contains("cannot connect to http://127.0.0.1:9"),
        "{}",
        unreachable.stderr
    );
    let one = engine("one", &["m"]);
    let token = file("token", "t0ken\n");
    let environment = [("PENSTOCK_ADMIN_TOKEN_FILE", token.to_str().unwrap())];
    let penstock = Penstock::start_with(&format!("backends:\n{}", backend(&one, "")), &environment);
    let without = top(&penstock, &[]);
    assert_eq!(without.code, Some(1));
    assert!(without.stderr.contains("401: send the token"), "{}", without.stderr);
    let with = top(&penstock, &["--admin-token-file", token.to_str().unwrap()]);
    assert_eq!(with.code, Some(0), "{}", with.stderr);
    assert_eq!(run(["top", "--interval", "2"]).code, Some(2), "a time has a unit");
}

/// Opens the page as a browser does from its address bar.
fn open(penstock: &Penstock, host: &str, site: &str) -> Response {
    let mut client = Client::connect(penstock.admin);
    let head = format!(
        "GET /dashboard HTTP/1.1\r\nhost: {host}\r\naccept: text/html\r\nsec-fetch-site: {site}\r\n\
         sec-fetch-mode: navigate\r\n\r\n"
    );
    client.send_bytes(head.as_bytes());
    client.read_response().unwrap()
}

#[test]
fn dashboard_is_a_self_contained_page() {
    let one = engine("one", &["m"]);
    let penstock = Penstock::start(&format!("backends:\n{}", backend(&one, "")));
    let host = penstock.admin.to_string();
    let page = open(&penstock, &host, "none");
    assert_eq!(page.status, 200);
    assert_eq!(page.header("content-type"), Some("text/html; charset=utf-8"));
    let policy = page.header("content-security-policy").unwrap();
    assert!(policy.starts_with("default-src 'none'; script-src 'nonce-"), "{policy}");
    for part in ["connect-src 'self'", "frame-ancestors 'none'", "base-uri 'none'"] {
        assert!(policy.contains(part), "{policy}");
    }
    assert!(!policy.contains("unsafe"), "{policy}");
    let nonce = policy.split("'nonce-").nth(1).unwrap().split('\'').next().unwrap();
    assert_eq!(page.text().matches(nonce).count(), 2, "style and script carry it");
    assert!(!page.text().contains("{{"), "nothing is left to fill in");
    let other = open(&penstock, &host, "none");
    assert_ne!(other.header("content-security-policy"), Some(policy), "each time another one");
    assert_eq!(open(&penstock, &host, "cross-site").status, 403);
    assert_eq!(open(&penstock, "evil.example", "none").status, 403);
    for path in
        ["/metrics", "/fleet", "/decisions?n=25", "/api/usage", "/usage?by=key&n=50&since=0d"]
    {
        let same = [("sec-fetch-site", "same-origin")];
        assert_eq!(request(penstock.admin, "GET", path, &same, b"").status, 200, "{path}");
    }
    assert_eq!(penstock.get("/dashboard").status, 404, "not on the data port");
}

#[test]
fn dashboard_data_needs_the_token() {
    let one = engine("secret-backend", &["secret-model"]);
    let token = file("token", "t0ken\n");
    let environment = [("PENSTOCK_ADMIN_TOKEN_FILE", token.to_str().unwrap())];
    let penstock = Penstock::start_with(&format!("backends:\n{}", backend(&one, "")), &environment);
    for host in [penstock.admin.to_string(), "penstock.example".to_owned()] {
        let page = open(&penstock, &host, "none");
        assert_eq!(page.status, 200, "{host}");
        assert!(!page.text().contains("secret"), "the page itself holds no data");
    }
    assert_eq!(open(&penstock, "penstock.example", "same-site").status, 403);
    let same = [("sec-fetch-site", "same-origin")];
    assert_eq!(request(penstock.admin, "GET", "/fleet", &same, b"").status, 401);
    let good = [("sec-fetch-site", "same-origin"), ("authorization", "Bearer t0ken")];
    let fleet = request(penstock.admin, "GET", "/fleet", &good, b"");
    assert_eq!(fleet.json()["backends"][0]["name"], json!("secret-backend"));
}

/// A running demo; dropping it ends the process.
struct Demo {
    child: Child,
    admin: SocketAddr,
}

impl Demo {
    /// Starts it, and reads what it prints up to the address of the dashboard.
    fn start(temporary: &std::path::Path) -> Self {
        let mut child = binary()
            .args(["demo", "--traffic", "--listen", "127.0.0.1:0"])
            .env("TMPDIR", temporary)
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        let mut lines = BufReader::new(child.stdout.take().unwrap()).lines().map(Result::unwrap);
        let admin = lines.find_map(|line| {
            let address = line.strip_prefix("Dashboard: http://")?.strip_suffix("/dashboard")?;
            Some(address.parse().unwrap())
        });
        let demo = Self { child, admin: admin.expect("the address of the dashboard is printed") };
        let rest: Vec<String> = lines.take_while(|line| !line.contains("Ctrl-C")).collect();
        let is_printed = |text: &str| rest.iter().any(|line| line.contains(text));
        assert!(is_printed(&format!("penstock top --admin http://{}", demo.admin)), "{rest:?}");
        assert!(is_printed("-H 'authorization: Bearer demo-"), "{rest:?}");
        demo
    }

    fn get(&self, path: &str) -> Response {
        client::get(self.admin, path)
    }

    fn has_metric(&self, start: &str) -> bool {
        let text = self.get("/metrics").text();
        text.lines().any(|line| line.starts_with(start) && !line.ends_with(" 0"))
    }
}

impl Drop for Demo {
    fn drop(&mut self) {
        let killed = self.child.kill();
        let ended = self.child.wait();
        drop((killed, ended));
    }
}

#[test]
fn demo_traffic_fills_every_section_and_leaves_nothing() {
    const TIMEOUT: Duration = Duration::from_secs(90);
    let temporary = scratch("demo");
    std::fs::create_dir_all(&temporary).unwrap();
    let mut demo = Demo::start(&temporary);
    let rows =
        |by: &str| demo.get(&format!("/usage?by={by}")).json()["rows"].as_array().unwrap().len();
    eventually("usage by key", TIMEOUT, || rows("key") == 3);
    assert_eq!(demo.get("/usage").json()["has_file"], true);
    eventually("usage by model", TIMEOUT, || rows("model") == 5);
    let operations = || -> Vec<Value> {
        let decisions = demo.get("/decisions").json();
        decisions["decisions"]
            .as_array()
            .unwrap()
            .iter()
            .map(|one| one["operation"].clone())
            .collect()
    };
    let wanted = ["chat", "messages", "responses", "embeddings", "ollama_chat", "ollama_generate"];
    eventually("decisions of three APIs", TIMEOUT, || {
        let seen = operations();
        wanted.iter().all(|operation| seen.iter().any(|one| one == operation))
    });
    for outcome in ["ok", "client", "cancel"] {
        let is_outcome = |line: &str| {
            line.starts_with("penstock_requests_total{")
                && line.contains(&format!("outcome=\"{outcome}\""))
        };
        let is_counted = || demo.get("/metrics").text().lines().any(is_outcome);
        eventually(&format!("requests that end as {outcome}"), TIMEOUT, is_counted);
    }
    eventually("the breaker of the replica opens", TIMEOUT, || {
        demo.has_metric("penstock_breaker_transitions_total{backend=\"text-2\",to=\"open\"")
    });
    eventually("the shadow compares", TIMEOUT, || {
        demo.has_metric("penstock_shadow_decisions_total{result=\"same\"")
    });
    eventually("models are in the memory of the Ollama", TIMEOUT, || {
        let fleet = demo.get("/fleet").json();
        let mut backends = fleet["backends"].as_array().unwrap().iter();
        backends.find(|one| one["name"] == "tools").unwrap()["models_in_memory"] == 2
    });
    let admin = format!("http://{}", demo.admin);
    let frame = run(["top", "--once", "--interval", "1s", "--admin", &admin]);
    assert_eq!(frame.code, Some(0), "{}", frame.stderr);
    assert!(frame.stdout.contains("text-2"), "{}", frame.stdout);
    let sent = Command::new("kill").args(["-s", "INT", &demo.child.id().to_string()]).status();
    assert!(sent.unwrap().success());
    let mut status = None;
    eventually("the demo ends", TIMEOUT, || {
        status = demo.child.try_wait().unwrap();
        status.is_some()
    });
    assert_eq!(status.unwrap().code(), Some(0));
    assert_eq!(std::fs::read_dir(&temporary).unwrap().count(), 0, "its ledger is removed");
    assert_eq!(run(["demo", "--traffic", "--once"]).code, Some(2));
}

#[test]
fn mock_engine_serves_its_models_until_it_is_stopped() {
    let address = free_address().to_string();
    let arguments = ["mock", "--listen", &address, "--name", "gpu", "--models", "m,n"];
    let mut child = binary().args(arguments).stdout(Stdio::piped()).spawn().unwrap();
    let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
    let printed = lines.next().unwrap().unwrap();
    assert_eq!(printed, format!("gpu listens on http://{address} with m, n"));
    let taken = run(["mock", "--listen", &address, "--models", "m"]);
    assert_eq!(taken.code, Some(1), "{}", taken.stdout);
    assert!(taken.stderr.contains(&format!("cannot listen on {address}")), "{}", taken.stderr);
    // Nothing is declared: the models are discovered, the response says which engine it is from.
    let penstock = Penstock::start(&format!("backends: [\"http://{address}\"]"));
    for model in ["m", "n"] {
        eventually("models are discovered", Duration::from_secs(5), || {
            penstock.chat(model).status == 200
        });
        let response = penstock.chat(model);
        assert!(response.text().contains("gpu"), "{}", response.text());
        assert_eq!(response.json()["usage"]["completion_tokens"], 40, "{}", response.text());
    }
    drop(penstock);
    let sent = Command::new("kill").args(["-s", "TERM", &child.id().to_string()]).status();
    assert!(sent.unwrap().success());
    assert_eq!(child.wait().unwrap().code(), Some(0));
    assert_eq!(run(["mock"]).code, Some(2), "without models");
}
