//! Clients that get no further than the guard because there are too many of them.

use std::io;
use std::time::Duration;

use pingora::protocols::{Shutdown, Stream};
use tokio::io::{AsyncReadExt, AsyncWriteExt};

use crate::api::{Dialect, ErrorCode, error_body};

/// Connections over the limit that are told so at one time; further ones are closed without a word.
const REFUSED_AT_ONCE: usize = 1024;
const REFUSED_TIME: Duration = Duration::from_secs(1);
const REFUSED_READS: usize = 64;

/// What a client is told that gets no further than the guard, and who else hears of it.
pub(crate) struct Refusals {
    too_many_connections: Vec<u8>,
    tell: Box<dyn Fn(ErrorCode) + Send + Sync>,
}

impl Refusals {
    /// Calls `tell` with every refusal.
    pub(crate) fn new(tell: Box<dyn Fn(ErrorCode) + Send + Sync>) -> Self {
        let message = "Too many connections (limits.connections)";
        Self { too_many_connections: refusal(ErrorCode::TooManyConnections, message), tell }
    }

    /// Turns a connection away of which there are `over` more than allowed. One that is to be
    /// encrypted is just closed: a handshake costs more than an answer.
    pub(super) async fn turn_away(&self, stream: &mut Stream, (over, is_encrypted): (usize, bool)) {
        (self.tell)(ErrorCode::TooManyConnections);
        if over <= REFUSED_AT_ONCE && !is_encrypted {
            refuse(stream, &self.too_many_connections).await;
        }
    }
}

/// A whole answer as bytes: Pingora has not seen the request, so it cannot write one.
fn refusal(code: ErrorCode, message: &str) -> Vec<u8> {
    let row = code.row();
    let body = error_body(Dialect::OpenAi, code, message, None);
    let reason = http::StatusCode::from_u16(row.status).ok().and_then(|s| s.canonical_reason());
    let head = format!(
        "HTTP/1.1 {} {}\r\ncontent-type: application/json\r\ncontent-length: {}\r\n\
         x-should-retry: {}\r\n{}connection: close\r\n\r\n",
        row.status,
        reason.unwrap_or_default(),
        body.len(),
        row.retry,
        if row.retry { "retry-after: 1\r\n" } else { "" },
    );
    [head.into_bytes(), body].concat()
}

/// Turns a connection over the limit away. What it sent is read and dropped for a moment: closed
/// with bytes unread, a connection is reset, and its client may never see the answer.
async fn refuse(stream: &mut Stream, answer: &[u8]) {
    let told = async {
        stream.write_all(answer).await?;
        stream.flush().await?;
        Shutdown::shutdown(&mut **stream).await;
        let mut scrap = [0; 1024];
        for _ in 0..REFUSED_READS {
            if stream.read(&mut scrap).await? == 0 {
                break;
            }
        }
        io::Result::Ok(())
    };
    match tokio::time::timeout(REFUSED_TIME, told).await {
        Ok(Ok(())) => {}
        Ok(Err(_)) | Err(_) => tracing::debug!("a client over the limit was slow to leave"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_refusal_is_a_whole_answer() {
        let refusals = Refusals::new(Box::new(|_code| ()));
        let text = String::from_utf8(refusals.too_many_connections).unwrap();
        let (head, body) = text.split_once("\r\n\r\n").unwrap();
        assert!(head.contains(&format!("content-length: {}\r\n", body.len())), "{head}");
        assert!(serde_json::from_str::<serde_json::Value>(body).is_ok());
    }
}
