//! A blocking HTTP/1.1 client over one socket: small, and it shows every byte.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::time::{Duration, Instant};

use serde_json::Value;
use socket2::{Domain, Socket, Type};

/// The time that any one read may take.
const PATIENCE: Duration = Duration::from_secs(20);

/// A response, read to its end.
#[derive(Debug, Clone)]
pub struct Response {
    pub status: u16,
    pub headers: Vec<(String, String)>,
    pub body: Vec<u8>,
    /// True if the framing ended as it said it would.
    pub is_whole: bool,
}

impl Response {
    pub fn header(&self, name: &str) -> Option<&str> {
        let mut fields = self.headers.iter();
        fields.find(|(own, _)| own.eq_ignore_ascii_case(name)).map(|(_, value)| value.as_str())
    }

    pub fn text(&self) -> String {
        String::from_utf8_lossy(&self.body).into_owned()
    }

    pub fn json(&self) -> Value {
        serde_json::from_slice(&self.body)
            .unwrap_or_else(|error| panic!("not JSON ({error}): {}", self.text()))
    }

    /// `error.code` of an OpenAI error body.
    pub fn error_code(&self) -> String {
        self.json()["error"]["code"].as_str().unwrap_or_default().to_owned()
    }
}

/// A connection.
pub struct Client {
    pub stream: TcpStream,
    buffer: Vec<u8>,
}

impl Client {
    pub fn connect(address: SocketAddr) -> Self {
        Self::over(TcpStream::connect(address).unwrap())
    }

    /// A client whose own address is 127.0.0.`host`.
    pub fn connect_from(host: u8, address: SocketAddr) -> Self {
        let socket = Socket::new(Domain::IPV4, Type::STREAM, None).unwrap();
        socket.bind(&SocketAddr::from(([127, 0, 0, host], 0)).into()).unwrap();
        socket.connect(&address.into()).unwrap();
        Self::over(socket.into())
    }

    /// A client on a connection made elsewhere.
    pub fn over(stream: TcpStream) -> Self {
        stream.set_read_timeout(Some(PATIENCE)).unwrap();
        stream.set_nodelay(true).unwrap();
        Self { stream, buffer: Vec::new() }
    }

    pub fn send_bytes(&mut self, bytes: &[u8]) {
        self.stream.write_all(bytes).unwrap();
    }

    /// Sends a request with a Content-Length.
    pub fn send(&mut self, method: &str, path: &str, headers: &[(&str, &str)], body: &[u8]) {
        let mut head = format!("{method} {path} HTTP/1.1\r\nhost: localhost\r\n");
        for (name, value) in headers {
            head += &format!("{name}: {value}\r\n");
        }
        if !body.is_empty() || method == "POST" {
            head += &format!("content-length: {}\r\n", body.len());
        }
        head += "\r\n";
        let mut bytes = head.into_bytes();
        bytes.extend_from_slice(body);
        self.send_bytes(&bytes);
    }

    fn fill(&mut self) -> std::io::Result<usize> {
        let mut chunk = [0; 16 * 1024];
        let count = loop {
            match self.stream.read(&mut chunk) {
                // As after the whole test was stopped and continued.
                Err(error) if error.kind() == std::io::ErrorKind::Interrupted => {}
                read => break read?,
            }
        };
        self.buffer.extend_from_slice(&chunk[..count]);
        Ok(count)
    }

    /// Reads the head of a response, skipping interim ones.
    pub fn read_head(&mut self) -> std::io::Result<(u16, Vec<(String, String)>)> {
        loop {
            while !self.buffer.windows(4).any(|end| end == b"\r\n\r\n") {
                if self.fill()? == 0 {
                    return Err(std::io::ErrorKind::UnexpectedEof.into());
                }
            }
            let end = self.buffer.windows(4).position(|end| end == b"\r\n\r\n").unwrap() + 4;
            let head: Vec<u8> = self.buffer.drain(..end).collect();
            let head = String::from_utf8_lossy(&head).into_owned();
            let mut lines = head.lines();
            let status: u16 = lines.next().unwrap().split(' ').nth(1).unwrap().parse().unwrap();
            if status < 200 {
                continue;
            }
            let field = |line: &str| {
                let (name, value) = line.split_once(':')?;
                Some((name.to_lowercase(), value.trim().to_owned()))
            };
            return Ok((status, lines.filter_map(field).collect()));
        }
    }

    /// Waits for the first bytes of a response, which are still to be read then.
    pub fn wait_for_bytes(&mut self) {
        while self.buffer.is_empty() {
            assert_ne!(self.fill().unwrap(), 0, "closed without a response");
        }
    }

    /// The status of a response that may be interim.
    pub fn read_status(&mut self) -> u16 {
        let mut text = String::new();
        while !text.contains("\r\n\r\n") {
            let bytes = self.read_raw().unwrap();
            assert!(!bytes.is_empty(), "closed after {text:?}");
            text += &String::from_utf8_lossy(&bytes);
        }
        text.split(' ').nth(1).unwrap().parse().unwrap()
    }

    /// Reads some bytes of a body as they come off the wire, framing included.
    pub fn read_raw(&mut self) -> std::io::Result<Vec<u8>> {
        if self.buffer.is_empty() {
            self.fill()?;
        }
        Ok(std::mem::take(&mut self.buffer))
    }

    /// Reads to the end of the connection. Returns false if the other side leaves it open for
    /// longer than this client waits.
    pub fn is_closed(&mut self) -> bool {
        loop {
            self.buffer.clear();
            match self.fill() {
                Ok(0) => return true,
                Ok(_) => {}
                Err(error) => return error.kind() != std::io::ErrorKind::WouldBlock,
            }
        }
    }

    /// Reads a whole response; a cut body is returned as far as it arrived.
    pub fn read_response(&mut self) -> std::io::Result<Response> {
        let (status, headers) = self.read_head()?;
        let mut response = Response { status, headers, body: Vec::new(), is_whole: true };
        let length =
            response.header("content-length").map(|digits| digits.parse::<usize>().unwrap());
        let is_chunked = response.header("transfer-encoding") == Some("chunked");
        if is_chunked {
            response.is_whole = self.read_chunks(&mut response.body);
        } else if let Some(length) = length {
            while self.buffer.len() < length && matches!(self.fill(), Ok(1..)) {}
            response.is_whole = self.buffer.len() >= length;
            let end = length.min(self.buffer.len());
            response.body = self.buffer.drain(..end).collect();
        } else if !matches!(status, 204 | 304) {
            while matches!(self.fill(), Ok(1..)) {}
            response.body = std::mem::take(&mut self.buffer);
        }
        Ok(response)
    }

    fn read_chunks(&mut self, body: &mut Vec<u8>) -> bool {
        loop {
            let Some(line) = self.take_line() else { return false };
            let Ok(size) = usize::from_str_radix(line.split(';').next().unwrap().trim(), 16) else {
                return false;
            };
            if size == 0 {
                return self.take_line().is_some();
            }
            while self.buffer.len() < size + 2 {
                if !matches!(self.fill(), Ok(1..)) {
                    body.extend(self.buffer.drain(..size.min(self.buffer.len())));
                    return false;
                }
            }
            body.extend(self.buffer.drain(..size));
            self.buffer.drain(..2);
        }
    }

    fn take_line(&mut self) -> Option<String> {
        loop {
            if let Some(end) = self.buffer.windows(2).position(|end| end == b"\r\n") {
                let line: Vec<u8> = self.buffer.drain(..end + 2).collect();
                return Some(String::from_utf8_lossy(&line[..end]).into_owned());
            }
            if !matches!(self.fill(), Ok(1..)) {
                return None;
            }
        }
    }
}

/// One request on a new connection.
pub fn request(
    address: SocketAddr,
    method: &str,
    path: &str,
    headers: &[(&str, &str)],
    body: &[u8],
) -> Response {
    let mut client = Client::connect(address);
    client.send(method, path, headers, body);
    client.read_response().unwrap()
}

/// A JSON POST on a new connection.
pub fn post(address: SocketAddr, path: &str, body: &Value) -> Response {
    let json = [("content-type", "application/json")];
    request(address, "POST", path, &json, body.to_string().as_bytes())
}

/// A chat request with one user message.
pub fn chat(model: &str, text: &str) -> Value {
    serde_json::json!({"model": model, "messages": [{"role": "user", "content": text}]})
}

/// The same as a stream.
pub fn streaming_chat(model: &str, text: &str) -> Value {
    serde_json::json!({
        "model": model, "stream": true, "messages": [{"role": "user", "content": text}]
    })
}

pub fn get(address: SocketAddr, path: &str) -> Response {
    request(address, "GET", path, &[], b"")
}

/// Returns whether `path` returns 200; false before anything listens there.
pub fn is_ok(address: SocketAddr, path: &str) -> bool {
    let ask = || {
        let mut client = Client::over(TcpStream::connect(address)?);
        client
            .stream
            .write_all(format!("GET {path} HTTP/1.1\r\nhost: localhost\r\n\r\n").as_bytes())?;
        client.read_response()
    };
    ask().is_ok_and(|response| response.status == 200)
}

/// Returns the time that `work` took.
pub fn timed<T>(work: impl FnOnce() -> T) -> (T, Duration) {
    let started = Instant::now();
    let value = work();
    (value, started.elapsed())
}
