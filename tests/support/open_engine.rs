//! An engine that serves any path: it stores responses, echoes unknown requests, and switches to a
//! protocol that echoes bytes. It is for requests that the mock engines refuse, because they know
//! operations only.

use std::collections::BTreeSet;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::{Arc, Mutex};
use std::thread;

use serde_json::{Value, json};

/// A running engine. It runs until the tests end.
pub struct OpenEngine {
    pub name: String,
    pub address: SocketAddr,
    state: Arc<Mutex<State>>,
}

#[derive(Default)]
struct State {
    /// `METHOD target` of everything but its list of models and its metrics.
    requests: Vec<String>,
    /// The subprotocols of WebSockets.
    protocols: Vec<String>,
    stored: BTreeSet<String>,
    made: usize,
}

impl OpenEngine {
    pub fn start(name: &str) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        let state = Arc::new(Mutex::new(State::default()));
        let (shared, own) = (Arc::clone(&state), name.to_owned());
        thread::spawn(move || {
            for stream in listener.incoming().map_while(Result::ok) {
                let (shared, own) = (Arc::clone(&shared), own.clone());
                thread::spawn(move || _ = serve(stream, &own, &shared));
            }
        });
        Self { name: name.to_owned(), address, state }
    }

    /// An item of `backends:`.
    pub fn item(&self, rest: &str) -> String {
        format!("  - {{ name: {}, url: \"http://{}\", {rest} }}\n", self.name, self.address)
    }

    /// The subprotocols that it was offered since the last call.
    pub fn take_protocols(&self) -> Vec<String> {
        std::mem::take(&mut self.state.lock().unwrap().protocols)
    }

    /// Returns the requests received since the last call.
    pub fn take_requests(&self) -> Vec<String> {
        std::mem::take(&mut self.state.lock().unwrap().requests)
    }
}

fn serve(stream: TcpStream, name: &str, state: &Mutex<State>) -> std::io::Result<()> {
    let mut reader = BufReader::new(stream.try_clone()?);
    let mut writer = stream;
    loop {
        let mut head = Vec::new();
        loop {
            let mut line = String::new();
            if reader.read_line(&mut line)? == 0 {
                return Ok(());
            }
            let line = line.trim_end().to_owned();
            if line.is_empty() {
                break;
            }
            head.push(line);
        }
        let field = |wanted: &str| {
            let lines = head.iter().filter_map(|line| line.split_once(": "));
            let mut found = lines.filter(|(name, _)| name.eq_ignore_ascii_case(wanted));
            found.next().map(|(_, value)| value.to_owned())
        };
        let mut body = vec![0; field("content-length").map_or(0, |length| length.parse().unwrap())];
        reader.read_exact(&mut body)?;
        let mut words = head[0].split(' ');
        let (method, target) = (words.next().unwrap(), words.next().unwrap());
        if let Some(protocol) = field("upgrade") {
            let mut state = state.lock().unwrap();
            state.requests.push(format!("UPGRADE {target}"));
            state.protocols.extend(field("sec-websocket-protocol"));
            drop(state);
            let accept = "sec-websocket-accept: s3pPLMBiTxaQ9kYGzzhZRbK+xOo=";
            write!(
                writer,
                "HTTP/1.1 101 Switching Protocols\r\nUpgrade: {protocol}\r\nConnection: Upgrade\r\n\
                 X-Request-Id: req_open\r\n\
                 {accept}\r\n\r\n{name}:"
            )?;
            return echo(&mut reader, &mut writer);
        }
        let (status, mut value) = respond(name, state, method, target, &body);
        if let (Some(coding), Some(fields)) = (field("content-encoding"), value.as_object_mut()) {
            fields.insert("content_encoding".to_owned(), coding.into());
        }
        // The bytes do not matter where the head says enough.
        let asks_for_coding = body.windows(6).any(|word| word == b"encode");
        let coding = if asks_for_coding { "content-encoding: gzip\r\n" } else { "" };
        let text = if method == "HEAD" { String::new() } else { value.to_string() };
        let length = value.to_string().len();
        write!(
            writer,
            "HTTP/1.1 {status} Status\r\ncontent-type: application/json\r\n{coding}content-length: {length}\r\n\r\n{text}"
        )?;
    }
}

fn echo(reader: &mut impl Read, writer: &mut TcpStream) -> std::io::Result<()> {
    let mut bytes = [0; 1024];
    loop {
        let count = reader.read(&mut bytes)?;
        if count == 0 {
            return writer.shutdown(std::net::Shutdown::Write);
        }
        writer.write_all(&bytes[..count])?;
    }
}

fn respond(
    name: &str,
    state: &Mutex<State>,
    method: &str,
    target: &str,
    body: &[u8],
) -> (u16, Value) {
    let path = target.split('?').next().unwrap();
    // What penstock asks for itself.
    if matches!(path, "/metrics" | "/slots" | "/props" | "/get_server_info") {
        return (404, json!({}));
    }
    if path == "/v1/models" {
        return (200, json!({"object": "list", "data": [{"id": "m"}, {"id": name}]}));
    }
    let mut state = state.lock().unwrap();
    state.requests.push(format!("{method} {target}"));
    if path == "/v1/responses" {
        state.made += 1;
        let id = format!("resp_{name}{}", state.made);
        state.stored.insert(id.clone());
        return (200, json!({"id": id, "object": "response", "output": []}));
    }
    if let Some(below) = path.strip_prefix("/v1/responses/") {
        let id = below.split('/').next().unwrap();
        return match state.stored.contains(id) {
            true => (200, json!({"id": id, "served_by": name, "method": method})),
            false => (404, json!({"error": {"message": format!("{name} has no {id}")}})),
        };
    }
    let body = String::from_utf8_lossy(body);
    (200, json!({"served_by": name, "method": method, "target": target, "body": body}))
}
