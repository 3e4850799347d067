//! `penstock demo --traffic`: clients that send a mixed load at a bounded rate, and engines that
//! fail now and then, so that `penstock top` and the dashboard have something to show.

use std::fs::DirBuilder;
use std::io::{self, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::os::unix::fs::DirBuilderExt;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use penstock_api::mix::mix;
use penstock_mock::{Cut, Fault, MockEngine};
use rand::rngs::SmallRng;
use rand::{Rng, SeedableRng};
use tokio::runtime::Handle;

use super::super::client::HttpClient;
use super::SEED;
use super::requests::{DemoRequest, KEYS, draw};
use crate::lifecycle::ShutdownHook;

/// The number of clients that send at a time. Together with the pauses they bound the rate.
const CLIENTS: u64 = 8;
/// The pause between two requests of a client, in milliseconds.
const PAUSE_MS: std::ops::Range<u64> = 150..900;
/// The number of bytes that a client reads before it disconnects early.
const READ_BEFORE_LEAVING: usize = 512;
const LEAVING_TIMEOUT: Duration = Duration::from_secs(5);

#[derive(Debug)]
pub(super) struct Traffic {
    folder: PathBuf,
    is_over: Arc<AtomicBool>,
}

impl Traffic {
    /// Creates a folder for the ledger, which only this user can read.
    pub(super) fn prepare() -> io::Result<Self> {
        let folder = std::env::temp_dir().join(format!("penstock-demo-{}", std::process::id()));
        // `create`, and not `create_all`: a folder that somebody else has made there is an error.
        DirBuilder::new().mode(0o700).create(&folder)?;
        Ok(Self { folder, is_over: Arc::default() })
    }

    /// The database of the ledger.
    pub(super) fn ledger(&self) -> PathBuf {
        self.folder.join("ledger.db")
    }

    /// The sections of the configuration that give the views more to show.
    pub(super) fn yaml(&self) -> String {
        let keys = KEYS.iter().map(|one| {
            let (name, key, models) = (one.name, one.key, one.models);
            format!("    - {{ name: {name}, key: {key}, models: {models:?} }}\n")
        });
        format!(
            "auth:\n  keys:\n{}\
             health: {{ interval: 2s }}\n\
             ledger: {{ path: \"{}\", flush_interval: 2s }}\n\
             telemetry: {{ enabled: false }}\n\
             models:\n  \"llama3:8b\": {{ price: {{ input: 0.1, output: 0.4 }} }}\n\
             \x20 \"qwen2.5:14b\": {{ price: {{ input: 0.3, output: 0.9 }} }}\n",
            keys.collect::<String>(),
            self.ledger().display()
        )
    }

    /// Ends the load and removes its ledger before the process exits.
    pub(super) fn into_hook(this: Arc<Self>) -> ShutdownHook {
        Box::new(move || this.end())
    }

    fn end(&self) {
        self.is_over.store(true, Ordering::Relaxed);
        match std::fs::remove_dir_all(&self.folder) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => {
                let folder = self.folder.display();
                tracing::error!(%folder, %error, "cannot remove the ledger of the demo");
            }
            Ok(()) | Err(_) => {}
        }
    }

    /// Starts the clients and the faults on a runtime.
    pub(super) fn start(&self, runtime: &Handle, data: SocketAddr, engines: Arc<[MockEngine]>) {
        for number in 0..CLIENTS {
            let is_over = Arc::clone(&self.is_over);
            // The clients must not send the same requests in step.
            let rng = SmallRng::seed_from_u64(mix(SEED + number));
            // The client of the commands blocks.
            runtime.spawn_blocking(move || send_requests(data, rng, &is_over));
        }
        runtime.spawn(async move {
            // Only an error of a socket ends the faults; the load continues.
            if let Err(error) = play_faults(&engines).await {
                tracing::warn!(%error, "demo: fault injection has stopped");
            }
        });
    }
}

impl Drop for Traffic {
    fn drop(&mut self) {
        self.end();
    }
}

fn send_requests(data: SocketAddr, mut rng: SmallRng, is_over: &AtomicBool) {
    while !is_over.load(Ordering::Relaxed) {
        let request = draw(&mut rng);
        // Errors are part of the demo: the dashboard and `penstock top` count them.
        let is_sent = send(data, &request);
        tracing::trace!(path = request.path, is_sent, "request of the demo");
        std::thread::sleep(Duration::from_millis(rng.random_range(PAUSE_MS)));
    }
}

fn send(data: SocketAddr, request: &DemoRequest) -> bool {
    if request.leaves {
        return leave_early(data, request).is_ok();
    }
    let client = HttpClient::new(&format!("http://{data}"), Some(request.key));
    client.post(request.path, request.body.as_bytes()).is_ok()
}

/// Closes the connection in the middle of the response.
fn leave_early(data: SocketAddr, request: &DemoRequest) -> io::Result<()> {
    let mut stream = TcpStream::connect_timeout(&data, LEAVING_TIMEOUT)?;
    stream.set_read_timeout(Some(LEAVING_TIMEOUT))?;
    let DemoRequest { path, key, body, .. } = request;
    let length = body.len();
    write!(
        stream,
        "POST {path} HTTP/1.1\r\nhost: {data}\r\nauthorization: Bearer {key}\r\n\
         content-type: application/json\r\ncontent-length: {length}\r\n\r\n{body}"
    )?;
    let mut part = [0; READ_BEFORE_LEAVING];
    // The drop then closes a stream that is in full flow.
    stream.read_exact(&mut part)
}

/// Plays faults in turn: a replica dies and recovers, an engine is busy, another one is slow, a
/// stream breaks. Runs until it is dropped.
async fn play_faults(engines: &[MockEngine]) -> io::Result<()> {
    let wait = |seconds| tokio::time::sleep(Duration::from_secs(seconds));
    let find = |name: &str| engines.iter().find(|engine| engine.spec().name == name);
    let (Some(text), Some(replica), Some(vision), Some(tools)) =
        (find("text"), find("text-2"), find("vision"), find("tools"))
    else {
        debug_assert!(false, "the fleet has all engines");
        return Ok(());
    };
    loop {
        wait(4).await;
        replica.kill().await?;
        wait(8).await;
        replica.resume().await?;
        wait(5).await;
        vision.script([Fault::status_with_retry(429, "6")]);
        wait(8).await;
        tools.always(Some(Fault::SlowHead(Duration::from_millis(1500))));
        wait(5).await;
        tools.always(None);
        text.script([Fault::CutStream { after_events: 5, how: Cut::Reset }]);
        wait(5).await;
    }
}
