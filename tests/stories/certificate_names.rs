//! Client certificates that name a key: the certificate takes the place of the key, and one that
//! names none opens nothing.

use std::io::{Read, Write};

use crate::support::certificates::{Authority, Issued, Secured, secure};
use crate::support::client::chat;
use crate::support::command::run;
use crate::support::engines::{backend, engine};
use crate::support::free_address;
use crate::support::penstock::{Penstock, scratch};

/// Sends a chat over TLS with a bearer key. Returns the response as it came.
fn ask(stream: &mut Secured, key: &str) -> String {
    let body = chat("m", "hello").to_string();
    let head = format!(
        "POST /v1/chat/completions HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n\
         authorization: Bearer {key}\r\ncontent-length: {}\r\n\r\n",
        body.len()
    );
    stream.write_all(head.as_bytes()).unwrap();
    stream.write_all(body.as_bytes()).unwrap();
    let mut response = Vec::new();
    let read = stream.read_to_end(&mut response);
    assert!(read.is_ok() || !response.is_empty(), "{read:?}");
    String::from_utf8_lossy(&response).into_owned()
}

#[test]
fn certificate_names_the_key_of_its_client() {
    let (servers, clients) = (Authority::new("servers"), Authority::new("clients"));
    let issued = servers.issue("localhost");
    let engine = engine("one", &["m"]);
    let items = backend(&engine, "models: [m]");
    let store = scratch("keys.db");
    let path = store.display().to_string();
    let made = run(["keys", "create", "--name", "stored", "--store", &path].iter());
    assert_eq!(made.code, Some(0), "{}", made.stderr);
    for kind in ["subject", "san"] {
        let address = free_address();
        let tls = format!(
            "{}, client_ca: {}, client_certificates: optional",
            issued.yaml(),
            clients.file.display()
        );
        let listener = format!("{{ address: \"{address}\", tls: {{ {tls} }} }}");
        let log = scratch("access.log");
        let auth = format!(
            "auth: {{ client_certificates: {kind}, store: {path}, failures_per_minute: none,
              keys: [{{ name: filed, key: sk-filed-key-1 }},
                {{ name: old, key: sk-old-key-1, expires_at: 2024-01-01T00:00:00Z }},
                {{ name: narrow, key: sk-narrow-1, models: [x] }}] }}\n\
             access_log: {{ path: {} }}\nbackends:\n{items}",
            log.display()
        );
        let penstock = Penstock::start_listening(&[listener], "", &auth);
        let send = |own: Option<&Issued>, key: &str| {
            let config = servers.client(&["http/1.1"], own);
            ask(&mut secure(address, &config).unwrap(), key)
        };
        for (name, status, words) in [
            ("filed", "200", ""),
            ("stored", "200", ""),
            ("stranger", "401", "names no API key"),
            ("old", "401", "expired"),
            ("narrow", "403", "model_not_allowed"),
        ] {
            let own = clients.issue(name);
            for key in ["sk-filed-key-1", "sk-unknown"] {
                let response = send(Some(&own), key);
                let is_right = response.starts_with(&format!("HTTP/1.1 {status}"));
                assert!(is_right && response.contains(words), "{kind} {name}: {response}");
            }
        }
        assert!(send(None, "sk-filed-key-1").starts_with("HTTP/1.1 200"), "no certificate: a key");
        assert!(send(None, "sk-unknown").starts_with("HTTP/1.1 401"));
        drop(penstock);
        let log = std::fs::read_to_string(&log).unwrap();
        assert!(log.contains("\"filed\"") && log.contains("\"stored\""), "{log}");
    }
}

#[test]
fn names_need_a_listener_that_verifies() {
    let path = scratch("penstock.yaml");
    let yaml = "auth: { client_certificates: subject }\nbackends: [http://127.0.0.1:9]\n";
    std::fs::write(&path, yaml).unwrap();
    let ran = run(["check", "--config", &path.display().to_string()].iter());
    assert_eq!(ran.code, Some(2));
    assert!(ran.stderr.contains("server.listen[].tls.client_ca"), "{}", ran.stderr);
}
