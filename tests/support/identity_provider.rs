//! An identity provider that serves its keys over TLS.

pub mod signing_key;

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, SystemTime};

use rustls::{ServerConfig, ServerConnection, StreamOwned};
use serde_json::{Value, json};

use super::certificates::Authority;
pub use signing_key::{SigningKey, base64url, key_set};

/// Returns the time, in seconds since 1970.
pub fn unix() -> u64 {
    SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap().as_secs()
}

/// The treatment of a request for the keys.
#[derive(Clone)]
pub enum Reply {
    Document(String),
    /// A status, with a `location` field.
    Status(u16, String),
    /// The connection is closed before the TLS handshake.
    Closed,
    /// The head of a response, and then nothing.
    Silence,
}

/// A provider that serves its keys.
pub struct Provider {
    pub issuer: String,
    authority: Authority,
    address: SocketAddr,
    reply: Arc<Mutex<Reply>>,
    fetches: Arc<AtomicUsize>,
}

impl Provider {
    pub fn start(issuer: &str, keys: &[&SigningKey]) -> Self {
        let authority = Authority::new("provider");
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        let reply = Arc::new(Mutex::new(Reply::Document(key_set(keys))));
        let fetches = Arc::new(AtomicUsize::new(0));
        let config = authority.issue("localhost").server(&["http/1.1"], None);
        let shared = (Arc::clone(&reply), Arc::clone(&fetches));
        std::thread::spawn(move || {
            for stream in listener.incoming().map_while(Result::ok) {
                shared.1.fetch_add(1, Ordering::Relaxed);
                let (reply, config) = (shared.0.lock().unwrap().clone(), Arc::clone(&config));
                std::thread::spawn(move || _ = serve(stream, config, &reply));
            }
        });
        Self { issuer: issuer.to_owned(), authority, address, reply, fetches }
    }

    pub fn set(&self, reply: Reply) {
        *self.reply.lock().unwrap() = reply;
    }

    pub fn set_keys(&self, keys: &[&SigningKey]) {
        self.set(Reply::Document(key_set(keys)));
    }

    /// The number of connections so far.
    pub fn fetches(&self) -> usize {
        self.fetches.load(Ordering::Relaxed)
    }

    pub fn url(&self) -> String {
        format!("https://localhost:{}/keys", self.address.port())
    }

    /// An item of `auth.jwt`.
    pub fn yaml(&self, rest: &str) -> String {
        let ca = self.authority.file.display();
        format!(
            "{{ issuer: \"{}\", jwks: \"{}\", jwks_ca: {ca}, audience: penstock, {rest} }}",
            self.issuer,
            self.url()
        )
    }

    /// Claims of a client that are valid for an hour.
    pub fn claims(&self, subject: &str) -> Value {
        json!({ "iss": self.issuer, "sub": subject, "aud": "penstock", "exp": unix() + 3600 })
    }
}

fn serve(stream: TcpStream, config: Arc<ServerConfig>, reply: &Reply) -> std::io::Result<()> {
    if matches!(reply, Reply::Closed) {
        return Ok(());
    }
    stream.set_read_timeout(Some(Duration::from_secs(20)))?;
    let connection = ServerConnection::new(config).map_err(std::io::Error::other)?;
    let mut stream = StreamOwned::new(connection, stream);
    let (mut head, mut chunk) = (Vec::new(), [0; 1024]);
    while !head.windows(4).any(|end| end == b"\r\n\r\n") {
        match stream.read(&mut chunk)? {
            0 => return Ok(()),
            count => head.extend_from_slice(&chunk[..count]),
        }
    }
    match reply {
        Reply::Document(text) => {
            let head = format!("HTTP/1.1 200 OK\r\ncontent-length: {}\r\n\r\n", text.len());
            stream.write_all(head.as_bytes())?;
            stream.write_all(text.as_bytes())?;
        }
        Reply::Status(status, location) => {
            let fields = format!("location: {location}\r\ncontent-length: 0");
            stream.write_all(format!("HTTP/1.1 {status} X\r\n{fields}\r\n\r\n").as_bytes())?;
        }
        Reply::Silence => {
            stream.write_all(b"HTTP/1.1 200 OK\r\ncontent-length: 100\r\n\r\n{")?;
            stream.flush()?;
            // The rest never comes: the client gives up.
            while stream.read(&mut chunk)? > 0 {}
        }
        Reply::Closed => {}
    }
    stream.flush()
}
