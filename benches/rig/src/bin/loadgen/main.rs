//! The clients: N connections from one thread, and one line of JSON with their results.
//!
//! `--mode closed`: each connection sends its next request as soon as the last one ended, for
//! `--seconds`; what is still in flight then may finish, so that CPU per request divides by whole
//! requests. `--mode hold`: one request per connection, then the end of all of them.
//!
//! `--ca FILE`: over TLS. `--http2`: in HTTP/2, with `--streams` requests at a time on each
//! connection. `--fresh`: a new connection for every request. `--new-prompts`: no two prompts begin
//! alike (HTTP/1.1 only).

mod body;
mod exchange;
mod http2;
mod record;
mod tls;

use std::cell::Cell;
use std::rc::Rc;
use std::time::Duration;

use penstock_rig::args;
use penstock_rig::clock::now_ns;
use tokio::task::LocalSet;
use tokio::time::{sleep, timeout};

use crate::exchange::{Client, Plan};
use crate::http2::Shared;
use crate::record::Record;
use crate::tls::Tls;

const REQUEST_LIMIT: Duration = Duration::from_secs(30);
/// After an error, so that a proxy that is down is not hammered.
const PAUSE: Duration = Duration::from_millis(2);

#[tokio::main(flavor = "current_thread")]
async fn main() {
    let is_http2 = args::is_set("--http2");
    let plan = Rc::new(plan(is_http2));
    let record = Rc::new(Record::default());
    let connections: u64 = args::number("--connections", 1);
    let streams: u64 = args::number("--streams", 1);
    let seconds: f64 = args::number("--seconds", 5.0);
    let hold = args::text("--mode").is_some_and(|mode| mode == "hold");
    let start = now_ns();
    let work = LocalSet::new();
    let running: Vec<_> = clients(connections, streams, is_http2)
        .zip(0..)
        .map(|(mut client, index)| {
            let (plan, record) = (Rc::clone(&plan), Rc::clone(&record));
            work.spawn_local(async move {
                if hold {
                    // Opened one by one, as many clients would.
                    sleep(Duration::from_millis(index)).await;
                    send(&mut client, &plan, &record).await;
                } else {
                    repeat(client, &plan, &record, Duration::from_secs_f64(seconds)).await;
                }
            })
        })
        .collect();
    work.run_until(async {
        for connection in running {
            connection.await.expect("a connection ends without panic");
        }
    })
    .await;
    #[allow(clippy::print_stdout, reason = "this line is what the program is for")]
    {
        println!("{}", record.report(Duration::from_nanos(now_ns() - start)));
    }
}

/// The arguments.
fn plan(is_http2: bool) -> Plan {
    let to = args::text("--to").expect("--to ADDRESS");
    let is_stream = args::is_set("--stream");
    let body = body::chat(args::number("--body", 300), is_stream, args::is_set("--image"));
    let request = format!(
        "POST /v1/chat/completions HTTP/1.1\r\nhost: {to}\r\ncontent-type: application/json\r\n\
         accept: */*\r\nuser-agent: loadgen\r\ncontent-length: {}\r\n\r\n{body}",
        body.len()
    );
    // From the clock, so that those of another run are others.
    let beginning = request.find(body::PROMPT).map(|place| place + body::PROMPT.len());
    let numbered = beginning.filter(|_| args::is_set("--new-prompts"));
    let protocol: &[u8] = if is_http2 { b"h2" } else { b"http/1.1" };
    let tls = args::text("--ca").map(|file| Tls::new(&file, protocol));
    let scheme = if tls.is_some() { "https" } else { "http" };
    Plan {
        head: http2::head(scheme, &to, body.len()),
        to,
        tls,
        is_fresh: args::is_set("--fresh"),
        is_stream,
        request: request.into_bytes(),
        numbered: numbered.map(|place| (place, Cell::new(now_ns()))),
        body: body.into(),
    }
}

/// As many as there are connections; in HTTP/2 `streams` on each.
fn clients(connections: u64, streams: u64, is_http2: bool) -> impl Iterator<Item = Client> {
    (0..connections).flat_map(move |_| {
        let shared = Rc::<Shared>::default();
        (0..streams).map(move |_| match is_http2 {
            true => Client::Http2(Rc::clone(&shared)),
            false => Client::Http1(None),
        })
    })
}

async fn repeat(mut client: Client, plan: &Plan, record: &Record, time: Duration) {
    let end = now_ns() + u64::try_from(time.as_nanos()).expect("a short run");
    while now_ns() < end {
        if !send(&mut client, plan, record).await {
            sleep(PAUSE).await;
        }
    }
}

/// One request, well or not.
async fn send(client: &mut Client, plan: &Plan, record: &Record) -> bool {
    let start = now_ns();
    let outcome = timeout(REQUEST_LIMIT, client.exchange(plan, record)).await;
    match outcome.unwrap_or_else(|_| Err("timeout".to_owned())) {
        Ok(()) => {
            record.finished(now_ns() - start);
            true
        }
        Err(name) => {
            client.forget().await;
            record.failed(name);
            false
        }
    }
}
