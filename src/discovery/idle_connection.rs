//! Measures the time for which a backend keeps idle connections: penstock must stop reusing them
//! earlier, or requests meet a connection that is being closed.

use std::time::Duration;

use penstock_clock::now;
use penstock_core::fleet::Backend;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

use super::engines::facts;

/// The silence after which a response counts as complete.
const SETTLE: Duration = Duration::from_millis(500);
/// The largest number of bytes that are read of a raw response.
const MAX_HEAD_BYTES: usize = 16 * 1024;

/// A backend's handling of an idle connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum IdleHandling {
    /// Closes it after every response.
    NotKept,
    /// Closes it after this time.
    Closes(Duration),
    /// Keeps it for at least this time.
    Stays(Duration),
    /// Unknown: TLS, or no response.
    Unknown,
}

/// Sends one small request and measures the time for which the backend keeps the connection. Also
/// returns the backend's clock, if its response has a Date.
pub(super) async fn watch_idle(
    backend: &Backend,
    watch: Duration,
) -> Option<(IdleHandling, Option<u64>)> {
    let address = backend.state.addresses.first().filter(|_| !backend.config.url.https)?;
    let timeout = backend.config.health.timeout;
    let connecting = tokio::time::timeout(timeout, TcpStream::connect(address)).await;
    let mut stream = connecting.ok()?.ok()?;
    stream.write_all(request_text(backend).as_bytes()).await.ok()?;
    let mut response = Vec::new();
    let mut wait = timeout;
    while response.len() < MAX_HEAD_BYTES {
        match tokio::time::timeout(wait, stream.read_buf(&mut response)).await {
            Ok(Ok(0) | Err(_)) => {
                let closes =
                    if response.is_empty() { IdleHandling::Unknown } else { IdleHandling::NotKept };
                return Some((closes, clock_of(&response)));
            }
            Ok(Ok(_)) => wait = SETTLE,
            Err(_silent) => break,
        }
    }
    if response.is_empty() {
        return None;
    }
    let idle_since = now();
    let watching = async {
        while stream
            .read_buf(&mut Vec::with_capacity(MAX_HEAD_BYTES))
            .await
            .is_ok_and(|read| read > 0)
        {}
    };
    // The connection was idle during the silence that ended the response, too.
    let keep_alive = match tokio::time::timeout(watch.saturating_sub(SETTLE), watching).await {
        Ok(()) => IdleHandling::Closes(SETTLE + now().since(idle_since)),
        Err(_still_open) => IdleHandling::Stays(SETTLE + now().since(idle_since)),
    };
    Some((keep_alive, clock_of(&response)))
}

fn request_text(backend: &Backend) -> String {
    let path = facts(backend.config.engine).health_path;
    let (base, authority) = (&backend.config.url.base_path, &backend.authority);
    let key = backend.config.api_key.as_ref();
    let key =
        key.map_or_else(String::new, |key| format!("authorization: Bearer {}\r\n", key.reveal()));
    format!("GET {base}{path} HTTP/1.1\r\nhost: {authority}\r\n{}\r\n", key)
}

fn clock_of(response: &[u8]) -> Option<u64> {
    let mut fields = [httparse::EMPTY_HEADER; 64];
    let mut head = httparse::Response::new(&mut fields);
    head.parse(response).ok()?;
    let date = head.headers.iter().find(|field| field.name.eq_ignore_ascii_case("date"))?;
    let date = httpdate::parse_http_date(std::str::from_utf8(date.value).ok()?).ok()?;
    date.duration_since(std::time::UNIX_EPOCH).ok().map(|since| since.as_secs())
}

#[cfg(test)]
pub(in crate::discovery) mod tests {
    use std::path::Path;

    use tokio::net::TcpListener;

    use super::*;
    use crate::discovery::dns;
    use penstock_config::{Config, Environment};
    use penstock_core::fleet::Fleet;

    /// A listener, and a backend at its address.
    pub(in crate::discovery) async fn listening(rest: &str) -> (TcpListener, Backend) {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let yaml = format!("backends: [{{ url: 'http://{address}', {rest} }}]");
        let config = Config::parse(&yaml, "x", Path::new("."), &Environment::default()).unwrap();
        let backend = Fleet::new(&config).topology().backends[0].clone();
        assert!(dns::resolve(&backend, &dns::Resolver::new(&config.discovery)).await);
        (listener, backend)
    }

    /// Watches a backend that responds once and closes the connection after a while.
    async fn measure(
        closes_after: Duration,
        watch: Duration,
    ) -> Option<(IdleHandling, Option<u64>)> {
        let (listener, backend) = listening("engine: vllm").await;
        tokio::spawn(async move {
            let (mut stream, _) = listener.accept().await.unwrap();
            let mut request = Vec::new();
            while !request.ends_with(b"\r\n\r\n") {
                stream.read_buf(&mut request).await.unwrap();
            }
            assert!(request.starts_with(b"GET /health HTTP/1.1\r\n"));
            let response = b"HTTP/1.1 200 OK\r\ndate: Fri, 20 Nov 2026 19:53:26 GMT\r\n\
                           content-length: 2\r\n\r\nok";
            stream.write_all(response).await.unwrap();
            tokio::time::sleep(closes_after).await;
        });
        watch_idle(&backend, watch).await
    }

    #[tokio::test]
    async fn keep_alive_of_an_idle_connection_is_measured() {
        let long = Duration::from_secs(10);
        let immediate = measure(Duration::ZERO, long).await;
        assert_eq!(immediate, Some((IdleHandling::NotKept, Some(1_795_204_406))));
        let after = Duration::from_millis(1500);
        let Some((IdleHandling::Closes(measured), _)) = measure(after, long).await else {
            panic!("it closes")
        };
        assert!((after..Duration::from_secs(9)).contains(&(measured + SETTLE)), "{measured:?}");
        let watched = measure(long, Duration::from_millis(800)).await;
        assert!(matches!(watched, Some((IdleHandling::Stays(_), _))), "{watched:?}");
    }

    #[test]
    fn date_header_gives_the_clock() {
        let head = b"HTTP/1.1 200 OK\r\nDate: Fri, 20 Nov 2026 19:53:26 GMT\r\n\r\nbody";
        assert_eq!(clock_of(head), Some(1_795_204_406));
        assert_eq!(clock_of(b"HTTP/1.1 200 OK\r\n\r\n"), None);
        assert_eq!(clock_of(b"nonsense"), None);
    }
}
