//! A mock engine: OpenAI's chat route on several ports of one single-threaded process.
//!
//! Every streamed event carries its send time as `@@<16 digits>`, and every request whose client
//! left early is noted with the time at which this was seen. See `response.rs` for the responses,
//! `control.rs` for the routes `bench.py` steers it by.

mod control;
mod response;

use std::cell::{Cell, RefCell};
use std::rc::Rc;
use std::time::Duration;

use penstock_rig::args;
use penstock_rig::link::Link;
use penstock_rig::wire::{Broken, Wire};
use tokio::net::TcpListener;
use tokio::task::{LocalSet, spawn_local};

/// The part of a body that is looked into: our load generator keeps what matters in front.
const LOOKED_INTO: usize = 4096;

/// The settings of its streams, changed by `/_set`.
#[derive(Clone, Copy)]
pub(crate) struct Knobs {
    pub(crate) event_gap: Duration,
    pub(crate) events: u32,
}

/// A request whose client left.
pub(crate) struct Cancel {
    /// The request's `user` value.
    pub(crate) user: String,
    pub(crate) seen_ns: u64,
}

/// The state that all connections share.
pub(crate) struct Engine {
    pub(crate) knobs: Cell<Knobs>,
    pub(crate) requests: Cell<u64>,
    pub(crate) body_bytes: Cell<u64>,
    pub(crate) running: Cell<u64>,
    pub(crate) cancels: RefCell<Vec<Cancel>>,
}

#[tokio::main(flavor = "current_thread")]
async fn main() {
    let engine = Rc::new(Engine {
        knobs: Cell::new(Knobs { event_gap: Duration::ZERO, events: 200 }),
        requests: Cell::default(),
        body_bytes: Cell::default(),
        running: Cell::default(),
        cancels: RefCell::default(),
    });
    let local = LocalSet::new();
    for address in args::text("--listen").expect("--listen ADDRESS,...").split(',') {
        let listener = TcpListener::bind(address).await;
        let listener = listener.unwrap_or_else(|error| panic!("{address}: {error}"));
        let engine = Rc::clone(&engine);
        local.spawn_local(async move {
            loop {
                let Ok((stream, _)) = listener.accept().await else { continue };
                let engine = Rc::clone(&engine);
                spawn_local(async move {
                    // However it ends: a client that left early has been noted.
                    serve(Wire::new(Link::plain(stream)), &engine).await.ok();
                });
            }
        });
    }
    local.await;
}

async fn serve(mut wire: Wire, engine: &Engine) -> Result<(), Broken> {
    while let Some(head) = wire.head().await? {
        if head.expects {
            wire.write(b"HTTP/1.1 100 Continue\r\n\r\n").await?;
        }
        let (mut front, mut length) = (Vec::new(), 0);
        wire.body(&head, false, |piece| {
            length += piece.len() as u64;
            let wanted = LOOKED_INTO.saturating_sub(front.len()).min(piece.len());
            front.extend_from_slice(&piece[..wanted]);
        })
        .await?;
        if head.word(0) == "POST" {
            engine.requests.set(engine.requests.get() + 1);
            engine.body_bytes.set(engine.body_bytes.get() + length);
            response::response(&mut wire, engine, &front).await?;
        } else {
            wire.write(&control::reply(engine, head.word(1))).await?;
        }
        if head.closes {
            return Ok(());
        }
    }
    Ok(())
}
