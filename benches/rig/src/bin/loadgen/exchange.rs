//! One request and its response, checked: anything but a whole 200 with `choices`, or a stream up
//! to its `[DONE]`, is an error with a name.

use std::borrow::Cow;
use std::cell::Cell;
use std::rc::Rc;

use bytes::Bytes;
use http::Request;
use penstock_rig::clock::now_ns;
use penstock_rig::link::Link;
use penstock_rig::wire::{Broken, Wire};
use tokio::net::TcpStream;

use crate::http2::Shared;
use crate::record::Record;
use crate::tls::Tls;

const STAMP: usize = 16;
/// The digits of a prompt's number.
const PLACES: usize = 16;

/// The request that every client sends, and the way it is sent.
pub(crate) struct Plan {
    pub(crate) to: String,
    pub(crate) tls: Option<Tls>,
    /// A connection is closed after its first response.
    pub(crate) is_fresh: bool,
    pub(crate) is_stream: bool,
    /// The whole request in HTTP/1.1.
    pub(crate) request: Vec<u8>,
    /// The start of its prompt and the number of the next one, if no two are to begin alike.
    pub(crate) numbered: Option<(usize, Cell<u64>)>,
    /// The same in two parts for HTTP/2.
    pub(crate) head: Request<()>,
    pub(crate) body: Bytes,
}

impl Plan {
    /// The next request in HTTP/1.1.
    fn next_request(&self) -> Cow<'_, [u8]> {
        let Some((place, number)) = &self.numbered else { return Cow::Borrowed(&self.request) };
        let mut request = self.request.clone();
        let digits = format!("{:0PLACES$x}", number.replace(number.get() + 1));
        request[*place..*place + PLACES].copy_from_slice(digits.as_bytes());
        Cow::Owned(request)
    }

    /// A new connection.
    pub(crate) async fn connect(&self) -> Result<Link, String> {
        let stream = TcpStream::connect(&self.to).await.map_err(|_| "connect".to_owned())?;
        let Some(tls) = &self.tls else { return Ok(Link::plain(stream)) };
        // As in `Link::plain`.
        drop(stream.set_nodelay(true));
        Ok(Link::Tls(Box::new(tls.over(stream).await?)))
    }
}

/// A client with one request in flight at a time.
pub(crate) enum Client {
    /// On its own connection, kept from one request to the next.
    Http1(Option<Wire>),
    /// On a connection it shares with others.
    Http2(Rc<Shared>),
}

impl Client {
    /// Sends the request and reads the response.
    pub(crate) async fn exchange(&mut self, plan: &Plan, record: &Record) -> Result<(), String> {
        match self {
            Self::Http1(kept) => exchange(kept, plan, record).await,
            Self::Http2(shared) => shared.exchange(plan, record).await,
        }
    }

    /// Drops the connection after an error on it.
    pub(crate) async fn forget(&mut self) {
        match self {
            Self::Http1(kept) => *kept = None,
            Self::Http2(shared) => shared.forget().await,
        }
    }
}

async fn exchange(kept: &mut Option<Wire>, plan: &Plan, record: &Record) -> Result<(), String> {
    let named = |part: &str, broken: Broken| format!("{part}-{}", broken.name());
    let mut wire = match kept.take().filter(Wire::is_quiet) {
        Some(wire) => wire,
        None => Wire::new(plan.connect().await?),
    };
    wire.write(&plan.next_request()).await.map_err(|broken| named("write", broken))?;
    let head = wire.head().await.map_err(|broken| named("head", broken))?;
    let head = head.ok_or_else(|| "head-closed".to_owned())?;
    let mut response = Response::new(plan.is_stream);
    let read = wire.body(&head, true, |piece| response.take(piece, record)).await;
    read.map_err(|broken| named("body", broken))?;
    response.judge(head.word(1).parse().unwrap_or_default())?;
    if plan.is_fresh {
        wire.close().await;
    } else if !head.closes && (head.is_chunked || head.length.is_some()) {
        *kept = Some(wire);
    }
    Ok(())
}

/// A response as it comes in. Marks may be cut by the pieces, so the end of one piece is kept.
pub(crate) struct Response {
    is_stream: bool,
    is_complete: bool,
    carried: Vec<u8>,
}

impl Response {
    pub(crate) fn new(is_stream: bool) -> Self {
        Self { is_stream, is_complete: false, carried: Vec::new() }
    }

    pub(crate) fn take(&mut self, piece: &[u8], record: &Record) {
        self.carried.extend_from_slice(piece);
        let mark: &[u8] = if self.is_stream { b"[DONE]" } else { b"\"choices\"" };
        let mut at = 0;
        if self.is_stream {
            let time = now_ns();
            while let Some(found) = memchr::memmem::find(&self.carried[at..], b"@@") {
                let stamp = at + found + 2;
                let Some(digits) = self.carried.get(stamp..stamp + STAMP) else { break };
                let sent = std::str::from_utf8(digits).ok().and_then(|text| text.parse().ok());
                record.event(time.saturating_sub(sent.unwrap_or(time)));
                at = stamp + STAMP;
            }
        }
        let rest = &self.carried[at..];
        self.is_complete |= memchr::memmem::find(rest, mark).is_some();
        // One byte less than the longest mark with its stamp.
        let keep = rest.len().min(STAMP + 1);
        let from = self.carried.len() - keep;
        self.carried.drain(..from);
    }

    /// The record of an ended request.
    pub(crate) fn judge(&self, status: u16) -> Result<(), String> {
        if status != 200 {
            return Err(format!("http-{status}"));
        }
        if !self.is_complete {
            return Err(if self.is_stream { "stream-cut" } else { "odd-body" }.to_owned());
        }
        Ok(())
    }
}
