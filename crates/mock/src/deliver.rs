//! Puts a response on the wire, or as much of it as the fault allows.

use std::iter::Peekable;
use std::time::Duration;

use penstock_api::slices::before;

use super::fault::{Cut, Fault};
use super::plan::{BodyFraming, Halt, HaltAt, Plan};
use super::records::Records;
use super::responses::{Events, Response, StreamEvent, WholeResponse};
use super::wire::{ClientGone, ClientSocket};
use super::wire_head::{RequestHead, reason};

const SWITCHED: &[u8] = b"HTTP/1.1 101 Switching Protocols\r\nConnection: upgrade\r\n\
    Upgrade: raw\r\n\r\n\x00\x01raw bytes of another protocol\xff";
const GARBAGE: &[u8] = b"\x16\x03\x03 this \x00 is not HTTP \xff\xfe\r\n\r\n";
const HEADLESS: &[u8] = b"a response without a head\n";
const QUEUED: &[u8] = b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\n\
    Content-Length: 17\r\n\r\n{\"poisoned\":true}";

/// A `Content-Length` longer than anything an engine streams.
// Far beyond any stream of a test, and small enough for every parser of lengths.
const NEVER_REACHED: u64 = 1 << 40;

/// The fate of the connection after a response.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Ending {
    /// The response is complete; the connection serves the next request.
    Again,
    /// The response is complete; the connection is closed.
    Close,
    /// The response is complete but the request was not read; the connection closes after the
    /// client had time to read the response.
    CloseSlowly,
    /// The response is cut short by a close.
    Cut,
    /// The response is cut short by a reset.
    Reset,
    /// The connection is closed without further bytes.
    Drop,
}

#[derive(Debug)]
pub(super) struct Delivery<'a> {
    wire: &'a mut ClientSocket,
    records: &'a Records,
    keeps_alive: bool,
    is_head: bool,
    events: u32,
}

impl<'a> Delivery<'a> {
    pub(super) fn new(
        wire: &'a mut ClientSocket,
        records: &'a Records,
        head: &RequestHead,
    ) -> Self {
        let is_head = head.method == "HEAD";
        Self { wire, records, keeps_alive: head.keeps_alive, is_head, events: 0 }
    }

    /// Returns the number of events written so far.
    pub(super) fn events(&self) -> u32 {
        self.events
    }

    pub(super) async fn run(
        &mut self,
        response: Response,
        fault: Option<Fault>,
    ) -> Result<Ending, ClientGone> {
        let Some(fault) = fault else { return self.send(response, &Plan::default()).await };
        match &fault {
            Fault::CloseAfterRequest => Ok(Ending::Cut),
            Fault::ResetAfterRequest => Ok(Ending::Reset),
            Fault::HangBeforeHead => Err(self.wire.hang().await),
            Fault::Garbage => self.blurt(GARBAGE).await,
            Fault::Http09 => self.blurt(HEADLESS).await,
            Fault::Switching101 => {
                self.wire.write(SWITCHED).await?;
                Err(self.wire.hang().await)
            }
            Fault::SlowHead(wait) => {
                self.wire.pause(*wait).await?;
                self.send(response, &Plan::default()).await
            }
            Fault::Gate(gate) => {
                self.wire.wait_for(gate.pass()).await?;
                self.send(response, &Plan::default()).await
            }
            Fault::Status { status, retry_after, body, headers } => {
                let retry_after = retry_after.clone().map(|wait| ("Retry-After".to_owned(), wait));
                let headers = headers.iter().cloned().chain(retry_after).collect();
                let whole = WholeResponse {
                    headers,
                    ..WholeResponse::json(*status, body.clone().into_bytes())
                };
                self.send(Response::Whole(whole), &Plan::default()).await
            }
            _ => self.send(response, &Plan::of(&fault)).await,
        }
    }

    async fn blurt(&mut self, bytes: &[u8]) -> Result<Ending, ClientGone> {
        self.wire.write(bytes).await?;
        Ok(Ending::Cut)
    }

    async fn send(&mut self, response: Response, plan: &Plan) -> Result<Ending, ClientGone> {
        match response {
            Response::Whole(whole) => self.send_whole(whole, plan).await,
            Response::Events(events) => self.send_events(events, plan).await,
        }
    }

    async fn send_whole(
        &mut self,
        whole: WholeResponse,
        plan: &Plan,
    ) -> Result<Ending, ClientGone> {
        self.wire.pause(whole.wait).await?;
        let length = u64::try_from(whole.body.len()).unwrap_or(u64::MAX);
        let framing = match plan.framing {
            BodyFraming::Natural => format!("Content-Length: {length}\r\n"),
            BodyFraming::Short => format!("Content-Length: {}\r\n", length + 16),
            BodyFraming::Chunked => CHUNKED.to_owned(),
            BodyFraming::Both => format!("Content-Length: {length}\r\n{CHUNKED}"),
            BodyFraming::Delimited => String::new(),
        };
        let mut bytes = self.head(plan, whole.status, whole.content_type, &framing);
        append_headers(&mut bytes, &whole.headers);
        bytes.extend_from_slice(b"\r\n");
        let Some((at, halt)) = plan.halt else {
            if !self.is_head {
                bytes.extend(framed(plan.framing, &whole.body));
                bytes.extend_from_slice(plan.framing.end());
            }
            bytes.extend_from_slice(if plan.is_queued { QUEUED } else { b"" });
            self.wire.write(&bytes).await?;
            return Ok(self.ending(plan));
        };
        let half = match at {
            HaltAt::Head => 0,
            // A whole response has no events: half of it stands for some of them.
            HaltAt::Events(_) | HaltAt::FirstToken => whole.body.len() / 2,
        };
        if half > 0 {
            bytes.extend(framed(plan.framing, before(&whole.body, half)));
        }
        self.wire.write(&bytes).await?;
        match halt {
            // A response with a length has no room for pings.
            Halt::Hang | Halt::Pings(_) => Err(self.wire.hang().await),
            Halt::Cut(cut) => self.cut(cut).await,
            Halt::Error => Ok(Ending::Cut),
        }
    }

    async fn send_events(&mut self, events: Events, plan: &Plan) -> Result<Ending, ClientGone> {
        let framing = match plan.framing {
            BodyFraming::Natural | BodyFraming::Chunked => CHUNKED.to_owned(),
            BodyFraming::Short => format!("Content-Length: {NEVER_REACHED}\r\n"),
            BodyFraming::Both => format!("Content-Length: 5\r\n{CHUNKED}"),
            BodyFraming::Delimited => String::new(),
        };
        // Event streams use chunks unless the fault demands another framing.
        let chunks = match plan.framing {
            BodyFraming::Natural => BodyFraming::Chunked,
            given @ (BodyFraming::Short
            | BodyFraming::Chunked
            | BodyFraming::Both
            | BodyFraming::Delimited) => given,
        };
        let mut head = self.head(plan, 200, events.content_type, &framing);
        head.extend_from_slice(b"Cache-Control: no-cache\r\n\r\n");
        self.wire.write(&head).await?;
        let mut rest = events.list.peekable();
        while !plan.halts_at(self.events, rest.peek()) {
            let Some(event) = rest.next() else { return Ok(self.ending(plan)) };
            // In one write with the last event: a client that closes after it must not miss the
            // end.
            let end = self.end_behind(&mut rest, plan, chunks);
            self.send_event(event, chunks, &end).await?;
        }
        match plan.halt {
            Some((_, Halt::Pings(every))) => {
                let ping = framed(chunks, &events.ping);
                loop {
                    // Zero would be a loop that never yields.
                    self.wire.pause(every.max(Duration::from_millis(1))).await?;
                    self.wire.write(&ping).await?;
                }
            }
            Some((_, Halt::Cut(cut))) => self.cut(cut).await,
            Some((_, Halt::Error)) => {
                let mut bytes = framed(chunks, &events.error);
                bytes.extend_from_slice(chunks.end());
                self.wire.write(&bytes).await?;
                Ok(self.ending(plan))
            }
            Some((_, Halt::Hang)) | None => Err(self.wire.hang().await),
        }
    }

    /// Returns the ending to send after an event, if that was the last one. It goes out in the same
    /// write, so a client that leaves on `[DONE]` has not left early.
    fn end_behind(
        &self,
        rest: &mut Peekable<impl Iterator<Item = StreamEvent>>,
        plan: &Plan,
        chunks: BodyFraming,
    ) -> Vec<u8> {
        if rest.peek().is_some() || plan.halts_at(self.events + 1, None) {
            return Vec::new();
        }
        let mut end = chunks.end().to_vec();
        end.extend_from_slice(if plan.is_queued { QUEUED } else { b"" });
        end
    }

    async fn send_event(
        &mut self,
        event: StreamEvent,
        chunks: BodyFraming,
        end: &[u8],
    ) -> Result<(), ClientGone> {
        self.wire.pause(event.wait).await?;
        let mut bytes = framed(chunks, &event.bytes);
        bytes.extend_from_slice(end);
        self.wire.write(&bytes).await?;
        self.events += 1;
        self.records.count(|counters| counters.events += 1);
        Ok(())
    }

    async fn cut(&mut self, cut: Cut) -> Result<Ending, ClientGone> {
        match cut {
            Cut::Fin | Cut::ShortLength => Ok(Ending::Cut),
            Cut::Reset => Ok(Ending::Reset),
            Cut::BadChunk => self.blurt(b"not a size\r\n").await,
        }
    }

    fn ending(&self, plan: &Plan) -> Ending {
        let closes = plan.closes || plan.framing == BodyFraming::Delimited || !self.keeps_alive;
        // The bytes that were announced never come, so that the client sees the close as a loss.
        if plan.framing == BodyFraming::Short {
            Ending::Cut
        } else if closes {
            Ending::Close
        } else {
            Ending::Again
        }
    }

    /// Returns the head without its final empty line.
    fn head(&self, plan: &Plan, status: u16, content_type: &str, framing: &str) -> Vec<u8> {
        let mut bytes = Vec::new();
        for _ in 0..plan.early_hints {
            bytes.extend_from_slice(b"HTTP/1.1 103 Early Hints\r\nLink: </hint>\r\n\r\n");
        }
        let reason = reason(status);
        let head = format!(
            "HTTP/1.1 {status} {reason}\r\nServer: mock-engine\r\nContent-Type: {content_type}\r\n{framing}"
        );
        bytes.extend_from_slice(head.as_bytes());
        if !self.keeps_alive || plan.framing == BodyFraming::Delimited {
            bytes.extend_from_slice(b"Connection: close\r\n");
        }
        append_headers(&mut bytes, &plan.padding);
        bytes
    }
}

const CHUNKED: &str = "Transfer-Encoding: chunked\r\n";

fn append_headers(bytes: &mut Vec<u8>, headers: &[(String, String)]) {
    for (name, value) in headers {
        bytes.extend_from_slice(format!("{name}: {value}\r\n").as_bytes());
    }
}

fn framed(framing: BodyFraming, bytes: &[u8]) -> Vec<u8> {
    match framing {
        BodyFraming::Natural | BodyFraming::Short | BodyFraming::Delimited => bytes.to_vec(),
        BodyFraming::Chunked | BodyFraming::Both => {
            let mut chunk = format!("{:x}\r\n", bytes.len()).into_bytes();
            chunk.extend_from_slice(bytes);
            chunk.extend_from_slice(b"\r\n");
            chunk
        }
    }
}
