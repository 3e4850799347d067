//! An engine that responds the bytes it is given, for responses that no engine under test should
//! send.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::{Arc, Mutex};
use std::thread;

/// Returns the response to a path and a body: its bytes, head included.
pub type Respond = fn(&str, &str) -> Vec<u8>;

/// A running engine. It runs until the tests end.
pub struct RawEngine {
    pub name: String,
    address: SocketAddr,
    requests: Arc<Mutex<Vec<String>>>,
}

impl RawEngine {
    pub fn start(name: &str, respond: Respond) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        let requests: Arc<Mutex<Vec<String>>> = Arc::default();
        let shared = Arc::clone(&requests);
        thread::spawn(move || {
            for stream in listener.incoming().map_while(Result::ok) {
                let shared = Arc::clone(&shared);
                thread::spawn(move || _ = serve(stream, respond, &shared));
            }
        });
        Self { name: name.to_owned(), address, requests }
    }

    /// An item of `backends:`.
    pub fn item(&self, rest: &str) -> String {
        format!("  - {{ name: {}, url: \"http://{}\", {rest} }}\n", self.name, self.address)
    }

    /// The paths of the requests with a body since the last call.
    pub fn take_requests(&self) -> Vec<String> {
        std::mem::take(&mut self.requests.lock().unwrap())
    }
}

/// A response of `body` with its length.
pub fn whole(status: u16, content_type: &str, body: &str) -> Vec<u8> {
    let length = body.len();
    let head = format!(
        "HTTP/1.1 {status} X\r\ncontent-type: {content_type}\r\ncontent-length: {length}\r\n\r\n"
    );
    [head.as_bytes(), body.as_bytes()].concat()
}

/// A response of `body` in one chunk, or in none.
pub fn chunked(content_type: &str, body: &str) -> Vec<u8> {
    let head = format!(
        "HTTP/1.1 200 OK\r\ncontent-type: {content_type}\r\ntransfer-encoding: chunked\r\n\r\n"
    );
    let chunk = match body.len() {
        0 => String::new(),
        length => format!("{length:x}\r\n{body}\r\n"),
    };
    [head.as_bytes(), chunk.as_bytes(), b"0\r\n\r\n"].concat()
}

/// A response of `body` that ends with its connection.
pub fn until_close(content_type: &str, body: &str) -> Vec<u8> {
    format!("HTTP/1.1 200 OK\r\nconnection: close\r\ncontent-type: {content_type}\r\n\r\n{body}")
        .into_bytes()
}

fn serve(
    mut stream: TcpStream,
    respond: Respond,
    requests: &Mutex<Vec<String>>,
) -> std::io::Result<()> {
    let mut read = Vec::new();
    loop {
        let Some((path, body)) = read_request(&mut stream, &mut read)? else { return Ok(()) };
        let response = match body.is_empty() {
            true => whole(200, "application/json", r#"{"object":"list","data":[{"id":"m"}]}"#),
            false => {
                requests.lock().unwrap().push(path.clone());
                respond(&path, &body)
            }
        };
        stream.write_all(&response)?;
        if response.windows(17).any(|part| part == b"connection: close") {
            return Ok(());
        }
    }
}

/// The path and the body of the next request.
fn read_request(
    stream: &mut TcpStream,
    read: &mut Vec<u8>,
) -> std::io::Result<Option<(String, String)>> {
    loop {
        if let Some(end) = read.windows(4).position(|part| part == b"\r\n\r\n") {
            let head = String::from_utf8_lossy(&read[..end]).into_owned();
            let length = head
                .lines()
                .find_map(|line| {
                    line.to_lowercase().strip_prefix("content-length:")?.trim().parse().ok()
                })
                .unwrap_or(0);
            if read.len() >= end + 4 + length {
                let body = String::from_utf8_lossy(&read[end + 4..end + 4 + length]).into_owned();
                read.drain(..end + 4 + length);
                let path = head.split(' ').nth(1).unwrap_or("").to_owned();
                return Ok(Some((path, body)));
            }
        }
        let mut part = [0; 8192];
        let count = stream.read(&mut part)?;
        if count == 0 {
            return Ok(None);
        }
        read.extend_from_slice(&part[..count]);
    }
}
