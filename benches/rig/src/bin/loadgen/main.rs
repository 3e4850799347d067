//! The clients: N connections from one thread, and one line of JSON about what they saw.
//!
//! `--mode closed`: each connection sends its next request as soon as the last one ended, for
//! `--seconds`; what is still in flight then may finish, so that CPU per request divides by whole
//! requests. `--mode hold`: one request per connection, then the end of all of them.

mod body;
mod exchange;
mod record;

use std::rc::Rc;
use std::time::Duration;

use penstock_rig::args;
use penstock_rig::clock::now_ns;
use penstock_rig::wire::Wire;
use tokio::task::LocalSet;
use tokio::time::{sleep, timeout};

use crate::exchange::Plan;
use crate::record::Record;

const REQUEST_LIMIT: Duration = Duration::from_secs(30);
/// After an error, so that a proxy that is down is not hammered.
const PAUSE: Duration = Duration::from_millis(2);

#[tokio::main(flavor = "current_thread")]
async fn main() {
    let to = args::text("--to").expect("--to ADDRESS");
    let is_stream = args::is_set("--stream");
    let body = body::chat(args::number("--body", 300), is_stream, args::is_set("--image"));
    let request = format!(
        "POST /v1/chat/completions HTTP/1.1\r\nhost: {to}\r\ncontent-type: application/json\r\n\
         accept: */*\r\nuser-agent: loadgen\r\ncontent-length: {}\r\n\r\n{body}",
        body.len()
    );
    let plan = Rc::new(Plan { to, request: request.into_bytes(), is_stream });
    let record = Rc::new(Record::default());
    let connections: u64 = args::number("--connections", 1);
    let seconds: f64 = args::number("--seconds", 5.0);
    let hold = args::text("--mode").is_some_and(|mode| mode == "hold");
    let start = now_ns();
    let work = LocalSet::new();
    let running: Vec<_> = (0..connections)
        .map(|index| {
            let (plan, record) = (Rc::clone(&plan), Rc::clone(&record));
            work.spawn_local(async move {
                if hold {
                    // Opened one by one, as many clients would.
                    sleep(Duration::from_millis(index)).await;
                    send(&mut None, &plan, &record).await;
                } else {
                    repeat(&plan, &record, Duration::from_secs_f64(seconds)).await;
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

async fn repeat(plan: &Plan, record: &Record, time: Duration) {
    let end = now_ns() + u64::try_from(time.as_nanos()).expect("a short run");
    let mut wire = None;
    while now_ns() < end {
        if !send(&mut wire, plan, record).await {
            sleep(PAUSE).await;
        }
    }
}

/// One request, well or not.
async fn send(wire: &mut Option<Wire>, plan: &Plan, record: &Record) -> bool {
    let start = now_ns();
    let outcome = timeout(REQUEST_LIMIT, exchange::exchange(wire, plan, record)).await;
    match outcome.unwrap_or_else(|_| Err("timeout".to_owned())) {
        Ok(()) => {
            record.finished(now_ns() - start);
            true
        }
        Err(name) => {
            *wire = None;
            record.failed(name);
            false
        }
    }
}
