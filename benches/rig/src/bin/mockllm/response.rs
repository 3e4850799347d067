//! The responses to a chat request: whole, or as a stream of events of one size, paced or as fast
//! as they go.

use std::cell::Cell;
use std::fmt::Write;
use std::time::Duration;

use penstock_rig::clock::now_ns;
use penstock_rig::wire::{Broken, Wire};
use tokio::time::{Instant, sleep_until};

use crate::control::json_response;
use crate::{Cancel, Engine};

const STREAM_HEAD: &[u8] = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream; charset=utf-8\r\n\
    cache-control: no-cache\r\ntransfer-encoding: chunked\r\n\r\n";
const EVENT: &str = r#"data: {"id":"chatcmpl-mock","object":"chat.completion.chunk","created":0,"model":"mock-model","choices":[{"index":0,"delta":{"content":"@@"#;
const EVENT_END: &str = "\"},\"finish_reason\":null}]}\n\n";
const STAMP: usize = 16;
const EVENT_BYTES: usize = 180;
const RESPONSE_BYTES: usize = 120;
/// Requests of users named so get no byte for `WAIT`: they are there to be cancelled.
const WAITS: &str = "wait";
const WAIT: Duration = Duration::from_secs(5);

/// Counts a request as running for as long as it lives.
struct Running<'a>(&'a Cell<u64>);

impl<'a> Running<'a> {
    fn start(count: &'a Cell<u64>) -> Self {
        count.set(count.get() + 1);
        Self(count)
    }
}

impl Drop for Running<'_> {
    fn drop(&mut self) {
        self.0.set(self.0.get() - 1);
    }
}

/// Responses a request and notes it if the client leaves before the end.
pub(crate) async fn response(wire: &mut Wire, engine: &Engine, body: &[u8]) -> Result<(), Broken> {
    let _running = Running::start(&engine.running);
    let user = user(body);
    let is_stream = memchr::memmem::find(body, br#""stream":true"#).is_some();
    let done = reply(wire, engine, is_stream, user.starts_with(WAITS)).await;
    if done.is_err() {
        let cancel = Cancel { user: user.to_owned(), seen_ns: now_ns() };
        engine.cancels.borrow_mut().push(cancel);
    }
    done
}

async fn reply(
    wire: &mut Wire,
    engine: &Engine,
    is_stream: bool,
    waits: bool,
) -> Result<(), Broken> {
    if waits {
        wait(wire, Instant::now() + WAIT).await?;
    }
    if is_stream { stream(wire, engine).await } else { whole(wire).await }
}

/// The `user` a body names.
fn user(body: &[u8]) -> &str {
    let name = br#""user":""#;
    let value = memchr::memmem::find(body, name).map(|at| &body[at + name.len()..]);
    let value = value.and_then(|rest| rest.split(|byte| *byte == b'"').next());
    std::str::from_utf8(value.unwrap_or_default()).unwrap_or_default()
}

async fn wait(wire: &mut Wire, until: Instant) -> Result<(), Broken> {
    tokio::select! {
        () = sleep_until(until) => Ok(()),
        broken = wire.wait_for_end() => Err(broken),
    }
}

async fn whole(wire: &mut Wire) -> Result<(), Broken> {
    let text = "x".repeat(RESPONSE_BYTES);
    let body = format!(
        r#"{{"id":"chatcmpl-mock","object":"chat.completion","created":0,"model":"mock-model","choices":[{{"index":0,"message":{{"role":"assistant","content":"{text}"}},"logprobs":null,"finish_reason":"stop"}}],"usage":{{"prompt_tokens":11,"completion_tokens":16,"total_tokens":27}}}}"#
    );
    wire.write(&json_response("200 OK", &body)).await
}

async fn stream(wire: &mut Wire, engine: &Engine) -> Result<(), Broken> {
    let knobs = engine.knobs.get();
    wire.write(STREAM_HEAD).await?;
    let padding = EVENT_BYTES.saturating_sub(EVENT.len() + STAMP + EVENT_END.len());
    let size = EVENT.len() + STAMP + padding + EVENT_END.len();
    let mut event = String::new();
    let mut due = Instant::now();
    for index in 0..knobs.events {
        if index > 0 {
            due += knobs.event_gap;
            if knobs.event_gap.is_zero() {
                // Other connections have their turn.
                tokio::task::yield_now().await;
            } else {
                wait(wire, due).await?;
            }
        }
        event.clear();
        let stamp = now_ns();
        let padding = &"y".repeat(padding);
        write!(event, "{size:x}\r\n{EVENT}{stamp:016}{padding}{EVENT_END}\r\n")
            .expect("text takes all there is");
        wire.write(event.as_bytes()).await?;
    }
    let end = format!(
        "data: {{\"id\":\"chatcmpl-mock\",\"object\":\"chat.completion.chunk\",\"created\":0,\
         \"model\":\"mock-model\",\"choices\":[{{\"index\":0,\"delta\":{{}},\
         \"finish_reason\":\"stop\"}}],\"usage\":{{\"prompt_tokens\":11,\"completion_tokens\":{},\
         \"total_tokens\":{}}}}}\n\ndata: [DONE]\n\n",
        knobs.events,
        knobs.events + 11
    );
    wire.write(format!("{:x}\r\n{end}\r\n0\r\n\r\n", end.len()).as_bytes()).await
}
