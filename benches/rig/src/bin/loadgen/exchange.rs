//! One request and its answer, checked: anything but a whole 200 with `choices`, or a stream up to
//! its `[DONE]`, is an error with a name.

use penstock_rig::clock::now_ns;
use penstock_rig::wire::{Broken, Wire};
use tokio::net::TcpStream;

use crate::record::Record;

const STAMP: usize = 16;

/// What every connection sends.
pub(crate) struct Plan {
    pub(crate) to: String,
    pub(crate) request: Vec<u8>,
    pub(crate) is_stream: bool,
}

/// Sends the request, on a kept connection if there is one, and reads the answer.
pub(crate) async fn exchange(
    kept: &mut Option<Wire>,
    plan: &Plan,
    record: &Record,
) -> Result<(), String> {
    let named = |part: &str, broken: Broken| format!("{part}-{}", broken.name());
    let mut wire = match kept.take().filter(Wire::is_quiet) {
        Some(wire) => wire,
        None => Wire::new(TcpStream::connect(&plan.to).await.map_err(|_| "connect".to_owned())?),
    };
    wire.write(&plan.request).await.map_err(|broken| named("write", broken))?;
    let head = wire.head().await.map_err(|broken| named("head", broken))?;
    let head = head.ok_or_else(|| "head-closed".to_owned())?;
    let mut answer = Answer { is_stream: plan.is_stream, ..Answer::default() };
    let read = wire.body(&head, true, |piece| answer.take(piece, record)).await;
    read.map_err(|broken| named("body", broken))?;
    if head.word(1) != "200" {
        return Err(format!("http-{}", head.word(1)));
    }
    if !answer.is_complete {
        return Err(if plan.is_stream { "stream-cut" } else { "odd-body" }.to_owned());
    }
    if !head.closes && (head.is_chunked || head.length.is_some()) {
        *kept = Some(wire);
    }
    Ok(())
}

/// An answer as it comes in. Marks may be cut by the pieces, so the end of one piece is kept.
#[derive(Default)]
struct Answer {
    is_stream: bool,
    is_complete: bool,
    carried: Vec<u8>,
}

impl Answer {
    fn take(&mut self, piece: &[u8], record: &Record) {
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
}
